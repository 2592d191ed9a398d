"""The ending of a flow: that it is to end, and why; whoever has a part in the flow may bring it about."""

from __future__ import annotations

import logging
from collections.abc import Callable

from transforms.errors import WideloadError
from transforms.record import SourceRecord

__all__ = ["RecordError", "Termination"]

log = logging.getLogger(__name__)


class RecordError(WideloadError):
    """A record stopped the pipeline, by `errors.tolerance = "none"` or because the store refuses everyone.

    Attributes:
        topic, partition, offset: where the record is.
    """

    def __init__(self, record: SourceRecord, error: BaseException, advice: str) -> None:
        super().__init__(record, error, advice)
        self.topic = record.topic
        self.partition = record.partition
        self.offset = record.offset
        self._message = f"topic {record.topic}, partition {record.partition}, offset {record.offset}: {error}{advice}"

    def __str__(self) -> str:
        return self._message


class Termination:
    """Whether a flow is to end. Belongs to its event loop.

    Args:
        pipeline: the name of the pipeline, for the log.
        wake: called with the first failure, and when the flow is asked to stop: it may be waiting.

    Attributes:
        error: what the flow has failed with; None where it has not.
        asked: True once it has been asked to stop.
    """

    def __init__(self, pipeline: str, wake: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self.asked = False
        self._pipeline = pipeline
        self._wake = wake

    def ask(self) -> None:
        """Asks the flow to drain and to stop."""
        self.asked = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Ends the flow with `error`; of several the first counts, the others mostly follow from it."""
        if self.error is None:
            self.error = error
            self._wake()

    def fail_by_defect(self, error: Exception, record: SourceRecord | None = None) -> None:
        """Ends the flow with an error that nobody foresaw, as loudly as with any other; the log says where it was.

        Args:
            error: which is of ours to mend.
            record: the one that was in hand, if one was.
        """
        log.error("pipeline %s: unexpected error", self._pipeline, exc_info=error)
        self.fail(error if record is None else RecordError(record, error, ""))

    def raise_error(self) -> None:
        """Raises what the flow has failed with, if it has."""
        if self.error is not None:
            raise self.error
