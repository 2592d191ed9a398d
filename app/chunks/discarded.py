"""Discarded messages on an event loop: the callback of the application, and its default."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from app.chunks.inbox import Inbox
from transforms.chunked_message import Discarded
from transforms.logger_name import logger_name

OnDiscarded = Callable[[Discarded], "Awaitable[None] | None"]

_logger = logging.getLogger(logger_name(__name__))


async def hand_out(inbox: Inbox[Any], discarded: Discarded, on_discarded: OnDiscarded) -> None:
    """Passes the first action, a discarded message, to the application; if that raises an error, the message stays."""
    done = on_discarded(discarded)
    if inspect.isawaitable(done):
        await done
    inbox.done(discarded)


def warn(discarded: Discarded) -> None:
    """Logs a message that was discarded."""
    if discarded.gone is None:
        record: Any = discarded.records[0]
        topic, partition = record.topic, record.partition
        chunks = f"{len(discarded.records)} chunks from offset {discarded.first} on"
    else:
        topic, partition = cast("tuple[str, int]", discarded.gone.partition)
        place = f"from offset {discarded.first} to {discarded.last}"
        chunks = f"its chunks, {place}, have left the log; its uuid is {discarded.uuid}"
    what = "topic %s partition %d: a message of chunks was discarded: %s (%s); %s"
    _logger.warning(what, topic, partition, discarded.reason, discarded.detail, chunks)
