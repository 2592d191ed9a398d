"""Makes a client of boto3 keep the deadline of `stores.http_time`: its connections, and its pauses between attempts."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from botocore.exceptions import ClientError

from stores.http_time import POOLS, LateError, begin, time_left

_LONGEST_PAUSE_S = 20.0
ASKED_PAUSE_S = 5
"""What a server may ask botocore for, at most, in addition to its own pause."""


def longest_pause(attempts: int) -> float:
    """The seconds that botocore's `standard` mode waits at most behind so many attempts."""
    return min(2.0 ** min(attempts - 1, 10), _LONGEST_PAUSE_S)


def keep_time(client: Any, seconds: float, pools: Mapping[str, Any] = POOLS) -> None:
    """Makes a new client of boto3 keep time.

    Args:
        client: of any service.
        seconds: for a call that is made outside of `stores.http_time.within`.
        pools: the pools of its connections, by scheme.
    """
    # botocore has no setting for the classes of its connections; this private table names them.
    client._endpoint.http_session._pool_classes_by_scheme.update(pools)  # noqa: SLF001
    client.meta.events.register_first("before-call", functools.partial(_begin, seconds))
    client.meta.events.register_first("needs-retry", _end)


def _begin(seconds: float, **_: object) -> None:
    begin(seconds)


def _end(
    response: tuple[Any, dict[str, Any]] | None,
    operation: Any,
    attempts: int,
    caught_exception: Exception | None,
    **_: object,
) -> None:
    """Raises the error of an attempt if the pause before the next one may last until the deadline."""
    answer: Any = {} if response is None else response[1]
    if answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 500) < HTTPStatus.MULTIPLE_CHOICES:
        return
    asked = response is not None and "x-amz-retry-after" in response[0].headers
    try:
        late = time_left() <= longest_pause(attempts) + (ASKED_PAUSE_S if asked else 0)
    except LateError:
        late = True
    if late:
        # botocore wraps it in another error.
        hidden = getattr(caught_exception, "kwargs", {}).get("error")
        raise hidden if isinstance(hidden, LateError) else caught_exception or ClientError(answer, operation.name)
