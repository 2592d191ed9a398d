"""Payloads in a bucket; needs boto3."""

from __future__ import annotations

from stores.s3 import S3Store

__all__ = ["S3Store"]
