"""S3's description, which botocore reads for each session: 0.1 s of CPU, most of what a client of S3 costs."""

from __future__ import annotations

import functools

import boto3
import botocore.session


def share_models(*, read: bool = False) -> None:
    """Lets all sessions of this process read a description once; tests make hundreds of clients.

    Args:
        read: immediately, so that the processes that are forked from this one have it.
    """
    botocore.session.create_loader = functools.cache(botocore.session.create_loader)
    if read:
        session = boto3.session.Session("none", "none", region_name="us-east-1")
        session.client("s3").close()
