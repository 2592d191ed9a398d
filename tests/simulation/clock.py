"""The clock of the process: in a history that of its loop.

aiokafka and `app/kafka` ask `time` themselves; some keep its function as a default when they are imported.
The same is done with what draws at random beside `random`, so that a seed gives one history.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
import traceback
import uuid
from typing import Any

BEGAN_S = 1_800_000_000.0  # the time since 1970 when the clock of a loop is at 0

real_s = time.perf_counter

_monotonic, _time, _urandom = time.monotonic, time.time, os.urandom
_format_exception = traceback.format_exception
_FOLDER = re.compile(r'(?<=File ")[^"]*/')


def _loop_s() -> float | None:
    loop = asyncio._get_running_loop()
    return None if loop is None else getattr(loop, "now_s", None)


def monotonic() -> float:
    now_s = _loop_s()
    return _monotonic() if now_s is None else now_s


def wall() -> float:
    now_s = _loop_s()
    return _time() if now_s is None else BEGAN_S + now_s


def urandom(size: int) -> bytes:
    return _urandom(size) if _loop_s() is None else random.randbytes(size)  # a simulation


def format_exception(*error: Any, **options: Any) -> list[str]:
    """As that of `traceback`, without the folders: a dead-letter record has it, and its length must not go by them."""
    return [_FOLDER.sub("", line) for line in _format_exception(*error, **options)]


def take_the_place_of_time() -> None:
    """Lets all modules that are imported from now on have these clocks, for as long as the process lives."""
    time.monotonic = time.perf_counter = monotonic
    time.time = wall
    os.urandom = urandom
    traceback.format_exception = format_exception
    uuid.uuid4 = lambda: uuid.UUID(bytes=urandom(16), version=4)


def installed() -> bool:
    return time.monotonic is monotonic
