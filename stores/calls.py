"""Calls with a timeout, even if the called function hangs: each runs in a separate thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_MOST = 16


class HangingError(TimeoutError):
    """A call did not finish in time, or too many earlier calls are still running."""


class Calls:
    """Abandons calls that hang. Several threads may use one object.

    While 16 calls hang, no other is started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hanging = 0

    def within(self, timeout_ms: int, call: Callable[[], _T]) -> _T:
        """The result of `call`.

        Raises:
            HangingError: it did not finish within `timeout_ms`.
            BaseException: what `call` raised.
        """
        with self._lock:
            if self._hanging >= _MOST:
                raise HangingError(f"skipped: {self._hanging} earlier calls are still running")
        results: list[_T] = []
        errors: list[BaseException] = []
        left: list[bool] = []  # not empty once the caller waits no longer

        def run() -> None:
            try:
                results.append(call())
            except BaseException as exc:  # noqa: BLE001  # the caller raises it
                errors.append(exc)
            with self._lock:
                if left:
                    self._hanging -= 1

        thread = threading.Thread(target=run, name="wideload-store-call", daemon=True)
        thread.start()
        thread.join(timeout_ms / 1000)
        with self._lock:
            if not results and not errors:
                left.append(True)
                self._hanging += 1
                raise HangingError(f"has not answered for {timeout_ms:,} ms")
        if errors:
            raise errors[0]
        return results[0]
