"""Discretion: what clients write to their logs when they are asked to tell all, and must not."""

from __future__ import annotations

import logging

from aiokafka.protocol.admin import SaslAuthenticateRequest_v0, SaslAuthenticateRequest_v1

__all__ = ["keep_secrets"]

_LOGINS = (SaslAuthenticateRequest_v0, SaslAuthenticateRequest_v1)


def keep_secrets() -> None:
    """Lets no client log passwords or tokens, however much else is logged. May be called again."""
    # At DEBUG it writes down each request, with the token of its session.
    logging.getLogger("botocore").setLevel(logging.INFO)
    # There it writes down each request too, and that of a login is the password.
    logger = logging.getLogger("aiokafka.conn")
    if _is_no_login not in logger.filters:
        logger.addFilter(_is_no_login)


def _is_no_login(record: logging.LogRecord) -> bool:
    return not (isinstance(record.args, tuple) and any(isinstance(each, _LOGINS) for each in record.args))
