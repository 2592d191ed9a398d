"""The start of a worker: the preflight, again and again while brokers or stores are not there yet."""

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
    tell: Callable[[str], None],
    read: Callable[[Settings], Awaitable[_Read]],
) -> tuple[list[Plan], _Read]:
    """As `check`, for `startup.wait.ms` while all that is wrong is that brokers or stores do not answer.

    Args:
        settings: of the file.
        findings: what is known to be wrong already; then nothing is waited for.
        tell: called once, with a sentence, if something is waited for.
        read: called once all is well, and again as `check` is.

    Returns:
        What `check` and `read` have given.

    Raises:
        ConfigurationError: see `check`; or of `read`.
        ClusterError: see `check`; or of `read`.
    """
    deadline_s = time.monotonic() + settings.startup_wait_ms / 1000
    told = False
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
            if not told:
                told = True
                tell(f"waits up to {left_s:.1f} s (startup.wait.ms): {'; '.join(map(str, _each(exc)))}")
            await asyncio.sleep(min(_PAUSE_S, left_s))


def _each(error: ClusterError | ConfigurationError) -> Sequence[Exception]:
    return error.each if isinstance(error, ConfigurationError) else (error,)


def _may_pass(error: BaseException) -> bool:
    """True if brokers or a store do not answer, or too few brokers are there; False if somebody must act first."""
    if isinstance(error, ConfigurationError):
        return error.__cause__ is not None and _may_pass(error.__cause__)
    return isinstance(error, (TimeoutError, InvalidReplicationFactorError)) or bool(getattr(error, "retriable", False))
