"""The start of a worker: the preflight, repeated while brokers or stores are not available yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from aiokafka.errors import InvalidReplicationFactorError

from app.cluster.preflight import Plan, check
from app.config.findings import Findings
from app.config.settings import Settings
from app.kafka.clients import ClusterError
from transforms.errors import ConfigurationError

_PAUSE_S = 1.0

_Read = TypeVar("_Read")


async def check_patiently(
    settings: Settings,
    findings: Findings,
    log_wait: Callable[[str], None],
    read: Callable[[Settings], Awaitable[_Read]],
) -> tuple[list[Plan], _Read]:
    """As `check`, repeated for up to `startup.wait.ms` if the only problem is that brokers or stores do not respond.

    Args:
        settings: of the file.
        findings: errors that are already known; with any, there is no wait.
        log_wait: called once, with a sentence, before the first wait.
        read: called after each successful `check`, and repeated like it.

    Returns:
        The results of `check` and `read`.

    Raises:
        ConfigurationError: see `check`; or of `read`.
        ClusterError: see `check`; or of `read`.
    """
    deadline_s = time.monotonic() + settings.startup_wait_ms / 1000
    logged = False
    while True:
        found = Findings()
        for error in findings.errors:
            found.add(error)
        try:
            return await check(settings, found), await read(settings)
        except (ClusterError, ConfigurationError) as exc:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not all(map(_may_pass, _each(exc))):
                raise
            if not logged:
                logged = True
                log_wait(f"waits up to {left_s:.1f} s (startup.wait.ms): {'; '.join(map(str, _each(exc)))}")
            await asyncio.sleep(min(_PAUSE_S, left_s))


def _each(error: ClusterError | ConfigurationError) -> Sequence[Exception]:
    return error.each if isinstance(error, ConfigurationError) else (error,)


def _may_pass(error: BaseException) -> bool:
    """True if brokers or a store do not respond, or too few brokers are available; False if waiting cannot help."""
    if isinstance(error, ConfigurationError):
        return error.__cause__ is not None and _may_pass(error.__cause__)
    return isinstance(error, (TimeoutError, InvalidReplicationFactorError)) or bool(getattr(error, "retriable", False))
