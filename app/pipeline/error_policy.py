"""The error policy: a record that fails becomes a dead letter, is dropped by a rule, or ends the flow."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from app.cluster.preflight import CLOCKS_APART_MS
from app.config.secret import without_secrets
from app.config.settings import PipelineSettings
from app.deadletters.writer import LetterWriter
from app.pipeline.budget import Share
from app.pipeline.lane import held_bytes
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

    def verdict(self, source: SourceRecord, error: BaseException) -> Cause | RecordError | None:
        """What becomes of a record that has failed.

        Returns:
            The cause for its dead letter; a failure for `end`, once all before the record is written; None if the flow
            ends now, because no record can pass.
        """
        if isinstance(error, _OF_THE_RECORD):
            return self._cause(source, error)
        if isinstance(error, PayloadStoreError):
            self._termination.fail(RecordError(source, error, "; the store refuses, so no record can pass it"))
            return None
        return RecordError(source, error, "")  # a defect of ours, see `end`

    def discarded(self, event: Discarded) -> Cause | RecordError | None:
        """As `verdict`, for the chunks of a message that will not be whole; None if a rule drops them."""
        error = DiscardedChunkError(event.uuid, event.reason, event.detail)
        first, *others = chunks_of(event)
        if event.reason == "evicted" and self._settings.chunks.drops_oldest:
            self._stats.evicted_messages += 1
            self._log(first, f"and {len(others)} other chunks are dropped", error)
            return None
        verdict = self._cause(first, error)
        if isinstance(verdict, Cause):
            # One line: a message may have a hundred thousand chunks.
            self._log(
                first, f"{f'and {len(others)} other chunks go' if others else 'goes'} to {self._topic_name}", error
            )
        return verdict

    def end(self, failure: RecordError) -> None:
        """Ends the flow with a failure. All before it in its lane is written."""
        if isinstance(failure.error, _OF_THE_RECORD):
            if self._letters is None:  # else it is counted already
                self._stats.count_failed(failure.record, reason_of(failure.error))
            self._termination.fail(failure)
        else:  # a defect of ours must stop the pipeline as loudly
            self._termination.fail_by_defect(failure.error, failure.record)

    def letters(self, sources: Sequence[SourceRecord], cause: Cause) -> Sequence[RecordLike] | RecordError | None:
        """The dead letters of records, or a failure; None if they are large, see `write_letters`."""
        assert self._letters is not None
        letters = []
        try:
            for source in sources:
                letter = self._letters.whole(source, cause)
                if letter is None:
                    return None
                letters.append(letter)
        except Exception as exc:  # noqa: BLE001  # a defect of ours, see `end`
            return RecordError(sources[-1], exc, "")
        return self._finished(sources, letters, cause)

    async def write_letters(self, sources: Sequence[SourceRecord], cause: Cause) -> Sequence[RecordLike] | RecordError:
        """As `letters`, on a thread: their values go to the store, or as chunks."""
        copies = sum(map(held_bytes, sources))  # the copies are made while the records are still held
        self._share.take(copies)
        try:
            letters = await self._runtime.threads.call(self._write, sources, cause)
        except TransformError as exc:
            return RecordError(sources[-1], cause.error, f"; and it cannot be a dead letter: {exc}")
        except Exception as exc:  # noqa: BLE001  # a defect of ours, see `end`
            return RecordError(sources[-1], exc, "")
        finally:
            self._share.give(copies)
        return self._finished(sources, letters, cause)

    def _write(self, sources: Sequence[SourceRecord], cause: Cause) -> Sequence[RecordLike]:
        assert self._letters is not None
        return [letter for source in sources for letter in self._letters.any(source, cause)]

    def _finished(
        self, sources: Sequence[SourceRecord], letters: Sequence[RecordLike], cause: Cause
    ) -> Sequence[RecordLike]:
        self._stats.dead_letters += len(sources)
        assert self._letters is not None
        topic = self._letters.topic
        if not isinstance(cause.error, DiscardedChunkError):
            what = "goes to" if len(letters) == 1 else f"goes as {len(letters)} chunks to"
            self._log(sources[-1], f"{what} {self._topic_name}", cause.error)
        # A record that a topic has refused may have a wrong timestamp, with which its letter would be refused too.
        unfit, now_s = isinstance(cause.error, RecordUnfitError), self._runtime.time()
        if unfit or not all(topic.takes_timestamp(each.timestamp, now_s, CLOCKS_APART_MS) for each in letters):
            return [Record(letter.key, letter.value, letter.headers, int(now_s * 1000)) for letter in letters]
        return letters

    def _cause(self, source: SourceRecord, error: WideloadError) -> Cause | RecordError:
        """The cause for a dead letter, for which it is counted; a failure if there is no dead-letter topic."""
        if self._letters is None:  # the first one ends the flow (`end`), and those behind it are read again
            advice = '; errors.tolerance = "all" and a dead-letter topic would let the records behind it pass'
            return RecordError(source, error, advice)
        self._stats.count_failed(source, reason_of(error))
        settings = self._settings
        stage = ",".join(settings.transforms)
        return Cause(
            error, pipeline=settings.name, stage=stage, context=settings.dead_letter_context, mask=without_secrets
        )

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
