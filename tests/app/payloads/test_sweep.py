"""What a sweep finds, refuses and removes, without Spark: a real broker, the filesystem store and a real S3 server."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from app.config.client import embedded_client_settings
from app.kafka.range_reader import RecordsLostError
from app.kafka.spans import TopicSpans
from app.payloads import inventory
from app.payloads import sweep as sweeping
from app.payloads.local_engine import LocalEngine
from app.payloads.scan import Found
from app.payloads.sweep import Folder, Sweep, _survey, _too_many, _unreadable, sweep
from app.payloads.sweep_settings import SweepSettings
from stores.filesystem import FilesystemStore
from stores.registry import open_store
from stores.store import List, PayloadInfo, Removal
from tests.app.payloads.swept import DAY, delete_records, filesystem, referring, write, write_aborted
from tests.integration.topics import send
from tests.integration.worker_process import until
from tests.s3_server import S3Server
from tests.vectors.bakdata import bakdata_cases
from transforms.errors import ConfigurationError, PayloadNotFoundError, PayloadStoreError
from transforms.formats import FORMATS
from transforms.found_references import ReferenceFinder
from transforms.letter import MARK
from transforms.record import Record
from transforms.reference import KEY, Reference
from transforms.wrapper import Wrap

HOUR = timedelta(hours=1)
COMPACT = {"cleanup.policy": "compact"}
MALFORMED = Record(b"k", b"\xff", [("large-message", b"true")])
MakeTopic = Callable[..., str]


@pytest.fixture
def place(tmp_path: Path, broker: str) -> Place:
    """A store in a folder of this test."""
    return Place(broker, filesystem(tmp_path / "p"))


class Place:
    """A store and a broker, and what a test puts there."""

    def __init__(self, broker: str, store: Mapping[str, object]) -> None:
        self.broker = broker
        self.config = store

    def settings(self, *topics: str, **changes: Any) -> SweepSettings:
        values: dict[str, Any] = {"delete": True, "max_delete_fraction": 1.0, "grace": HOUR}
        client = embedded_client_settings({"bootstrap.servers": self.broker})
        return SweepSettings(client, self.config, topics, **values | changes)

    def publish(self, topic: str, *payloads: bytes, age_s: float = DAY) -> list[str]:
        """Payloads, made older where the store is a folder."""
        with closing(open_store(self.config)) as store:
            paths = [store.publish(topic, payload) for payload in payloads]
        if "filesystem.root" in self.config:
            then = time.time() - age_s
            for path in paths:
                os.utime(path.removeprefix("file://"), (then, then))
        return paths

    def listed(self) -> list[PayloadInfo]:
        with closing(open_store(self.config)) as store:
            assert isinstance(store, List)
            return [*store.list()]

    def there(self) -> set[str]:
        return {info.path for info in self.listed()}

    def send(self, topic: str, *records: Record, partition: int = 0, age_s: float = DAY) -> None:
        """Records a day old: what they overwrite has been so for longer than the grace."""
        write(self.broker, topic, *records, partition=partition, at_ms=round((time.time() - age_s) * 1000))


def tombstone(key: bytes) -> Record:
    return Record(key, None)


def run(settings: SweepSettings) -> Sweep:
    with LocalEngine() as engine:
        return sweep(engine, settings)


def outcomes(found: Sweep) -> dict[str, int]:
    assert found.refusals == []
    return {outcome: each.count for outcome, each in found.outcomes.items()}


def refusal(found: Sweep) -> str:
    return "; ".join(found.refusals)


# --- what is found and removed


def test_sweep_of_a_topic_whose_records_go_by_age(place: Place, make_topic: MakeTopic) -> None:
    """Every record in the log keeps its payload, overwritten, wrapped, aborted or not; the rest goes, if it is old."""
    unlimited = {"message.timestamp.after.max.ms": 2**63 - 1}
    topic, other = make_topic(2, **unlimited), make_topic(**unlimited)
    with closing(open_store(place.config)) as store:
        store.publish(other, b"orphan of another topic")
    (stays,) = place.there()
    nothing = run(place.settings(topic))
    assert (nothing.references, nothing.folders[0].payloads, outcomes(nothing)) == (0, 0, {})

    kept = place.publish(topic, b"1", b"2", b"key", b"shared", b"wrapped", b"aborted", b"odd")
    first, second, key, shared, wrapped, aborted, odd = kept
    (orphan,), (young,) = place.publish(topic, b"orphan"), place.publish(topic, b"young", age_s=60)
    reference = Reference(key, 3)
    place.send(topic, *map(referring, (first, second, shared)), tombstone(b"k"), Record(b"k", b"plain"))
    keyed = Record(reference.value(), b"v", reference.headers(KEY))
    place.send(topic, referring(shared, b"other"), keyed, Wrap().wrap(referring(wrapped)), partition=1)
    write_aborted(place.broker, topic, referring(aborted))
    record, nanoseconds = referring(odd), 1_700_000_000_000_000_000
    send(place.broker, topic, [(0, record.key, record.value, list(record.headers), nanoseconds)])
    send(place.broker, other, [(0, b"k", b"v", [], nanoseconds)])
    dry = run(place.settings(topic, delete=False))
    (folder,) = dry.folders
    assert (folder.payloads, folder.live, folder.young, folder.orphans, folder.orphan_bytes) == (9, 7, 1, 1, 6)
    assert folder.oldest is not None
    assert abs(folder.oldest.timestamp() - (time.time() - DAY)) < 120
    assert (dry.references, dry.left_alone, dry.outcomes) == (8, [other], {})
    assert other not in dry.search.unread
    assert place.there() == {*kept, orphan, young, stays}

    assert outcomes(run(place.settings(topic))) == {"deleted": 1}
    assert place.there() == {*kept, young, stays}
    assert outcomes(run(place.settings(topic))) == {}


def test_carriers(place: Place, make_topic: MakeTopic) -> None:
    """A topic that refers to the payloads and is not given is refused, until it is a carrier, and read, or ignored."""
    topic, copies, plain = (make_topic(2) for _ in range(3))
    carried, _ = place.publish(topic, b"carried", b"orphan")
    (own,) = place.publish(copies, b"of the carrier itself")
    place.send(copies, Record(b"k", b"plain"), referring(carried), partition=1)
    place.send(plain, Record(b"k", b"plain"), referring("s3://elsewhere/x/1"))
    settings = place.settings(topic)
    refused = run(settings)
    assert set(refused.search.found) == {copies}
    assert f"refer to these payloads: {copies} (partition 1 offset 1)" in refusal(refused)
    assert len(place.there()) == 3
    found = run(dataclasses.replace(settings, carriers=(copies,)))
    assert (outcomes(found), found.left_alone) == ({"deleted": 1}, [copies])
    assert place.there() == {carried, own}
    assert outcomes(run(dataclasses.replace(settings, ignored=(f"{copies[:-1]}?",)))) == {"deleted": 1}


def test_sweep_of_formats_without_headers(place: Place, make_topic: MakeTopic) -> None:
    """Each topic is read in its own format, in which an inline value is no reference."""
    topic, carrier = make_topic(), make_topic()
    live, carried, _ = place.publish(topic, b"live", b"carried", b"orphan")
    inline = FORMATS["bakdata-flag"].write_inline(Record(b"k", b"orphan"))
    place.send(topic, referring(live, name="bakdata-flag"), inline, tombstone(b"x"))
    place.send(carrier, referring(carried), Record(b"k", b"plain, and no flag before it"))
    formats = {"reference_format": "bakdata-flag", "formats": {carrier: "wideload"}}
    assert outcomes(run(place.settings(topic, carriers=(carrier,), **formats))) == {"deleted": 1}
    assert place.there() == {live, carried}


def test_sweep_of_a_compacted_topic(place: Place, make_topic: MakeTopic) -> None:
    """What Kafka has not removed keeps its payload, and is read. With `newest_only`, what was overwritten goes."""
    topic = make_topic(2, **COMPACT)
    names = (b"old", b"new", b"gone", b"shared", b"inlined", b"late", b"replaced")
    old, new, gone, shared, inlined, late, replaced = place.publish(topic, *names)
    place.send(topic, *map(referring, (old, gone, shared, inlined), (b"a", b"b", b"c", b"e")), MALFORMED)
    place.send(topic, referring(new, b"a"), *map(tombstone, (b"b", b"c", b"k")), Record(b"e", b"small"))
    place.send(topic, referring(late, b"f"))
    place.send(topic, tombstone(b"f"), age_s=60)  # within the grace
    place.send(topic, referring(shared, b"d"), referring(replaced, b"g"), partition=1)
    # Within the grace too: its timestamp is old, as a mirror's is, but it stands behind one that is not.
    place.send(topic, Record(b"h", b"now"), partition=1, age_s=60)
    place.send(topic, tombstone(b"g"), partition=1)
    # All that was overwritten is still in the log: the broker has not compacted it.
    found = run(place.settings(topic))
    assert (found.folders[0].live, found.references, len(found.refusals)) == (7, 9, 1)
    found = run(place.settings(topic, newest_only=True))
    assert (outcomes(found), found.references) == ({"deleted": 3}, 4)
    assert place.there() == {new, shared, late, replaced}


def test_report(place: Place, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each payload has a row with its size, age, state and why; it is written before anything is deleted."""
    topic = make_topic()
    live, orphan = place.publish(topic, b"live", b"orphan")
    (young,) = place.publish(topic, b"young", age_s=60)
    place.send(topic, referring(live))
    report = tmp_path / "payloads.jsonl"

    def removing(*arguments: Any) -> Any:
        assert report.exists()
        return inventory.removed(*arguments)

    monkeypatch.setattr(sweeping, "removed", removing)
    assert outcomes(run(place.settings(topic, report=str(report)))) == {"deleted": 1}
    rows = {row.pop("path"): row for row in map(json.loads, report.read_text().splitlines())}
    assert {path: (row["topic"], row["size"], row["state"]) for path, row in rows.items()} == {
        live: (topic, 4, "live"),
        orphan: (topic, 6, "orphan"),
        young: (topic, 5, "young"),
    }
    assert rows[orphan]["why"] == "no record refers to it, and it is older than the minimum age"
    age = datetime.now(UTC) - datetime.fromisoformat(rows[orphan]["modified"])
    assert abs(age.total_seconds() - DAY) < 120
    with pytest.raises(ConfigurationError, match=r"--report: .* already exists"):
        run(place.settings(topic, report=str(report)))


