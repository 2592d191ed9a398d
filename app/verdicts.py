"""Verdicts on records that fail: a dead letter in place of the result, a drop by a rule, or the end of the flow."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from app.assembly import chunks_of
from app.dead_letter import dead_letter
from app.ending import RecordError
from transforms.errors import (
    DiscardedChunkError,
    PayloadNotFoundError,
    PayloadStoreError,
    RecordTooLargeError,
    ReferenceRefusedError,
    TransformError,
)
from transforms.size import batch_of_one_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.budget import Share
    from app.ending import Ending
    from app.lane import Slot, SourceRecord
    from app.preflight import Plan
    from app.settings import PipelineSettings
    from app.stats import PipelineStats
    from transforms.assembly import Discarded
    from transforms.errors import WideloadError
    from transforms.record import RecordLike

__all__ = ["Verdicts"]

log = logging.getLogger(__name__)


class Verdicts:
    """Decides by `errors.tolerance`, and by what the error says, what becomes of a record. Belongs to one event loop.

    Args:
        settings: the pipeline's.
        plan: what the preflight found.
        share: the budget's bytes are given back where a letter is smaller than what was held.
        stats: what is counted.
        ending: of the flow, where no record may pass this one.
    """

    def __init__(
        self, settings: PipelineSettings, plan: Plan, share: Share, *, stats: PipelineStats, ending: Ending
    ) -> None:
        self._settings = settings
        self._topic = plan.dead_letters
        self._topic_name = "" if plan.dead_letters is None else plan.dead_letters.name
        self._share = share
        self._stats = stats
        self._ending = ending

    @contextlib.contextmanager
    def of(self, slot: Slot) -> Iterator[None]:
        """Gives what is raised in here its verdict: the slot has its result then, or the flow ends. Raises nothing."""
        try:
            try:
                yield
            except (TransformError, PayloadNotFoundError, ReferenceRefusedError) as exc:
                self._share.give(slot.finish((self._letter(slot.source, exc),), dead=True))
                self._log(slot.source, f"goes to {self._topic_name}", exc)
        except RecordError as exc:
            self._ending.fail(exc)
        except PayloadStoreError as exc:
            self._ending.fail(RecordError(slot.source, exc, "; the store refuses, so no record can pass it"))
        except Exception as exc:  # noqa: BLE001  # a defect of ours must stop the pipeline as loudly
            self._ending.fail_by_defect(exc, slot.source)

    def discard(self, event: Discarded, slot: Slot) -> None:
        """Gives a slot the dead letters of all chunks of a message that will not be whole, or ends the flow."""
        error = DiscardedChunkError(event.uuid, event.reason, event.detail)
        with self.of(slot):
            letters = tuple(self._letter(chunk, error) for chunk in chunks_of(event))
            self._share.give(slot.finish(letters, dead=True))
            # One line: a message may have a hundred thousand chunks, and nothing else goes on meanwhile.
            others = f"and {len(letters) - 1} other chunks go" if letters[1:] else "goes"
            self._log(chunks_of(event)[0], f"{others} to {self._topic_name}", error)

    def drops(self, event: Discarded) -> bool:
        """True where a rule of the configuration drops the chunks; that is logged and counted."""
        if event.reason != "evicted" or not self._settings.chunks.drops_oldest:
            return False
        chunks = chunks_of(event)
        self._stats.evicted_messages += 1
        error = DiscardedChunkError(event.uuid, event.reason, event.detail)
        self._log(chunks[0], f"and {len(chunks) - 1} other chunks are dropped", error)
        return True

    def _letter(self, source: SourceRecord, error: WideloadError) -> RecordLike:
        """The dead letter of a record that can never succeed.

        Raises:
            RecordError: there is no dead-letter topic, or it would not take the letter.
        """
        topic = self._topic
        if topic is None:
            advice = '; errors.tolerance = "all" and a dead-letter topic would let the records behind it pass'
            raise RecordError(source, error, advice) from error
        stage = ",".join(self._settings.transforms)
        # A chunk is as large as its topic takes; what is wrong with it must then be read in the log.
        for context in (True, False) if self._settings.dead_letter_context else (False,):
            letter = dead_letter(source, error, pipeline=self._settings.name, stage=stage, context=context)
            size = batch_of_one_bytes(letter)
            if size <= topic.max_message_bytes:
                break
        else:
            too_large = RecordTooLargeError(topic.name, size, topic.max_message_bytes)
            raise RecordError(source, error, f"; and it cannot be a dead letter: {too_large}") from error
        self._stats.dead_letters += 1
        return letter

    def _log(self, source: SourceRecord, what: str, error: WideloadError) -> None:
        log.warning(
            "pipeline %s: topic %s, partition %d, offset %d %s: %s",
            self._settings.name,
            source.topic,
            source.partition,
            source.offset,
            what,
            error,
        )
