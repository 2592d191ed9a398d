"""What becomes of a discarded message if the application does not say."""

from __future__ import annotations

import logging
from typing import Any, cast

from transforms.chunked_message import Discarded
from transforms.logger_name import logger_name

_logger = logging.getLogger(logger_name(__name__))


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
