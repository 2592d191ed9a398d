"""The register of troubles: what is wrong with the brokers, the group or the store of a pipeline, and since when.

The code that notices a trouble notes it here, and ends it. `/health`, the metrics, REST and the log read the register.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from transforms.logger_name import logger_name
from transforms.record import SourceRecord

log = logging.getLogger(logger_name(__name__))

UNANSWERED_S = 10.0
"""A broker or group that takes longer to answer is reported."""

_JOINS_S = 3.0  # joining a group without other members takes less time
_CLUSTER_AGAIN_S = 300.0
_STORE_AGAIN_S = 30.0
_MINUTE_S = 60
_PLACE = "topic %s, partition %d, offset %d"
_NEVER_LEFT_OUT: dict[str, object] = {"fields": {}}  # see `app.log_filters.RepeatFilter`


@dataclass(frozen=True, eq=False, slots=True)
class Kind:
    """A kind of trouble.

    Attributes:
        sentence: the message. `{}` stands for what is noted, `{since}` for a time, and `{more}` for `others`.
        others: counts the troubles that are not reported, as only the oldest of the kind is; None if each is reported.
        memory_s: how long a trouble is reported after it was last seen. A broker that gets no requests may be up again.
        lasts: whether a trouble that is seen again after that has lasted all the time.
        unless: kinds of which this one is a consequence: it is not reported while one of them is.
    """

    sentence: str
    others: str | None = None
    memory_s: float = math.inf
    lasts: bool = False
    unless: tuple[Kind, ...] = ()


AT_STORE = Kind("{}")  # records for which the store is called, or that wait for it: not a trouble as such
STORE = Kind("{}", others="")
WITHOUT_STORE = Kind("{}", others="", unless=(STORE,))
UNANSWERED = Kind("broker {} does not answer since {since}", memory_s=60.0, lasts=True)
THROTTLED = Kind(
    "broker {} makes this client wait for a quota since {since} (producer_byte_rate, consumer_byte_rate or "
    "request_percentage)",
    memory_s=1.0,  # two waits that are closer together count as one
)
LEADERLESS = Kind("{}{more} without a leader since {since}", others=" and {} more", unless=(UNANSWERED, THROTTLED))
SHORT = Kind("{} (since {since})")
# Brokers before Kafka 3.7 may require more replicas than there are; and topics are checked only now and then.
REFUSED = Kind(
    "topic {} accepts no records: brokers answer that fewer replicas are in sync than min.insync.replicas (since "
    "{since})",
    others="",
    unless=(SHORT,),
)
GROUP = Kind("group {} {} since {since}", others="")
OFFSETS = Kind(
    "broker {} does not know the committed offsets since {since}: topic __consumer_offsets, partition {}, waits for "
    "its replicas; start the brokers that have them",
    others="",
)
UNREADABLE = Kind(
    "topic {}, partition {} cannot be read: {} since {since}, the log of the broker that leads it has the reason{more}",
    others=" and {} more partitions",
)
JOINS_LONG = Kind(
    "waits since {since} for other members of group {}: for one that was killed until {} at the latest "
    "(consumer.session.timeout.ms), for one that finishes its records until {} (consumer.max.poll.interval.ms)"
)
JOINS = Kind("joins group {}", unless=(JOINS_LONG,))

OF_STORE = (STORE, WITHOUT_STORE)
OF_BROKERS = (UNANSWERED, THROTTLED, LEADERLESS)
OF_TOPICS = (SHORT, REFUSED)
OF_CLUSTER = (*OF_BROKERS, *OF_TOPICS, GROUP, OFFSETS, UNREADABLE)
_OUTLIVING = (UNANSWERED, SHORT)


@dataclass(slots=True)
class _Trouble:
    """The arguments of the kind's sentence, since when it lasts, and from what age on it is reported."""

    args: tuple[object, ...]
    since_s: float
    seen_s: float
    patience_s: float


