"""Payloads in Google Cloud Storage; needs obstore and google-auth."""

from __future__ import annotations

from stores.gcs import GcsStore

__all__ = ["GcsStore"]