def test_topics_that_are_not_there(place: Place, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a topic that is no more all goes that no other refers to; one that may be there is not taken for deleted."""
    carrier, there = make_topic(), make_topic()
    gone = f"{carrier}-gone"
    (carried,), (young,) = place.publish(gone, b"carried"), place.publish(gone, b"young", age_s=60)
    place.publish(gone, b"1", b"2")
    (other,) = place.publish(there, b"3")
    place.send(carrier, referring(carried))
    for topics, refused in (
        (("no-such-topic",), "no-such-topic is not on the broker"),
        ((carrier,), f"--deleted-topic: topic {there} exists on the brokers"),
    ):
        with pytest.raises(ConfigurationError, match=refused):
            run(place.settings(*topics, deleted_topics=(gone, there)))
    settings = place.settings(carriers=(carrier,), deleted_topics=(gone,))
    with monkeypatch.context() as patch:
        patch.setattr("app.payloads.sweep_settings.identified", lambda *_: {})
        with pytest.raises(ConfigurationError, match=f"--deleted-topic: these credentials may not describe {gone}"):
            run(settings)
    assert outcomes(run(settings)) == {"deleted": 2}
    assert place.there() == {carried, young, other}
    assert outcomes(run(dataclasses.replace(settings, carriers=(), ignored=(carrier,)))) == {"deleted": 1}


# --- what happens meanwhile


def test_store_is_listed_before_the_ends_are_fixed(
    place: Place, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a record has begun to refer to after the listing is live: the ends come later, and a last look after them.

    A file that nobody of the project has named stays.
    """
    topic = make_topic()
    late, _ = place.publish(topic, b"late", b"orphan")
    foreign = Path(place.publish(topic, b"foreign")[0].removeprefix("file://"))
    foreign = foreign.rename(foreign.with_name("sales.csv"))
    events: list[str] = []
    listed, described = inventory.listed, SweepSettings.described

    def listing(store: Mapping[str, object], topics: Iterable[str]) -> Any:
        for name in topics:  # none in most tasks
            yield from listed(store, [name])
            events.append("listed")
            place.send(topic, referring(late))

    def describing(settings: SweepSettings) -> dict[str, TopicSpans]:
        events.append("described")
        return described(settings)

    monkeypatch.setattr(sweeping, "listed", listing)
    monkeypatch.setattr(SweepSettings, "described", describing)
    found = run(place.settings(topic))
    assert events == ["described", "listed", "described", "described"]
    assert (outcomes(found), found.folders[0].foreign) == ({"deleted": 1}, 1)
    assert place.there() == {late, f"file://{foreign}"}


def test_sweep_leaves_what_is_published_while_it_runs(
    place: Place, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphan that is published again after the listing stays, whether its record is there yet or not."""
    topic = make_topic()
    _, again = place.publish(topic, b"orphan", b"again")

    def meanwhile(*arguments: Any) -> Any:
        place.publish(topic, b"again", age_s=0)
        return _too_many(*arguments)

    monkeypatch.setattr(sweeping, "_too_many", meanwhile)
    assert outcomes(run(place.settings(topic))) == {"changed": 1, "deleted": 1}
    assert place.there() == {again}


def test_sweep_that_is_broken_off(place: Place, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended in the middle of deleting, and run again: what is live is whole, and what is not is gone."""
    topic = make_topic()
    live = place.publish(topic, *(b"live %d" % number for number in range(20)))
    place.publish(topic, *(b"orphan %d" % number for number in range(60)))
    place.send(topic, *map(referring, live))
    delete = FilesystemStore.delete_unchanged

    def dying(store: FilesystemStore, payloads: Iterable[PayloadInfo]) -> Iterator[Removal]:
        yield from delete(store, islice(payloads, 5))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FilesystemStore, "delete_unchanged", dying)
        with pytest.raises(KeyboardInterrupt):
            run(place.settings(topic))
    assert 20 < len(place.there()) < 80
    assert set(outcomes(run(place.settings(topic)))) <= {"deleted", "gone"}
    assert place.there() == {*live}


@pytest.mark.parametrize("look", [2, 3], ids=["before", "after"])
def test_sweep_refuses_records_that_go_while_it_reads(
    place: Place, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """Where Kafka deletes records during the sweep, before they were read or after, nothing is deleted."""
    topic = make_topic()
    live, orphan = place.publish(topic, b"live", b"orphan")
    place.send(topic, *[referring(live)] * 3)
    looks = iter(range(1, 10))
    describe = SweepSettings.described

    def deleting(settings: SweepSettings) -> dict[str, TopicSpans]:
        found = describe(settings)
        if next(looks) == look:
            delete_records(place.broker, topic, 2)
        # The third look is after the reading, and sees that records are gone.
        return found if look == 2 else describe(settings)

    monkeypatch.setattr(SweepSettings, "described", deleting)
    if look == 2:
        with pytest.raises(RecordsLostError):
            run(place.settings(topic))
    else:
        assert "records were deleted" in refusal(run(place.settings(topic)))
    assert place.there() == {live, orphan}


class PlainStore:
    """A store of somebody else's, which removes whatever it is told."""

    def stat(self, full_path: str) -> PayloadInfo:
        if full_path == "gone":
            raise PayloadNotFoundError(full_path)
        return PayloadInfo(full_path, 1, datetime.fromtimestamp(7 if full_path == "changed" else 5, UTC))

    def delete(self, full_path: str) -> None:
        if full_path == "stuck":
            raise PayloadStoreError("it stays", retriable=False)


def test_removal_one_by_one() -> None:
    """Without a store's own comparison the age of each payload is looked at right before it goes."""
    then = datetime.fromtimestamp(5, UTC)
    payloads = [PayloadInfo(name, 1, then) for name in ("there", "changed", "gone", "stuck")]
    store: Any = PlainStore()
    found = [(each.outcome, each.error) for each in inventory._one_by_one(store, payloads)]
    assert found == [("deleted", None), ("changed", None), ("gone", None), ("failed", "it stays")]


# --- refusals

ELSEWHERE = "file:///elsewhere/"
NONSENSE: dict[str, tuple[Callable[[str], Record], str]] = {
    "malformed": (lambda _: MALFORMED, "offset 1: malformed reference"),
    "other-root": (lambda path: referring(f"{ELSEWHERE}t/{path[-9:]}"), "lead elsewhere than to file:///p/"),
    "unmarked": (lambda path: Record(b"k", path.encode()), "is not marked as a reference: not wideload?"),
    "flag": (lambda path: Record(b"k", b"\1" + path.encode()), "is not marked as a reference: not wideload?"),
    "chunk": (lambda path: referring(path, b"k", ("large-message.chunk.uuid", b"u")), "is a chunk of a reference"),
    "letter": (lambda path: referring(path, b"k", (MARK, b"record")), "is a dead letter"),
}


def surveyed(root: str, record: Record, topic: str = "orders", *quarantined: str, **changes: Any) -> str:
    """What is said of a record at offset 1 of the topic `orders` or `others`, or of the carrier `dead`."""
    found = [Found(each.path, topic, 0, 1, 1, error=each.error) for each in ReferenceFinder(root=root).find(record)]
    topics = changes.pop("topics", ("orders", "others"))
    settings = Place("b:1", {}).settings(*topics, carriers=("dead",), quarantined=quarantined, **changes)
    survey = _survey(frozenset(quarantined), (root, *settings.other_roots), found)
    return "; ".join(_unreadable(survey, settings, root))


@pytest.mark.parametrize("name", NONSENSE)
def test_sweep_refuses_what_it_cannot_read(name: str) -> None:
    """One record that may refer to anything is a reason to refuse, and is named, unless its topic is in quarantine.

    A dead letter whose record is elsewhere may be a sound reference: nobody may say that it is none.
    """
    make, words = NONSENSE[name]
    record = make("file:///p/orders/1f")
    said = surveyed("file:///p/", record)
    assert words in said
    assert "the first in topic orders partition 0 offset 1" in said
    assert ("--quarantine orders leaves" in said) == (name not in ("other-root", "letter"))
    assert "--quarantine" not in surveyed("file:///p/", record, "dead")
    assert "--quarantine" not in surveyed("file:///p/", record, topics=("orders",)), "nothing would be left to sweep"
    hidden = surveyed("file:///p/", record, "dead", "dead")
    assert ("its record in partition 0 at offset 1 may contain a valid reference" in hidden) == (name == "letter")
    ignored = surveyed("file:///p/", record, other_roots=(ELSEWHERE,))
    assert (not ignored) == (name == "other-root")


@pytest.mark.parametrize("part", ["value", "key"])
def test_refusal_is_safe_for_a_terminal(part: str) -> None:
    """A path that stands in a record comes without control characters, as one line of some length."""
    hostile = b"s3://b/p/\x1b[2J\x1b]0;title\x07\nsweep: done, all is well" + b" long" * 2_000 + b"/id"
    record = Record(hostile, b"v") if part == "key" else Record(b"k", hostile)
    told = surveyed("s3://b/p/", record)
    assert r"partition 0 offset 1: begins with s3://b/p/\x1b[2J\x1b]0;title\x07\nsweep: done" in told
    assert told.isprintable()
    assert len(told) < 1_500


def test_refusals_are_shown_together(place: Place, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Whatever is refused, everything is listed and counted, the report is written, and each refusal is shown."""
    topic, copies = make_topic(), make_topic()
    carried, orphan = place.publish(topic, b"carried", b"orphan")
    place.send(copies, referring(carried))
    place.send(topic, MALFORMED, referring(f"{ELSEWHERE}t/1"))
    report = tmp_path / "payloads.jsonl"
    for delete in (False, True):
        report.unlink(missing_ok=True)
        found = run(place.settings(topic, delete=delete, max_delete_fraction=0.5, report=str(report)))
        words = (
            f"not specified refer to these payloads: {copies}",
            "1 records are marked",
            "lead elsewhere",
            "2 of the 2 payl",
        )
        assert [part in each for part, each in zip(words, found.refusals, strict=True)] == [True] * 4
        assert (found.folders[0].orphans, found.outcomes) == (2, {})
        assert len(report.read_text().splitlines()) == 2
    assert place.there() == {carried, orphan}


def test_sweep_of_other_topics_beside_a_quarantine(place: Place, make_topic: MakeTopic) -> None:
    """Who writes nonsense of any kind into one topic keeps the payloads of that topic, and no other.

    The sound references of that topic count.
    """
    topic, bad = make_topic(), make_topic()
    live, orphan, carried = place.publish(topic, b"live", b"orphan", b"carried")
    kept = place.publish(bad, b"kept", b"kept too")
    nonsense = [make(kept[0]) for name, (make, _) in NONSENSE.items() if name != "letter"]
    place.send(topic, referring(live))
    place.send(bad, referring(carried), *nonsense)
    settings = place.settings(topic, bad)
    assert f"in topic {bad} partition 0 offset 1" in refusal(run(settings))
    assert place.there() == {live, orphan, carried, *kept}
    found = run(dataclasses.replace(settings, quarantined=(bad,)))
    assert outcomes(found) == {"deleted": 1}
    assert (found.quarantined, [folder.topic for folder in found.folders]) == ({bad: len(nonsense)}, [topic])
    assert bad in found.left_alone
    assert place.there() == {live, carried, *kept}


def test_sweep_refuses_to_delete_too_many() -> None:
    """A topic of which more than the fraction would go is named; files that are no payloads do not count."""
    half, most = (Folder(name, 5, 5, live, 0, 1, 4 - live, 1, None) for name, live in (("half", 2), ("most", 1)))
    (said,) = _too_many([half, most], 0.5)
    assert said.startswith("3 of the 4 payloads of topic most would be deleted, which is more than")
    assert [*_too_many([half, most], 0.75)] == []


def test_sweep_refuses_a_grace_that_is_too_short(place: Place) -> None:
    """What is in flight would look like an orphan: less than an hour must be asked for, and says how."""
    slow = {**place.config, "large.message.store.timeout.ms": 7_200_000}
    for changes, refused in (
        ({"grace": HOUR - timedelta(seconds=1)}, "found 59 min 59 s, allowed is 1 h or more.*short-grace"),
        ({"in_flight": timedelta(hours=3)}, "found 1 h, allowed is 3 h or more"),
        ({"store": slow}, "found 1 h, allowed is 2 h 2 min or more"),
    ):
        with pytest.raises(ConfigurationError, match=f"--grace: {refused}"):
            run(dataclasses.replace(place.settings("t"), **changes))


# --- on S3


def test_sweep_of_a_bucket(versitygw: S3Server, broker: str, make_topic: MakeTopic) -> None:
    """On a real S3 server orphans go; live payloads, and bakdata's own, stay."""
    place = Place(broker, {"large.message.payload.store.class": "s3", **versitygw.config("base")})
    topic = make_topic(2, **COMPACT)
    live, overwritten, *orphans = place.publish(topic, *(b"%d" % number for number in range(50)))
    theirs = next(case.wire for case in bakdata_cases() if case.stored is not None and case.format == "bakdata-headers")
    place.send(topic, referring(overwritten), referring(live), dataclasses.replace(theirs, key=b"theirs"))
    # S3 has whole seconds: what was published in this second is not older than a grace of nothing.
    newest = max(info.modified.timestamp() for info in place.listed())
    until(lambda: time.time() > newest + 1, "the second is over")
    settings = place.settings(topic, grace=timedelta(0), short_grace=True, newest_only=True)
    dry = run(dataclasses.replace(settings, delete=False))
    assert (dry.folders[0].payloads, dry.folders[0].live, dry.folders[0].orphans) == (50, 1, 49)
    assert place.there() == {live, overwritten, *orphans}
    assert outcomes(run(settings)) == {"deleted": 49}
    assert place.there() == {live}
