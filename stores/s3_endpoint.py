"""The endpoint of `stores.s3`: of its key, or what boto3 finds in the environment and in AWS's configuration file."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from botocore.utils import is_valid_endpoint_url, is_valid_ipv6_endpoint_url

from stores.endpoint import check_endpoint, quoted_endpoint
from transforms.errors import ConfigurationError

_KEY = "s3.endpoint"
_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")  # in the order in which boto3 looks


def checked_endpoint(endpoint: str, bucket: str = "", of: str = "") -> str:
    """`endpoint` as boto3 gets it.

    Args:
        endpoint: http:// or https://, host, port, and a path where a gateway has S3 below one.
        bucket: the bucket, which must not be that path.
        of: what has the value, if it is not the key `s3.endpoint`.

    Raises:
        ConfigurationError: it is something else, or boto3 refuses its host name.
    """
    checked = check_endpoint(_KEY, endpoint, r".*", "and perhaps a path", of)
    found = f"{of or 'found'} {quoted_endpoint(endpoint)}"
    if not (is_valid_endpoint_url(checked) or is_valid_ipv6_endpoint_url(checked)):
        raise ConfigurationError(
            _KEY,
            f"{found}, whose host name boto3 does not accept; allowed are the characters a-z, A-Z, 0-9, '.', and '-' "
            "between them, but not '_': use another host name, or its IP address",
        )
    if bucket and urlsplit(checked).path == f"/{bucket}":
        raise ConfigurationError(_KEY, f"{found}, which contains the bucket; set {bucket} only in s3.bucket")
    return checked


def found_endpoint(endpoint: str) -> None:
    """Checks an endpoint that boto3 has found by itself.

    Raises:
        ConfigurationError: as `checked_endpoint`; it says where boto3 has found it.
    """
    place = next((name for name in _VARIABLES if os.environ.get(name)), "endpoint_url in AWS's configuration file")
    checked_endpoint(endpoint, of=f"is not set, and {place} has")
