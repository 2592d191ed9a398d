"""The state of every reference of topics.

The ends of the topics are fixed before the store is listed. A payload is published before its record, so if a payload
is not in the listing, the store is asked for its path; only if that fails too, the payload is missing. Payloads in
directories of other topics are asked for one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, lru_cache, partial
from heapq import nsmallest
from typing import NamedTuple, cast

from app.config.settings import ClientSettings
from app.kafka.clients import ClusterError
from app.kafka.spans import TopicSpans, described
from app.payloads.engine import Engine, Frame, Row
from app.payloads.inventory import LISTED, listed, microseconds
from app.payloads.scan import Found, references
from stores.payload import verify
from stores.registry import open_store
from stores.store import Check, Lifecycle, List, PayloadStore, Stat, Store
from transforms.compression import Codec
from transforms.errors import (
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadTooLargeError,
    ReferenceRefusedError,
    TransformError,
)
from transforms.formats import FORMATS, FormatName
from transforms.found_references import FoundReference, ReferenceFinder
from transforms.inflate import DEFAULT_MAX_BYTES, Inflate
from transforms.orphans import Listed
from transforms.reference import Encryption, Reference
from transforms.reference_state import Answer, Lifetimes, state

FINDING = (
    "path string, topic string, partition int, offset long, timestamp timestamp, key binary, which string, "
    "format string, size long, checksum string, compression string, encryption string, state string, detail string, "
    "stored long, published timestamp, expires timestamp, record_until timestamp"
)
"""The columns of a `Finding`."""

_LAST_US = 2**63 - 1
_DAY_US = 86_400_000_000
_EXAMPLES = 10
_MOST_FOLDERS = 1_000


class Finding(NamedTuple):
    """A reference with its state; times are in microseconds since 1970, and None if there is no room for them.

    Attributes:
        state, detail: see `transforms.reference_state.state`.
        stored, published: the bytes in the store, and when they were stored; None if not known.
        expires: when a rule of the store deletes the payload; None for never.
        record_until: when Kafka may delete the record; None for never.
    """

    path: str | None
    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: bytes | None
    which: str
    format: FormatName | None
    size: int | None
    checksum: str | None
    compression: str | None
    encryption: str | None
    state: str
    detail: str | None
    stored: int | None
    published: int | None
    expires: int | None
    record_until: int | None


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """What is audited.

    Attributes:
        client: how to reach the cluster.
        store: the configuration of the store; may hold secrets.
        topics: each with the format of its references, and the keys that verify them.
        newest_only: whether to leave out the records of compacted topics that a later one has overwritten; a new
            group reads those that are still in the log.
        verify: whether to read every payload.
        report: where all findings are written; None for nowhere.
    """

    client: ClientSettings
    store: Mapping[str, object] = field(repr=False)
    topics: Mapping[str, ReferenceFinder] = field(repr=False)
    newest_only: bool = False
    verify: bool = False
    report: str | None = None


@dataclass(slots=True)
class Audit:
    """The result of a run.

    Attributes:
        states: by topic, how many references have which state; see `transforms.reference_state.STATES`.
        stored: the bytes of all payloads that were found, each counted once.
        examples: some references with a state other than `ok`, in the order of the log.
        notes: sentences on what could not be checked.
    """

    states: dict[str, dict[str, int]]
    stored: int = 0
    examples: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        """How many references have a state other than `ok`."""
        return sum(count for states in self.states.values() for name, count in states.items() if name != "ok")


@dataclass(frozen=True, slots=True)
class Rule:
    """The first rule of the store to delete the payloads of a topic: at an age, or from a day on; in microseconds."""

    text: str
    age_us: int | None
    date_us: int | None


def audit(engine: Engine[Frame], settings: AuditSettings) -> tuple[Frame, Audit]:
    """Every reference as a `Finding`, and what they come to.

    Raises:
        ConfigurationError: the user can set it right.
        WideloadError: any other failure.
    """
    with closing(open_store(settings.store)) as store:
        if isinstance(store, Check):
            store.check(writing=False)
        if settings.report is not None:
            engine.check_new(settings.report)
        topics = described(settings.client, {"--topic": settings.topics})
        result = Audit({name: {} for name in topics})
        root = store.root.uri if isinstance(store, Store) else None
        with engine.step("reading the topics"):
            finders = [(topics[name], replace(finder, root=root)) for name, finder in settings.topics.items()]
            found = references(engine, settings.client, finders, committed=True, newest_only=settings.newest_only)
            folders = {
                name for frame in found for some in engine.gathered(frame, partial(_folders, root)) for name in some
            }
        for name, after in described(settings.client, {"--topic": settings.topics}).items():
            if after.topic.id != topics[name].topic.id:
                raise ClusterError(
                    f"topic {name} was deleted and created again while it was read; run it again", retriable=True
                )
        comparison = Comparison(
            store=settings.store,
            root=root,
            rules=_rules(store, folders, result.notes),
            retention_ms={
                name: None if each.retention.forever else each.topic.retention_ms for name, each in topics.items()
            },
            max_bytes=store.max_bytes if isinstance(store, Store) else DEFAULT_MAX_BYTES,
            verify=settings.verify,
        )
        with engine.step("asking the store"):
            listing = engine.spread(
                [*topics] if isinstance(store, List) else [], partial(listed, settings.store), LISTED
            )
            findings = engine.by_path([listing, *found], comparison, FINDING)
            for tally in engine.gathered(findings, Tally.of):
                for (topic, name), number in tally.states.items():
                    result.states[topic][name] = result.states[topic].get(name, 0) + number
                result.stored += tally.stored
                result.examples = nsmallest(_EXAMPLES, [*result.examples, *tally.examples], key=_place)
    if settings.report is not None:
        with engine.step("writing the report"):
            engine.save(findings, settings.report)
    _note_overwritten(topics, settings, result)
    return findings, result


def _folders(root: str | None, rows: Iterable[Row]) -> set[str]:
    """The directories of the store to which references lead; not many more than are looked at."""
    found: set[str] = set()
    for path, *_ in rows:
        if root is not None and path is not None and path.startswith(root) and len(found) <= _MOST_FOLDERS:
            found.add(path[len(root) : len(root) + 300].partition("/")[0])
    return found


def _rules(store: PayloadStore, folders: Iterable[str], notes: list[str]) -> dict[str, Rule]:
    """For each directory, the first rule to delete its payloads."""
    found: dict[str, Rule] = {}
    if not isinstance(store, Lifecycle) or not isinstance(store, Store):
        return found
    own = sorted(name for name in folders if store.root.holds(f"{store.root.uri}{name}/any"))
    if len(own) > _MOST_FOLDERS:
        notes.append(
            f"it is not known whether payloads expire: references lead to more than {_MOST_FOLDERS:,} directories"
        )
        return found
    for name in own:
        try:
            rules = [rule for rule in store.expiry_rules(name) if not rule.tagged]
        except PayloadStoreError as exc:
            notes.append(f"it is not known whether payloads expire: {exc}")
            return {}
        if rules:
            # A rule with a date deletes all payloads that are there on that day, however young they are.
            first = min(rules, key=lambda rule: -1 if rule.days is None else rule.days)
            when = f"after {first.days} d" if first.days is not None else f"from {first.date} on"
            found[name] = Rule(
                f"rule {first.id!r} ({first.scope}) deletes it {when}",
                None if first.days is None else first.days * _DAY_US,
                None if first.date is None else microseconds(datetime.fromisoformat(first.date).replace(tzinfo=UTC)),
            )
    return found


def _note_overwritten(topics: Mapping[str, TopicSpans], settings: AuditSettings, result: Audit) -> None:
    for name, spans in topics.items():
        missing = result.states[name].get("missing", 0)
        if spans.compacted and missing and not settings.newest_only:
            result.notes.append(
                f"topic {name} is compacted, and a reader that starts at the beginning finds {missing:,} records "
                f"without a payload; overwritten ones disappear when Kafka compacts the log, and --newest-only "
                f"excludes them"
            )


# --- the work of a task -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares references with the store: the rows of the first frame are `LISTED`, those of all others `FOUND`.

    Attributes:
        store: its configuration.
        root: the beginning of all its paths, if that is known.
        rules: by directory, the first to delete payloads.
        retention_ms: by topic, how long Kafka keeps records; None if forever.
        max_bytes: the largest payload that readers accept.
        verify: whether each payload is read.
    """

    store: Mapping[str, object] = field(repr=False)
    root: str | None
    rules: Mapping[str, Rule]
    retention_ms: Mapping[str, int | None]
    max_bytes: int
    verify: bool

    def __call__(self, rows: Iterator[tuple[int, Row]]) -> Iterator[Finding]:
        with ExitStack() as stack:

            @cache
            def store() -> PayloadStore:  # most tasks need none
                return stack.enter_context(closing(open_store(self.store)))

            @lru_cache(maxsize=1)  # rows come by path
            def asked(path: str) -> Answer:
                return _asked(store(), path)

            @lru_cache(maxsize=1_000)
            def fault(said: FoundReference) -> tuple[str, str] | None:
                return _fault(store(), self.max_bytes, said)

            payload = None
            for frame, row in rows:
                if frame == 0:
                    payload = Listed(*row)
                    continue
                found = Found(*row)
                said = FoundReference._make([found.which, found.format, found.path, *found[8:]])
                answer = Answer("unknown")
                if payload is not None and payload.path == found.path:
                    answer = Answer("there", payload.stored, payload.modified_us)
                elif found.path is not None and found.error is None:
                    answer = asked(found.path)
                wrong = fault(said._replace(which="value")) if self.verify and answer.state == "there" else None
                times = self._lifetimes(found, answer)
                of_store = (answer.stored, answer.published_us, _room(times.expires_us), _room(times.record_until_us))
                judged = state(said, answer, wrong, times, self.max_bytes)
                yield Finding._make([*found[:4], _room(found.timestamp * 1_000), *found[5:12], *judged, *of_store])

    def _lifetimes(self, found: Found, answer: Answer) -> Lifetimes:
        kept_ms = self.retention_ms[found.topic]
        until_us = None if kept_ms is None else (found.timestamp + kept_ms) * 1_000
        rule = None
        if self.root is not None and found.path is not None and found.path.startswith(self.root):
            rule = self.rules.get(found.path[len(self.root) :].partition("/")[0])
        if rule is None:
            return Lifetimes(None, until_us)
        expires_us = rule.date_us
        if rule.age_us is not None and answer.published_us is not None:
            expires_us = answer.published_us + rule.age_us
        return Lifetimes(expires_us, until_us, rule.text)


