"""The log of a pipeline from start to end: what it does, each change of its state, how it ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from app.cluster.preflight import Plan
from app.kafka.structs import TopicPartition
from app.kafka.troubles import Episode, Troubles, lasted
from app.pipeline.report import PipelineReport
from stores.registry import STORE_CLASS
from stores.store import PayloadStore, Store
from transforms.logger_name import logger_name
from transforms.text import bytes_text

log = logging.getLogger(logger_name(__name__))

_LOOK_S = 1.0
_RESTARTS_S = 30.0
_MOST_NAMED = 5
_QUIET = ("PAUSED", "STOPPED")  # states on request; the others are logged with their reasons


class StateLog:
    """The log of one pipeline, with its troubles. Belongs to one event loop."""

    def __init__(self, pipeline: PipelineReport, troubles: Troubles) -> None:
        self._pipeline = pipeline
        self._troubles = troubles
        self._name = pipeline.settings.name
        self._clock = troubles.clock
        self._began_s = troubles.clock()
        self._state = pipeline.status
        self._start = ""
        self._failing = Episode(troubles.clock, _RESTARTS_S)
        self._error = ""
        self._unlogged = 0

    async def follow(self) -> None:
        """Looks at the pipeline once a second, until it is cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Logs what has changed since the last look."""
        state, before = self._pipeline.status, self._state
        self._state = state
        if state != before and (state in _QUIET or (before in _QUIET and state == "RUNNING")):
            log.info("pipeline %s is %s now; it was %s", self._name, state, before, extra=_fields(state=state))
        self._troubles.look()

    def starts(self, plan: Plan, store: PayloadStore | None) -> None:
        """Logs from where to where the pipeline goes, how, with which limits; again only if that has changed.

        And where its group begins, if that is known.
        """
        settings = self._pipeline.settings
        said = [
            f"{', '.join(_topic(each.name, each.partitions) for each in plan.sources)} to "
            f"{_topic(plan.sink.name, plan.sink.partitions)} by {', '.join(settings.transforms)}",
            f"group {settings.group_id}",
            settings.guarantee.name,
        ]
        if settings.offloads:
            said.append(f"values over {bytes_text(settings.threshold_bytes)} are offloaded")
        said.append(f"output batches up to {bytes_text(plan.sink.max_message_bytes)}")
        location = None
        if store is not None:
            location = store.root.uri if isinstance(store, Store) else str(settings.store[STORE_CLASS])
            said.append(f"payloads in {location}")
        said.append(f"errors.tolerance {settings.errors_tolerance}")
        if plan.dead_letters is not None:
            said.append(f"dead letters to {_topic(plan.dead_letters.name, plan.dead_letters.partitions)}")
        start, before = "; ".join(said), self._start
        self._start = start
        if start == before:
            return
        fields = _fields(
            sources=[each.name for each in plan.sources],
            sink=plan.sink.name,
            transforms=list(settings.transforms),
            group=settings.group_id,
            dead_letter_topic=None if plan.dead_letters is None else plan.dead_letters.name,
            payloads=location,
        )
        log.info("pipeline %s %s: %s", self._name, "continues" if before else "starts", start, extra=fields)
        if plan.beginning:
            log.info("pipeline %s: %s", self._name, plan.beginning, extra=_fields(group=settings.group_id))

    def is_asked(self, what: str) -> None:
        """Logs a request to the pipeline."""
        log.info("pipeline %s is asked %s", self._name, what, extra=_fields(state=self._pipeline.status))

    def fails(self, reason: str) -> None:
        """Logs that the pipeline has failed for good."""
        line = reason.replace("\n", "; ")
        log.error("pipeline %s has failed: %s", self._name, line, extra=_fields(state="FAILED"))

    def restarts(self, error: Exception, delay_s: float) -> None:
        """Logs that an error which may pass has ended the flow; of one that stays, once in 30 s, and how often."""
        text = str(error)
        if text != self._error:
            self._error, self._unlogged = text, 0
            self._failing.end()
        if not self._failing.due():
            self._unlogged += 1
            return
        unlogged = f" (and {self._unlogged} times since the last line)" if self._unlogged else ""
        self._unlogged = 0
        fields = _fields(state="RESTARTING")
        log.warning("pipeline %s restarts in %.1f s%s: %s", self._name, delay_s, unlogged, text, extra=fields)

    def ends(self, left: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Logs how the pipeline has ended: what it has moved, and what is not committed.

        Args:
            left: see `Lanes.uncommitted`.
        """
        stats, state = self._pipeline.stats, self._pipeline.status
        log.info(
            "pipeline %s has ended%s after %s: %d records read, %d written, %d dead letters; %s",
            self._name,
            ", as it has failed," if state == "FAILED" else "",
            lasted(self._clock() - self._began_s),
            stats.records_in,
            stats.records_out,
            stats.dead_letters,
            uncommitted_text(left),
            extra=_fields(
                state=state,
                records_in=stats.records_in,
                records_out=stats.records_out,
                dead_letters=stats.dead_letters,
                uncommitted=sum(count for _, count in left.values()),
            ),
        )


def uncommitted_text(left: Mapping[TopicPartition, tuple[int, int]]) -> str:
    """What is read again, for people; see `Lanes.uncommitted`."""
    if not left:
        return "all that was read is committed"
    named = [
        f"{count:,} from topic {each.topic}, partition {each.partition}, offset {offset} on"
        for each, (offset, count) in sorted(left.items())
    ]
    others = f", and of {len(named) - _MOST_NAMED} more partitions" if named[_MOST_NAMED:] else ""
    return f"not committed, and read again: {', '.join(named[:_MOST_NAMED])}{others}"


def _topic(name: str, partitions: int) -> str:
    return f"{name} ({partitions} partition{'' if partitions == 1 else 's'})"


def _fields(**fields: object) -> dict[str, object]:
    return {"fields": fields}
