"""Payloads that no record refers to any more, and their removal, by any engine.

A payload is removed if it is older than the minimum age, and no record in the topics refers to it after the
store was listed. A record that refers to it now must have published it again (see `PayloadStore.publish`). Then it has
another age than in the listing, and the store compares the age right before it removes the payload. Each step may be
broken off: the next run removes the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from app.kafka.spans import TopicSpans
from app.payloads.engine import Engine, Frame, Row
from app.payloads.inventory import LISTED, listed, microseconds, removed, require
from app.payloads.scan import Found, references
from app.payloads.search import Search, search
from app.payloads.sweep_settings import DELIVERY, LEAST_GRACE, SweepSettings
from stores.registry import open_store
from stores.store import Check, Delete, DeleteUnchanged, List, ListTopics, PayloadStore, Stat, Store
from transforms.errors import ConfigurationError, shown
from transforms.found_references import HIDDEN, ReferenceFinder
from transforms.orphans import Marking, Sum, Tally
from transforms.retention import duration_text
from transforms.text import printable

MARKED = "path string, topic string, size long, modified timestamp, state string, why string"
"""The columns of a payload with its state, one of `transforms.orphans.STATES`; `size` are stored bytes."""

DELETING = "deleting"
"""The step in which payloads are removed."""

_REMOVED = "path string, outcome string, size long, error string"
_ERROR = 1_000  # characters, which may be text of a record


class Folder(NamedTuple):
    """The payloads of one topic.

    Attributes:
        payloads, bytes: all payloads that the store lists.
        live: how many a record refers to.
        young: how many others are not older than the minimum age.
        foreign: how many more have no name of a payload; they stay.
        orphans, orphan_bytes: the rest: older, and no record refers to them.
        oldest: when the oldest orphan was published; None if there is none.
    """

    topic: str
    payloads: int
    bytes: int
    live: int
    young: int
    foreign: int
    orphans: int
    orphan_bytes: int
    oldest: datetime | None


@dataclass(slots=True)
class Sweep:
    """The result of a run.

    Attributes:
        cutoff: payloads that were published before this are old enough.
        search: the other topics whose records refer to the payloads.
        references: the references of records that count.
        folders: the payloads, by topic.
        left_alone: topics that have payloads in the store, and were not swept.
        quarantined: how many records of each quarantined topic cannot be read, or lead elsewhere.
        refusals: why nothing was deleted, or would be, in sentences.
        outcomes: number and bytes of payloads by the outcome of their removal; see `stores.store.RemovalOutcome`.
        error: the store's error for a payload that it did not remove.
    """

    cutoff: datetime
    search: Search = field(default_factory=Search)
    references: int = 0
    folders: list[Folder] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    quarantined: Mapping[str, int] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    outcomes: dict[str, Sum] = field(default_factory=dict)
    error: str | None = None

    @property
    def failed(self) -> int:
        """How many payloads the store did not remove."""
        return self.outcomes["failed"].count if "failed" in self.outcomes else 0


def sweep(engine: Engine[Frame], settings: SweepSettings) -> Sweep:
    """Finds the orphans, writes the report, and removes the orphans if that is asked for and nothing is refused.

    Raises:
        ConfigurationError: the user can set it right; nothing was deleted.
        RecordsLostError: records were deleted while they were read.
        WideloadError: any other failure. If it came during the deletion, the next run continues.
    """
    payloads, result = marked(engine, settings)
    if settings.report is not None:
        with engine.step("writing the report"):
            engine.save(payloads, settings.report)
    if settings.delete and not result.refusals and any(folder.orphans for folder in result.folders):
        with engine.step(DELETING):
            outcomes = engine.by_path([payloads], partial(_remove, settings.store), _REMOVED)
            for (name,), found in Tally.merged(engine.gathered(outcomes, _outcomes)).items():
                result.outcomes[name], result.error = found, found.first or result.error
    return result


def marked(engine: Engine[Frame], settings: SweepSettings) -> tuple[Frame, Sweep]:
    """Every payload of the topics with its state, as `MARKED`, and what they come to; nothing is deleted.

    Raises:
        As `sweep`.
    """
    with closing(open_store(settings.store)) as store:
        _check(settings, store)
        if settings.report is not None:
            engine.check_new(settings.report)
        settings.described()  # first of all, to report a wrong name
        if there := settings.still_there():
            raise ConfigurationError(
                "--deleted-topic", f"topic {there[0]} exists on the brokers at {settings.client.bootstrap_servers}"
            )
        result = Sweep(datetime.now(UTC) - settings.grace)
        left_alone = {*store.topics()} - {*settings.swept_topics} if isinstance(store, ListTopics) else ()
        result.left_alone = sorted(left_alone)
        root = store.root.uri if isinstance(store, Store) else None
    with engine.step("searching other topics"):
        result.search = search(settings, root)
    result.refusals += result.search.refusals
    with engine.step("listing the store"):
        listing = engine.spread(settings.swept_topics, partial(listed, settings.store), LISTED)
        engine.gathered(listing, _counted)  # an engine may make rows as late as here
    # After the listing: if a record has begun to refer to a listed payload, it is before these ends.
    topics = settings.described()
    finders = [(spans, ReferenceFinder(settings.format_of(name), root)) for name, spans in topics.items()]
    since_ms = microseconds(result.cutoff) // 1000
    roots = None if root is None else (root, *settings.other_roots)
    with engine.step("reading the topics"):
        found = references(
            engine, settings.client, finders, committed=False, newest_only=settings.newest_only, since_ms=since_ms
        )
        surveying = partial(_survey, frozenset(settings.quarantined), roots)
        survey = Tally.merged(tally for frame in found for tally in engine.gathered(frame, surveying))
    result.refusals += _changes(settings, topics)
    result.refusals += _unreadable(survey, settings, root)
    result.references = survey.of("references").count
    result.quarantined = {name: survey.of("odd", name).count for name in settings.quarantined}
    marking = Marking(microseconds(result.cutoff), settings.any_name or root is None)
    with engine.step("comparing"):
        payloads = engine.by_path([listing, *found], marking.marked, MARKED)
        tally = Tally.merged(engine.gathered(payloads, _states))
    result.folders = [_folder(tally, name) for name in settings.swept_topics]
    result.refusals += _too_many(result.folders, settings.max_delete_fraction)
    return payloads, result


def _check(settings: SweepSettings, store: PayloadStore) -> None:
    require(store, List)
    if not isinstance(store, DeleteUnchanged):
        require(store, Stat, Delete)
    timeout_ms = settings.store.get("large.message.store.timeout.ms")
    in_flight = DELIVERY + timedelta(
        milliseconds=store.timeout_ms if isinstance(store, Store) else timeout_ms if isinstance(timeout_ms, int) else 0
    )
    least = max(LEAST_GRACE, in_flight, settings.in_flight)
    if settings.grace < least and not settings.short_grace:
        raise ConfigurationError(
            "--grace",
            f"found {_age(settings.grace)}, allowed is {_age(least)} or more: payloads are published before their "
            "records; if nothing is being published, --allow-short-grace accepts less",
        )
    if isinstance(store, Check):
        store.check(writing=False)


def _age(duration: timedelta) -> str:
    return duration_text(round(duration.total_seconds() * 1000))


def _survey(quarantined: frozenset[str], roots: tuple[str, ...] | None, rows: Iterable[Row]) -> Tally:
    """Counts references, and those that are `wrong`, lead `elsewhere`, or are `odd` or `hidden` in a quarantine."""
    tally = Tally()
    for found in map(Found._make, rows):
        tally.add(("references",), None)
        error, path = found.error or "", found.path or ""
        elsewhere = not error and roots is not None and not path.startswith(roots)
        place = found.topic, found.partition, found.offset, error, path
        if not error and not elsewhere:
            continue
        if found.topic not in quarantined:
            tally.add(("elsewhere" if elsewhere else "wrong",), place)
            continue
        tally.add(("odd", found.topic), place)
        if error.startswith(HIDDEN):
            tally.add(("hidden",), place)
    return tally


def _changes(settings: SweepSettings, before: Mapping[str, TopicSpans]) -> Iterator[str]:
    """Why the records that were read may not be all, in sentences."""
    after = settings.described()
    for name, spans in before.items():
        if difference := spans.difference(after[name]):
            yield difference
    for name in settings.still_there():
        yield f"topic {name} was created while the others were read, and was given as --deleted-topic"


def _unreadable(survey: Tally, settings: SweepSettings, root: str | None) -> Iterator[str]:
    """Why the references do not show which payloads are live, in sentences."""
    if wrong := survey.of("wrong").first:
        topic, partition, offset, error, _ = wrong
        yield (
            f"{survey.of('wrong').count:,} records are marked as references and cannot be read as "
            f"{settings.format_of(topic)}, the first in topic {topic} partition {partition} offset {offset}: "
            f"{printable(error, _ERROR)}{_advice(topic, error, settings)}"
        )
    if elsewhere := survey.of("elsewhere").first:
        topic, partition, offset, _, path = elsewhere
        yield (
            f"{survey.of('elsewhere').count:,} references lead elsewhere than to {root}, the first in topic {topic} "
            f"partition {partition} offset {offset}: {shown(path)}; is it another name of this store? "
            "If it is another store, use --other-root"
        )
    if hidden := survey.of("hidden").first:
        topic, partition, offset, error, _ = hidden
        yield (
            f"topic {topic} is in quarantine, and its record in partition {partition} at offset {offset} may "
            f"contain a valid reference: it {printable(error, _ERROR)}"
        )


def _advice(topic: str, error: str, settings: SweepSettings) -> str:
    if topic not in settings.topics or len(settings.swept_topics) == 1 or error.startswith(HIDDEN):
        return ""
    return (
        f"; if nobody reads such records, --quarantine {topic} leaves the payloads of this topic alone and sweeps the "
        "others"
    )


def _folder(tally: Tally, topic: str) -> Folder:
    every = {state: found for (name, state), found in tally.items() if name == topic}
    live, young, foreign, orphan = (every.get(state, Sum()) for state in ("live", "young", "foreign", "orphan"))
    oldest = None if orphan.first is None else datetime.fromtimestamp(orphan.first / 1_000_000, UTC)
    payloads, size = sum(each.count for each in every.values()), sum(each.bytes for each in every.values())
    return Folder(topic, payloads, size, live.count, young.count, foreign.count, orphan.count, orphan.bytes, oldest)


def _too_many(folders: Iterable[Folder], most: float) -> Iterator[str]:
    for folder in folders:
        payloads = folder.payloads - folder.foreign
        if folder.orphans > most * payloads:
            yield (
                f"{folder.orphans:,} of the {payloads:,} payloads of topic {folder.topic} would be deleted, which "
                f"is more than --max-delete-fraction {most:g}; make sure that every topic that refers to them is "
                f"specified, then raise the limit"
            )


# --- the work of tasks ------------------------------------------------------------------------------------------------


def _counted(rows: Iterable[Row]) -> int:
    return sum(1 for _ in rows)


def _states(rows: Iterable[Row]) -> Tally:
    tally = Tally()
    for _, topic, size, modified_us, state, _ in rows:
        tally.add((topic, state), modified_us, size)
    return tally


def _remove(store: Mapping[str, object], rows: Iterable[tuple[int, Row]]) -> Iterator[Row]:
    orphans = ((path, size, modified_us) for _, (path, _, size, modified_us, state, _) in rows if state == "orphan")
    for removal in removed(store, orphans):
        yield removal.payload.path, removal.outcome, removal.payload.size, removal.error


def _outcomes(rows: Iterable[Row]) -> Tally:
    tally = Tally()
    for _, outcome, size, error in rows:
        tally.add((outcome,), error, size)
    return tally