class Episode:
    """When a lasting trouble is logged: at its start, and every `again_s` until it is over.

    If a `quiet` episode starts within this time after the last line, its first line is delayed. `since_s` is the start.
    """

    def __init__(self, clock: Callable[[], float], again_s: float, *, quiet: bool = False) -> None:
        self.since_s: float | None = None
        self._clock = clock
        self._again_s = again_s
        self._quiet = quiet
        self._logged = False
        self._logged_s = -math.inf

    def due(self) -> bool:
        """Starts or continues the episode; returns whether it is time for a line."""
        now_s = self._clock()
        due = now_s - self._logged_s >= self._again_s
        if self.since_s is None:
            self.since_s, self._logged = now_s, False
            due = due or not self._quiet
        if due:
            self._logged, self._logged_s = True, now_s
        return due

    def end(self) -> float | None:
        """Ends the episode, if it has started; returns how long it has lasted, if it was logged."""
        since_s, self.since_s = self.since_s, None
        return self._clock() - since_s if since_s is not None and self._logged else None


class Troubles:
    """The troubles of one pipeline, by a monotonic clock. Belongs to one event loop.

    Attributes:
        refresh: notes the troubles that are only found by a check.
        only: for kinds of which not all are reported, whether a trouble is, by its name.
    """

    def __init__(self, pipeline: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.refresh: Callable[[], None] = lambda: None
        self.only: dict[Kind, Callable[[Any], bool]] = {}
        self.clock = clock
        self._pipeline = pipeline
        self._noted: defaultdict[Kind, dict[Hashable, _Trouble]] = defaultdict(dict)
        self._cluster = Episode(clock, _CLUSTER_AGAIN_S)
        self._joining = Episode(clock, math.inf)
        self._store = Episode(clock, _STORE_AGAIN_S, quiet=True)
        self._failures = 0
        self._failure = ""

    def note(
        self,
        kind: Kind,
        name: Hashable,
        *args: object,
        since_s: float | None = None,
        seen_s: float | None = None,
        patience_s: float = 0.0,
    ) -> None:
        """Notes a trouble, or that it lasts.

        Args:
            kind: the kind.
            name: distinguishes it from others of its kind, and is the default of `args`.
            args: for the sentence of the kind.
            since_s: since when it lasts; None for now.
            seen_s: when it was seen; None for now.
            patience_s: the age from which on it is reported.
        """
        now_s = self.clock()
        since_s, seen_s = now_s if since_s is None else since_s, now_s if seen_s is None else seen_s
        former = self._noted[kind].get(name)
        if former is not None and (kind.lasts or now_s - former.seen_s < kind.memory_s):
            since_s, seen_s = min(since_s, former.since_s), max(seen_s, former.seen_s)
        self._noted[kind][name] = _Trouble(args or (name,), since_s, seen_s, patience_s)

    def end(self, kind: Kind, name: Hashable) -> None:
        """Ends a trouble, if it was noted."""
        self._noted[kind].pop(name, None)

    def note_all(self, kind: Kind, names: Iterable[Hashable]) -> None:
        """Notes these troubles of a kind, and ends its others."""
        former, now_s = self._noted[kind], self.clock()
        self._noted[kind] = {name: former.get(name, _Trouble((name,), now_s, now_s, 0.0)) for name in names}

    @contextmanager
    def lasting(self, kind: Kind, *args: object, patience_s: float = 0.0) -> Iterator[None]:
        """Notes a trouble for as long as the body lasts."""
        noted, name, now_s = self._noted[kind], object(), self.clock()
        noted[name] = _Trouble(args, now_s, now_s, patience_s)
        try:
            yield
        finally:
            noted.pop(name, None)

    @contextmanager
    def joining(self, group_id: str, session_s: float, poll_s: float) -> Iterator[None]:
        """For a body that joins a group, whose coordinator makes it wait for known members.

        A worker that was killed has not left the group: its absence is noticed when its session expires. A worker that
        processes records may finish them first. Other members are assumed to have the time-outs of this one.
        """
        until = group_id, ago(-session_s), ago(-poll_s)
        with self.lasting(JOINS, group_id), self.lasting(JOINS_LONG, *until, patience_s=_JOINS_S):
            yield

    def has(self, kind: Kind) -> bool:
        """Whether a trouble of a kind is noted, reported or not."""
        return bool(self._noted[kind])

    def end_flow(self) -> None:
        """Ends the troubles that the next flow notices itself: all but silent brokers, and topics short of replicas."""
        for kind in self._noted.keys() - _OUTLIVING:
            del self._noted[kind]

    def forget(self) -> None:
        """Ends all troubles, without a log line: until the next flow it is not known whether they last."""
        self.refresh = lambda: None
        self._noted.clear()
        self._cluster.end()

    # --- the store ---------------------------------------------------------------------------------------------------

    def store_fails(self, kind: Kind, name: Hashable, text: str, line: str, record: SourceRecord | None = None) -> None:
        """Notes a failure of the store, and counts it.

        `name` is what the store was called for, and `record` its record. `line` is logged; everything else reports
        `text`.
        """
        self.note(kind, name, text)
        self._failures += 1
        self._failure = line
        if self._store.since_s is None and self._store.due():
            if self._failures > 1:
                line = f"{line} (and {self._failures - 1} more failures since the last line)"
            self._failures = 0
            place = () if record is None else (record.topic, record.partition, record.offset)
            template = f"pipeline %s: {_PLACE} waits: %s" if place else "pipeline %s: %s"
            log.warning(template, self._pipeline, *place, line)

    def store_answers(self, kind: Kind, name: Hashable) -> None:
        """Ends a trouble with the store, as it has answered; the end of the last one ends the outage."""
        self.end(kind, name)
        if not any(self._noted[each] for each in OF_STORE):
            self._log_end(self._store, "the store answers")

    # --- reports -----------------------------------------------------------------------------------------------------

    @property
    def awaited(self) -> str | None:
        """What a flow that joins its group waits for, and until when at the latest; None if no flow joins."""
        return self.text(*OF_BROKERS, JOINS_LONG, JOINS) if self.has(JOINS) else None

    def text(self, *kinds: Kind) -> str | None:
        """The sentences of troubles of these kinds, in this order; None if there are none."""
        self.refresh()
        return "; ".join(said for kind in kinds for said in self._sentences(kind)) or None

    def _sentences(self, kind: Kind) -> Iterator[str]:
        reported = self._reported(kind)
        if any(self._reported(each) for each in kind.unless):
            return
        more = kind.others.format(len(reported) - 1) if kind.others and reported[1:] else ""
        for each in reported if kind.others is None else reported[:1]:
            yield kind.sentence.format(*each.args, since=ago(self.clock() - each.since_s), more=more)

    def _reported(self, kind: Kind) -> Sequence[_Trouble]:
        """The troubles of a kind that are reported, the oldest first."""
        now_s, only = self.clock(), self.only.get(kind)
        reported = (
            each
            for name, each in self._noted[kind].items()
            if now_s - each.since_s >= each.patience_s and now_s - each.seen_s < kind.memory_s
            if only is None or only(name)
        )
        return sorted(reported, key=lambda each: each.since_s)

    # --- log ---------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Logs what is due. Call it about once a second."""
        text = self.text(*OF_CLUSTER)
        if text is None:
            self._log_end(self._cluster, "brokers and group answer")
        elif self._cluster.due():
            log.warning("pipeline %s waits: %s", self._pipeline, text, extra=_NEVER_LEFT_OUT)
        if not self._reported(JOINS_LONG):
            self._joining.end()
        elif self._joining.due():
            log.info("pipeline %s %s", self._pipeline, self.awaited)
        if not any(self._noted[each] for each in OF_STORE):
            self._store.end()  # no record waits any more, for whatever reason
        elif self._store.due():
            self._remind_of_store(ago(self.clock() - (self._store.since_s or 0.0)))

    def _log_end(self, episode: Episode, what: str) -> None:
        lasted_s = episode.end()
        if lasted_s is not None:
            log.info("pipeline %s: %s again, after %s", self._pipeline, what, lasted(lasted_s), extra=_NEVER_LEFT_OUT)

    def _remind_of_store(self, since: str) -> None:
        waiting = [each.args[0] for each in self._noted[AT_STORE].values()]
        template = "pipeline %s: the store fails since %s, %d times since the last line: %s"
        args: list[object] = [self._pipeline, since, self._failures]
        if waiting:
            record: Any = waiting[0]
            template = template.replace(": %s", f"; %d records wait for it, the first is {_PLACE}: %s")
            args += [len(waiting), record.topic, record.partition, record.offset]
        log.warning(template, *args, self._failure)
        self._failures = 0


def ago(seconds: float) -> str:
    """The time so many seconds ago, as text, by the current clock."""
    return datetime.fromtimestamp(time.time() - seconds, UTC).isoformat(timespec="seconds")


def lasted(seconds: float) -> str:
    """A duration as text: `0.4 s`, `1:02:03`, `3 days, 1:02:03`."""
    return f"{seconds:.1f} s" if seconds < _MINUTE_S else str(timedelta(seconds=round(seconds)))
