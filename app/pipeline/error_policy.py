"""The error policy: a record that fails becomes a dead letter, is dropped by a rule, or ends the flow."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Sequence

from app.cluster.preflight import CLOCKS_APART_MS
from app.config.secret import without_secrets
from app.config.settings import PipelineSettings
from app.deadletters.writer import LetterWriter
from app.pipeline.budget import Share
from app.pipeline.lane import Slot, held_bytes
from app.pipeline.lane_assembler import chunks_of
from app.pipeline.runtime import Runtime
from app.pipeline.stats import PipelineStats
from app.pipeline.termination import RecordError, Termination
from transforms.assembly import Discarded
from transforms.errors import (
    DiscardedChunkError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadUnavailableError,
    PayloadUnfitError,
    RecordUnfitError,
    ReferenceRefusedError,
    TransformError,
    WideloadError,
)
from transforms.letter import Cause
from transforms.logger_name import logger_name
from transforms.record import Record, RecordLike, SourceRecord

__all__ = ["ErrorPolicy", "reason_of"]

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

    `letters` is None if there is no dead-letter topic.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        letters: LetterWriter | None,
        share: Share,
        *,
        runtime: Runtime,
        stats: PipelineStats,
        termination: Termination,
    ) -> None:
        self._settings = settings
        self._letters = letters
        self._topic_name = "" if letters is None else letters.topic.name
        self._share = share
        self._runtime = runtime
        self._stats = stats
        self._termination = termination

    @contextlib.contextmanager
    def of(self, slot: Slot) -> Iterator[None]:
        """Decides on an error of the body, and raises nothing.

        After an error the slot has a result, or has a `cause` and waits for `bury`, or a `failure` that waits for
        `end`. If no record can pass, the flow ends.
        """
        try:
            try:
                yield
            except _OF_THE_RECORD as exc:
                self._count(slot.source, exc)
                cause = self._cause(slot.source, exc)
                assert self._letters is not None
                letter = self._letters.whole(slot.source, cause)
                if letter is None:
                    slot.cause = cause
                else:
                    self._finish(slot, (letter,), cause)
                    self._log(slot.source, f"goes to {self._topic_name}", exc)
        except RecordError as exc:
            slot.failure = exc
        except PayloadStoreError as exc:
            self._termination.fail(RecordError(slot.source, exc, "; the store refuses, so no record can pass it"))
        except Exception as exc:  # noqa: BLE001  # a defect of ours, see `end`
            slot.failure = RecordError(slot.source, exc, "")

    def end(self, slot: Slot) -> None:
        """Ends the flow with the failure of a slot. All before it in its lane is written."""
        assert slot.failure is not None
        error = slot.failure.error
        if isinstance(error, _OF_THE_RECORD):
            if self._letters is None:  # else it is counted already
                self._stats.count_failed(slot.source, reason_of(error))
            self._termination.fail(slot.failure)
        else:  # a defect of ours must stop the pipeline as loudly
            self._termination.fail_by_defect(error, slot.source)

    async def bury(self, slot: Slot) -> None:
        """Gives a slot with a `cause` its dead letter, which goes to the store or as chunks; or a failure."""
        cause = slot.cause
        assert cause is not None
        await self.bury_chunks(slot, (slot.source,), cause)
        slot.cause = None  # the traceback of its error would keep the record in memory
        if slot.result is not None:
            what = "goes to" if len(slot.result) == 1 else f"goes as {len(slot.result)} chunks to"
            self._log(slot.source, f"{what} {self._topic_name}", cause.error)

    def condemn(self, event: Discarded, slots: Sequence[Slot]) -> Cause | None:
        """Counts a message that will not be whole, whose chunks, in these slots, become dead letters.

        Returns:
            The cause for the letters; None if there is no topic for them, and the first slot has a failure.
        """
        error = DiscardedChunkError(event.uuid, event.reason, event.detail)
        first, *others = chunks_of(event)
        self._count(first, error)
        cause = None
        with self.of(slots[0]):
            cause = self._cause(first, error)
            # One line: a message may have a hundred thousand chunks.
            what = f"and {len(others)} other chunks go" if others else "goes"
            self._log(first, f"{what} to {self._topic_name}", error)
        return cause

    def discard(self, slot: Slot, chunks: Sequence[SourceRecord], cause: Cause) -> bool:
        """Gives a slot the dead letters of chunks; False if that takes a thread (`bury_chunks`)."""
        assert self._letters is not None
        letters = []
        for chunk in chunks:
            letter = self._letters.whole(chunk, cause)
            if letter is None:
                return False
            letters.append(letter)
        self._finish(slot, letters, cause)
        return True

    async def bury_chunks(self, slot: Slot, chunks: Sequence[SourceRecord], cause: Cause) -> None:
        """As `discard`, on a thread; or gives the slot a failure."""
        copies = sum(map(held_bytes, chunks))  # the copies are made while the records are still held
        self._share.take(copies)
        try:
            letters = await self._runtime.threads.call(self._write, chunks, cause)
        except TransformError as exc:
            advice = f"; and it cannot be a dead letter: {exc}"
            slot.failure = RecordError(slot.source, cause.error, advice)
        except Exception as exc:  # noqa: BLE001  # a defect of ours, see `end`
            slot.failure = RecordError(slot.source, exc, "")
        else:
            self._finish(slot, letters, cause, records=len(chunks))
        finally:
            self._share.give(copies)

    def _write(self, sources: Sequence[SourceRecord], cause: Cause) -> Sequence[RecordLike]:
        assert self._letters is not None
        return [letter for source in sources for letter in self._letters.any(source, cause)]

    def _finish(self, slot: Slot, letters: Sequence[RecordLike], cause: Cause, *, records: int | None = None) -> None:
        self._stats.dead_letters += len(letters) if records is None else records
        assert self._letters is not None
        topic = self._letters.topic
        # A record that a topic has refused may have a wrong timestamp, with which its letter would be refused too.
        unfit, now_s = isinstance(cause.error, RecordUnfitError), self._runtime.time()
        if unfit or not all(topic.takes_timestamp(each.timestamp, now_s, CLOCKS_APART_MS) for each in letters):
            letters = [Record(letter.key, letter.value, letter.headers, int(now_s * 1000)) for letter in letters]
        self._share.give_work(slot.finish(letters, dead=True))

    def drops(self, event: Discarded) -> bool:
        """True if a rule of the configuration drops the chunks; logs and counts that."""
        if event.reason != "evicted" or not self._settings.chunks.drops_oldest:
            return False
        chunks = chunks_of(event)
        self._stats.evicted_messages += 1
        error = DiscardedChunkError(event.uuid, event.reason, event.detail)
        self._log(chunks[0], f"and {len(chunks) - 1} other chunks are dropped", error)
        return True

    def _cause(self, source: SourceRecord, error: WideloadError) -> Cause:
        """The cause for a dead letter.

        Raises:
            RecordError: there is no dead-letter topic.
        """
        if self._letters is None:
            advice = '; errors.tolerance = "all" and a dead-letter topic would let the records behind it pass'
            raise RecordError(source, error, advice) from error
        settings = self._settings
        stage = ",".join(settings.transforms)
        return Cause(
            error, pipeline=settings.name, stage=stage, context=settings.dead_letter_context, mask=without_secrets
        )

    def _count(self, source: SourceRecord, error: WideloadError) -> None:
        # Without letters the first one ends the flow (`end`), and those behind it are read again.
        if self._letters is not None:
            self._stats.count_failed(source, reason_of(error))

    def _log(self, source: SourceRecord, what: str, error: BaseException) -> None:
        log.warning(
            "pipeline %s: topic %s, partition %d, offset %d %s: %s",
            self._settings.name,
            source.topic,
            source.partition,
            source.offset,
            what,
            error,
        )
