"""The error policy: a record that fails becomes a dead letter, is dropped by a rule, or ends the flow."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from app.cluster.preflight import CLOCKS_APART_MS
from app.config.secret import without_secrets
from app.deadletters.writer import LetterWriter
from app.kafka.topics import Topic
from app.pipeline.lane import held_bytes
from app.pipeline.lane_assembler import chunks_of
from app.pipeline.parts import Parts
from app.pipeline.runtime import Runtime
from app.pipeline.termination import RecordError
from stores.store import PayloadStore
from transforms.chunked_message import Discarded
from transforms.errors import (
    DiscardedChunkError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadUnavailableError,
    PayloadUnfitError,
    RecordUnfitError,
    ReferenceRefusedError,
    TransformError,
)
from transforms.letter import Cause
from transforms.logger_name import logger_name
from transforms.record import Record, RecordLike, SourceRecord

log = logging.getLogger(logger_name(__name__))

# Errors that other records do not meet; those of the store among them.
_OF_THE_RECORD = (
    *(PayloadNotFoundError, PayloadUnfitError, PayloadUnavailableError, ReferenceRefusedError),
    TransformError,
)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")


def reason_of(error: BaseException) -> str:
    """The reason of a failure, as metrics name it: the class of the error, as in `reference-refused`."""
    return _HUMP.sub("-", type(error).__name__.removesuffix("Error")).lower()


class ErrorPolicy:
    """Decides by `errors.tolerance`, and by the error, what becomes of a record. Belongs to one event loop.

    `store` is that of the pipeline, where a large dead letter may go; None if it has none.
    """

    def __init__(self, parts: Parts, store: PayloadStore | None, runtime: Runtime) -> None:
        self._parts = parts
        self._stats = parts.stats
        self._runtime = runtime
        self._writer = None
        if parts.plan.dead_letters is not None:
            self._writer = LetterWriter(parts.settings, parts.plan.dead_letters, store, clock=runtime.monotonic)

    def verdict(self, source: SourceRecord, error: BaseException) -> Cause | RecordError | None:
        """The cause for the dead letter of a record that has failed; or a failure, for `end`.

        None if no record can pass the store, which ends the flow now: later on the store may have worked.
        """
        if not isinstance(error, _OF_THE_RECORD):
            if not isinstance(error, PayloadStoreError):
                return RecordError(source, error, "")
            self._parts.termination.fail(RecordError(source, error, "; the store refuses, so no record can pass it"))
            return None
        if self._writer is None:
            advice = '; with errors.tolerance = "all" and a dead letter queue the records behind it would pass'
            return RecordError(source, error, advice)
        self._stats.count_failed(source, reason_of(error))
        settings = self._parts.settings
        stage = ",".join(settings.transforms)
        return Cause(
            error, pipeline=settings.name, stage=stage, context=settings.dead_letter_context, mask=without_secrets
        )

    def discarded(self, event: Discarded) -> Cause | RecordError | None:
        """As `verdict`, for the chunks of a message that will not be whole; None if a rule drops them."""
        error = DiscardedChunkError(event.uuid, event.reason, event.detail)
        first, *others = chunks_of(event)
        if event.reason == "evicted" and self._parts.settings.chunks.drops_oldest:
            self._stats.evicted_messages += 1
            self._log(first, f"and {len(others)} other chunks are dropped", error)
            return None
        verdict = self.verdict(first, error)
        if self._writer is not None:
            # One line: a message may have a hundred thousand chunks.
            what = f"and {len(others)} other chunks go" if others else "goes"
            self._log(first, f"{what} to {self._writer.topic.name}", error)
        return verdict

    def end(self, failure: RecordError) -> None:
        """Ends the flow with a failure, once all before it in its lane is written."""
        error, record = failure.error, failure.record
        if isinstance(error, _OF_THE_RECORD):
            if self._writer is None:  # counted here: those behind it may have failed too, and are read again
                self._stats.count_failed(record, reason_of(error))
            self._parts.termination.fail(failure)
        else:  # a defect of ours must stop the pipeline as loudly
            self._parts.termination.fail_by_defect(error, record)

    def letters(self, sources: Sequence[SourceRecord], cause: Cause) -> Sequence[RecordLike] | None:
        """The dead letters of records; None if one is large, see `write_letters`."""
        assert self._writer is not None
        letters = []
        for source in sources:
            letter = self._writer.whole(source, cause)
            if letter is None:
                return None
            letters.append(letter)
        return self._made(self._writer.topic, letters, sources, cause)

    async def write_letters(self, sources: Sequence[SourceRecord], cause: Cause) -> Sequence[RecordLike] | RecordError:
        """As `letters`, on a thread: a large value goes to the store, or as chunks."""
        writer = self._writer
        assert writer is not None
        copies = sum(map(held_bytes, sources))  # the copies are made while the records are still held
        self._parts.share.take(copies)
        try:
            letters = await self._runtime.threads.call(
                lambda: [letter for source in sources for letter in writer.any(source, cause)]
            )
        except TransformError as exc:
            return RecordError(sources[-1], cause.error, f"; and it cannot be a dead letter: {exc}")
        except Exception as exc:  # noqa: BLE001  # a defect of ours, see `end`
            return RecordError(sources[-1], exc, "")
        finally:
            self._parts.share.give(copies)
        return self._made(writer.topic, letters, sources, cause)

    def _made(
        self, topic: Topic, letters: Sequence[Record], sources: Sequence[SourceRecord], cause: Cause
    ) -> Sequence[Record]:
        """Counts and logs the dead letters of these records; they get a timestamp that their topic accepts."""
        self._stats.dead_letters += len(sources)
        if not isinstance(cause.error, DiscardedChunkError):  # `discarded` logs that
            what = "goes to" if len(letters) == 1 else f"goes as {len(letters)} chunks to"
            self._log(sources[-1], f"{what} {topic.name}", cause.error)
        # A record that a topic has refused may have a wrong timestamp: its dead letter would be refused too.
        unfit, now_s = isinstance(cause.error, RecordUnfitError), self._runtime.time()
        if unfit or not all(topic.takes_timestamp(each.timestamp, now_s, CLOCKS_APART_MS) for each in letters):
            return [Record(letter.key, letter.value, letter.headers, int(now_s * 1000)) for letter in letters]
        return letters

    def _log(self, source: SourceRecord, what: str, error: BaseException) -> None:
        name, place = self._parts.settings.name, (source.topic, source.partition, source.offset)
        log.warning("pipeline %s: topic %s, partition %d, offset %d %s: %s", name, *place, what, error)