def _room(time_us: int | None) -> int | None:
    return time_us if time_us is not None and -_LAST_US <= time_us <= _LAST_US else None


def _asked(store: PayloadStore, path: str) -> Answer:
    """The store's answer; if the store cannot know without reading it, the payload is read."""
    try:
        if isinstance(store, Stat):
            info = store.stat(path)
            return Answer("there", info.size, microseconds(info.modified))
        return Answer("there", len(store.download(path)))
    except PayloadStoreError as exc:
        return Answer(_state(exc), detail=str(exc))


def _fault(store: PayloadStore, max_bytes: int, found: FoundReference) -> tuple[str, str] | None:
    """Reads a payload; the state that it has if it is not the one of the reference, and why."""
    assert found.path is not None
    assert found.format is not None
    encryption = None if found.encryption is None else Encryption("-", b"", b"")  # stored bytes are verified without it
    codec = cast("Codec | None", found.compression)
    reference = Reference(found.path, found.size, found.checksum, codec, encryption=encryption)
    try:
        verify(store, reference, Inflate(max_bytes, FORMATS[found.format]))
    except (PayloadStoreError, TransformError) as exc:
        return _state(exc), str(exc)
    return None


def _state(error: PayloadStoreError | TransformError) -> str:
    if isinstance(error, PayloadCorruptError):
        return error.what
    states = {PayloadTooLargeError: "size", PayloadNotFoundError: "missing", ReferenceRefusedError: "refused"}
    return next((name for kind, name in states.items() if isinstance(error, kind)), "unknown")


class Tally(NamedTuple):
    """Findings, counted: those of each state by topic, the bytes of each payload once, and the first wrong ones."""

    states: Mapping[tuple[str, str], int]
    stored: int
    examples: Sequence[Finding]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Tally:
        """Counts findings, those of one path side by side."""
        states: Counter[tuple[str, str]] = Counter()
        stored, path = 0, None

        def wrong() -> Iterator[Finding]:
            nonlocal stored, path
            for each in map(Finding._make, rows):
                states[each.topic, each.state] += 1
                if each.path != path:
                    stored, path = stored + (each.stored or 0), each.path
                if each.state != "ok":
                    yield each

        examples = nsmallest(_EXAMPLES, wrong(), key=_place)
        return cls(states, stored, examples)


def _place(finding: Finding) -> tuple[str, int, int, str]:
    return finding.topic, finding.partition, finding.offset, finding.which
