"""What becomes of a discarded message if the application does not say."""

from __future__ import annotations

import logging
from typing import Any, cast

from transforms.assembly import Discarded
from transforms.logger_name import logger_name

__all__ = ["warn"]

_logger = logging.getLogger(logger_name(__name__))


def warn(discarded: Discarded) -> None:
    """Logs a message that was discarded."""
    if discarded.gone is not None:
        _logger.warning(
            "topic %s partition %d: a message of chunks was discarded: %s (%s); its chunks, from offset %d to %d, have "
            "left the log; its uuid is %s",
            *cast("tuple[str, int]", discarded.gone.partition),
            discarded.reason,
            discarded.detail,
            discarded.first,
            discarded.last,
            discarded.uuid,
        )
        return
    first: Any = discarded.records[0]
    _logger.warning(
        "topic %s partition %d: a message of chunks was discarded: %s (%s); %d chunks from offset %d on",
        first.topic,
        first.partition,
        discarded.reason,
        discarded.detail,
        len(discarded.records),
        first.offset,
    )
