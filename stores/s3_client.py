"""Makes the boto3 client of `stores.s3` from its keys."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ConfigNotFound, ConfigParseError, InvalidRegionError, ProfileNotFound
from botocore.utils import parse_timestamp

from stores.keys import Value
from stores.s3_credentials import open_session
from stores.s3_endpoint import checked_endpoint, found_endpoint
from stores.s3_expect import POOLS, Expectation
from stores.s3_time import keep_time
from transforms.errors import ConfigurationError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_REFUSED: Mapping[type[Exception], str] = {
    InvalidRegionError: "s3.region",
    ProfileNotFound: "AWS_PROFILE",
    ConfigNotFound: "AWS_CONFIG_FILE",
    ConfigParseError: "AWS_CONFIG_FILE",
}


def open_client(values: Mapping[str, Value | None], seconds: float) -> S3Client:
    """A client for all threads.

    Args:
        values: the checked values of the keys of `stores.s3.S3Store`.
        seconds: how long a call may take.

    Raises:
        ConfigurationError: they contradict each other, or boto3 refuses them.
    """
    access, secret, token = (
        cast("str | None", values[name]) for name in ("s3.access.key", "s3.secret.key", "s3.session.token")
    )
    for name, other, value, partner in (
        ("s3.access.key", "s3.secret.key", access, secret),
        ("s3.secret.key", "s3.access.key", secret, access),
        ("s3.session.token", "s3.access.key", token, access),
    ):
        if value and not partner:
            raise ConfigurationError(name, f"also requires {other}")
    endpoint = cast("str | None", values["s3.endpoint"])
    if endpoint is not None:
        endpoint = checked_endpoint(endpoint, cast("str", values["s3.bucket"]))
    styles = {True: "path", False: "virtual", None: "auto" if endpoint is None else "path"}
    told = cast("bool | None", values["s3.payload.signing"])
    config = Config(
        connect_timeout=cast("int", values["s3.connection.timeout.ms"]) / 1000,
        read_timeout=cast("int", values["s3.read.timeout.ms"]) / 1000,
        retries={"mode": "standard", "total_max_attempts": cast("int", values["s3.retry.attempts"])},
        max_pool_connections=cast("int", values["s3.max.connections"]),
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3=cast("Any", {"addressing_style": styles[cast("bool | None", values["s3.path.style"])]}),
        user_agent_extra="wideload",
    )
    try:
        # A separate session: two threads may not use the default one simultaneously.
        session, credentials = open_session()
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_timestamp)
        client = boto3.session.Session(botocore_session=session).client(
            "s3",
            endpoint_url=endpoint,
            region_name=cast("str | None", values["s3.region"]),
            aws_access_key_id=access,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=config,
        )
    except (ValueError, BotoCoreError) as exc:
        refused = str(exc).partition("Invalid endpoint: ")[2]
        if refused and endpoint is None:
            found_endpoint(refused)
        raise ConfigurationError(_key(exc), f"boto3 refuses the settings: {exc}") from exc
    if endpoint is None:
        found_endpoint(client.meta.endpoint_url)
    # The environment may name the endpoint, too. Of itself botocore would sign more than it has to over TLS.
    plain = client.meta.endpoint_url.lower().startswith("http://")
    cast("Any", client.meta.config).s3["payload_signing_enabled"] = plain if told is None else told
    keep_time(client, seconds, POOLS)
    Expectation(client)
    if access is None:
        credentials.renew(client)
    client.meta.events.register("before-call.s3.HeadBucket", _follow_no_redirection)
    return client


def _timestamp(value: Any) -> datetime:
    """As botocore reads it, but in 1 µs: botocore takes 40, half of the CPU for a page of 1,000 keys."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            found = datetime.fromisoformat(value) if value[:1].isdigit() else parsedate_to_datetime(value)
            if found.tzinfo is not None:
                return _checked(found)
    return _checked(parse_timestamp(value))


def _checked(found: datetime) -> datetime:
    """Raises OverflowError here, where an answer is read, and not where it is used."""
    found.astimezone(UTC)
    return found


def _key(exc: Exception) -> str:
    """The key, or the variable of AWS's, that boto3 refuses."""
    return next((name for kind, name in _REFUSED.items() if isinstance(exc, kind)), "large.message.payload.store.class")


def _follow_no_redirection(params: dict[str, Any], **_: object) -> None:
    """Prevents an endless recursion of botocore.

    If a request is redirected, botocore asks HeadBucket for the region. If that is redirected too, it asks again, until
    the stack is full. Servers that redirect everything do this, for instance from http to https.
    """
    params["context"].setdefault("s3_redirect", {})["redirected"] = True
