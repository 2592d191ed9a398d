"""What a sweep finds, refuses and removes, without Spark: a real broker, the filesystem store and a real S3 server."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from app.config.client import embedded_client_settings
from app.kafka.range_reader import RecordsLostError
from app.kafka.spans import TopicSpans
from app.payloads import inventory
from app.payloads import sweep as sweeping
from app.payloads.local_engine import LocalEngine
from app.payloads.scan import Found
from app.payloads.sweep import Sweep, _survey, _unreadable, sweep
from app.payloads.sweep_settings import SweepSettings
from stores.registry import open_store
from stores.store import List, Store
from tests.integration.topics import send
from tests.s3_server import S3Server
from tests.vectors.bakdata import bakdata_cases
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS, FormatName
from transforms.found_references import ReferenceFinder
from transforms.letter import MARK
from transforms.record import Header, Record
from transforms.reference import KEY, Reference
from transforms.wrapper import Wrap

DAY = 86_400
HOUR = timedelta(hours=1)
MakeTopic = Callable[..., str]


@pytest.fixture
def place(tmp_path: Path, broker: str) -> Place:
    """A store in a folder of this test."""
    return Place(broker, {"large.message.payload.store.class": "filesystem", "filesystem.root": str(tmp_path / "p")})


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

    def there(self) -> set[str]:
        with closing(open_store(self.config)) as store:
            assert isinstance(store, List)
            return {info.path for info in store.list()}

    def send(self, topic: str, *records: Record | None, partition: int = 0, age_s: float = DAY) -> None:
        """Records a day old: what they overwrite has been so for longer than the grace."""
        now = round((time.time() - age_s) * 1000)
        rows = [(partition, r.key, r.value, list(r.headers), now) for r in records if r is not None]
        send(self.broker, topic, rows)


def refers(path: str, key: bytes | None = b"k", *own: Header, name: FormatName = "wideload") -> Record:
    """A record whose value is elsewhere."""
    return FORMATS[name].write_reference(Record(key, b"?", own), Reference(path))


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


# --- on the filesystem


def test_sweep_of_a_topic_whose_records_go_by_age(place: Place, make_topic: MakeTopic) -> None:
    """Every record in the log keeps its payload, overwritten or not; shared ones too; the rest goes, if it is old."""
    topic, other = make_topic(2), make_topic()
    first, second, key, shared, orphan = place.publish(topic, b"1", b"2", b"key", b"shared", b"orphan")
    (young,) = place.publish(topic, b"young", age_s=60)
    (stays,) = place.publish(other, b"orphan of another topic")
    reference = Reference(key, 3)
    place.send(topic, refers(first), refers(second), refers(shared), tombstone(b"k"), Record(b"k", b"plain"))
    place.send(topic, refers(shared, b"other"), Record(reference.value(), b"v", reference.headers(KEY)), partition=1)
    dry = run(place.settings(topic, delete=False))
    (folder,) = dry.folders
    assert (folder.payloads, folder.live, folder.young, folder.orphans, folder.orphan_bytes) == (6, 4, 1, 1, 6)
    assert folder.oldest is not None
    assert abs(folder.oldest.timestamp() - (time.time() - DAY)) < 120
    assert (dry.references, dry.left_alone, dry.outcomes) == (5, [other], {})
    assert place.there() == {first, second, key, shared, orphan, young, stays}

    assert outcomes(run(place.settings(topic))) == {"deleted": 1}
    assert place.there() == {first, second, key, shared, young, stays}
    assert outcomes(run(place.settings(topic))) == {}


def test_sweep_finds_the_carriers_that_were_forgotten(place: Place, make_topic: MakeTopic) -> None:
    """A topic that refers to the payloads and is not given is a reason to refuse, until it is a carrier or ignored."""
    topic, copies, odd, plain = (make_topic(2) for _ in range(4))
    carried, orphan = place.publish(topic, b"carried", b"orphan")
    copied = refers(carried)
    place.send(copies, Record(b"k", b"plain"), copied, partition=1)
    place.send(odd, Record(b"k", b"\xff", copied.headers))
    place.send(plain, Record(b"k", b"plain"), refers("s3://elsewhere/x/1"))
    settings = place.settings(topic)
    refused = run(settings)
    assert set(refused.search.found) == {copies}
    assert set(refused.search.unclear) >= {odd}
    assert f"refer to these payloads: {copies} (partition 1 offset 1)" in refusal(refused)
    late = run(dataclasses.replace(settings, search_time=timedelta(0)))
    assert "no time was left" in refusal(late)
    assert place.there() == {carried, orphan}
    assert outcomes(run(dataclasses.replace(settings, carriers=(copies,)))) == {"deleted": 1}
    assert place.there() == {carried}
    assert outcomes(run(dataclasses.replace(settings, ignored=(f"{copies[:-1]}?",)))) == {"deleted": 1}


def test_refusals_are_shown_together(place: Place, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Whatever is refused, everything is listed and counted, the report is written, and each refusal is shown."""
    topic, copies = make_topic(), make_topic()
    carried, orphan = place.publish(topic, b"carried", b"orphan")
    place.send(copies, refers(carried))
    place.send(topic, *(make(orphan) for _, make, _ in refusals()[:2]))
    report = tmp_path / "payloads.jsonl"
    for delete in (False, True):
        report.unlink(missing_ok=True)
        found = run(place.settings(topic, delete=delete, max_delete_fraction=0.5, report=str(report)))
        words = (
            f"not given refer to these payloads: {copies}",
            "1 records say",
            "lead elsewhere",
            "2 of the 2 payloads",
        )
        assert [part in each for part, each in zip(words, found.refusals, strict=True)] == [True] * 4
        assert (found.folders[0].orphans, found.outcomes) == (2, {})
        assert len(report.read_text().splitlines()) == 2
    assert place.there() == {carried, orphan}


def test_report(place: Place, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each payload has a row with its size, age, state and why; it is written before anything is deleted."""
    topic = make_topic()
    live, orphan = place.publish(topic, b"live", b"orphan")
    (young,) = place.publish(topic, b"young", age_s=60)
    place.send(topic, refers(live))
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
    assert rows[orphan]["why"] == "no record refers to it, and it was published before the grace"
    age = datetime.now(UTC) - datetime.fromisoformat(rows[orphan]["modified"])
    assert abs(age.total_seconds() - DAY) < 120
    with pytest.raises(ConfigurationError, match=r"--report: .* is there already"):
        run(place.settings(topic, report=str(report)))


def test_sweep_of_a_compacted_topic(place: Place, make_topic: MakeTopic) -> None:
    """What Kafka has not removed keeps its payload. With `newest_only`, what was overwritten or deleted goes."""
    topic = make_topic(2, **{"cleanup.policy": "compact"})
    old, new, gone, shared, inlined, late, replaced = place.publish(
        topic, b"old", b"new", b"gone", b"shared", b"inlined", b"late", b"replaced"
    )
    place.send(topic, refers(old, b"a"), refers(gone, b"b"), refers(shared, b"c"), refers(inlined, b"e"))
    place.send(topic, refers(new, b"a"), tombstone(b"b"), tombstone(b"c"), Record(b"e", b"small"), refers(late, b"f"))
    place.send(topic, tombstone(b"f"), age_s=60)  # within the grace
    place.send(topic, refers(shared, b"d"), refers(replaced, b"g"), partition=1)
    # Within the grace too: its timestamp is old, as a mirror's is, but it stands behind one that is not.
    place.send(topic, Record(b"h", b"now"), partition=1, age_s=60)
    place.send(topic, tombstone(b"g"), partition=1)
    # All that was overwritten is still in the log: the broker has not compacted it.
    found = run(place.settings(topic))
    assert (outcomes(found), found.folders[0].live, found.references) == ({}, 7, 8)
    found = run(place.settings(topic, newest_only=True))
    assert (outcomes(found), found.references) == ({"deleted": 3}, 4)
    assert place.there() == {new, shared, late, replaced}


@pytest.mark.slow
def test_sweep_counts_transactions_either_way(place: Place, make_topic: MakeTopic) -> None:
    """What an aborted or an open transaction wrote keeps its payload, and overwrites nothing."""
    topic = make_topic(1, **{"cleanup.policy": "compact"})
    paths = place.publish(topic, b"old", b"committed", b"aborted", b"open", b"behind")
    old, committed, aborted, still_open, behind = paths

    async def transactions() -> Sweep:
        def producer(name: str | None) -> AIOKafkaProducer:
            return AIOKafkaProducer(
                bootstrap_servers=place.broker, transactional_id=name, transaction_timeout_ms=600_000
            )

        async def write(client: AIOKafkaProducer, path: str) -> None:
            record = refers(path)
            await client.send_and_wait(
                topic, record.value, record.key, 0, round((time.time() - DAY) * 1000), list(record.headers)
            )

        async with producer(None) as plain, producer(f"{topic}-1") as first, producer(f"{topic}-2") as second:
            await write(plain, old)
            await write(plain, committed)
            await first.begin_transaction()
            await write(first, aborted)
            await first.abort_transaction()
            await second.begin_transaction()
            await write(second, still_open)
            await write(plain, behind)
            found = await asyncio.to_thread(run, place.settings(topic, newest_only=True))
            await second.abort_transaction()
            return found

    assert outcomes(asyncio.run(transactions())) == {"deleted": 1}
    assert place.there() == {committed, aborted, still_open, behind}


def test_sweep_of_timestamps_of_other_units(place: Place, make_topic: MakeTopic) -> None:
    """A record whose timestamp is in nanoseconds ends no sweep, here or in another topic."""
    unlimited = {"message.timestamp.after.max.ms": 2**63 - 1}
    topic, other = make_topic(**unlimited), make_topic(**unlimited)
    live, odd, orphan = place.publish(topic, b"live", b"odd", b"orphan")
    place.send(topic, refers(live))
    record, nanoseconds = refers(odd), 1_700_000_000_000_000_000
    send(place.broker, topic, [(0, record.key, record.value, list(record.headers), nanoseconds)])
    send(place.broker, other, [(0, b"k", b"v", [], nanoseconds)])
    found = run(place.settings(topic))
    assert outcomes(found) == {"deleted": 1}
    assert place.there() == {live, odd}
    assert orphan not in place.there()
    assert other not in found.search.unread


def test_sweep_reads_carriers_too(place: Place, make_topic: MakeTopic) -> None:
    """A dead letter or a copy keeps the payload; the carrier's own folder is not swept."""
    topic, dead = make_topic(), make_topic()
    one, two = place.publish(topic, b"1", b"2")
    (own,) = place.publish(dead, b"3")
    place.send(dead, refers(one, b"k", ("__connect.errors.topic", topic.encode())))
    found = run(place.settings(topic, carriers=(dead,)))
    assert (outcomes(found), found.left_alone) == ({"deleted": 1}, [dead])
    assert place.there() == {one, own}
    assert two not in place.there()


def test_sweep_of_wrapped_references(place: Place, make_topic: MakeTopic) -> None:
    """A payload stays while a wrapper refers to it, in its topic or a carrier's."""
    topic, carrier = make_topic(1, **{"cleanup.policy": "compact"}), make_topic()
    live, carried, overwritten = place.publish(topic, b"live", b"carried", b"overwritten")
    wrap = Wrap()
    place.send(topic, wrap.wrap(refers(overwritten)), wrap.wrap(refers(live)), wrap.wrap(Record(b"p", b"plain")))
    place.send(carrier, wrap.wrap(refers(carried)))
    found = run(place.settings(topic, carriers=(carrier,), newest_only=True))
    assert (outcomes(found), found.references) == ({"deleted": 1}, 2)
    assert place.there() == {live, carried}


@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
def test_sweep_of_bakdatas_formats(place: Place, make_topic: MakeTopic, name: FormatName) -> None:
    """Payloads of the worker's are swept by references in the format, whose inline values are no references."""
    topic, carrier = make_topic(), make_topic()
    live, carried, _ = place.publish(topic, b"live", b"carried", b"orphan")
    inline = FORMATS[name].write_inline(Record(b"k", b"orphan"))
    place.send(topic, refers(live, name=name), inline, tombstone(b"x"))
    place.send(carrier, refers(carried), Record(b"k", b"plain, and no flag before it"))
    settings = place.settings(topic, carriers=(carrier,), reference_format=name, formats={carrier: "wideload"})
    assert outcomes(run(settings)) == {"deleted": 1}
    assert place.there() == {live, carried}


def test_sweep_of_a_deleted_topic(place: Place, make_topic: MakeTopic) -> None:
    """Of a topic that is no more all goes that no other topic refers to; one that is there is not taken for deleted."""
    carrier, there = make_topic(), make_topic()
    gone = f"{carrier}-gone"
    carried, young = place.publish(gone, b"carried")[0], place.publish(gone, b"young", age_s=60)[0]
    place.publish(gone, b"1", b"2")
    (other,) = place.publish(there, b"3")
    place.send(carrier, refers(carried))
    with pytest.raises(ConfigurationError, match=f"--deleted-topic: topic {there} is on the brokers"):
        run(place.settings(carrier, deleted_topics=(gone, there)))
    settings = place.settings(carriers=(carrier,), deleted_topics=(gone,))
    assert outcomes(run(settings)) == {"deleted": 2}
    assert place.there() == {carried, young, other}
    assert outcomes(run(dataclasses.replace(settings, carriers=(), ignored=(carrier,)))) == {"deleted": 1}


def test_store_is_listed_before_the_ends_are_fixed(
    place: Place, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a record has begun to refer to after the listing is live: the ends come later, and a last look after them.

    A file that nobody of the project has named stays.
    """
    topic = make_topic()
    late, _ = place.publish(topic, b"late", b"orphan")
    foreign = Path(place.publish(topic, b"foreign")[0].removeprefix("file://")).rename(
        Path(str(place.config["filesystem.root"])) / topic / "sales.csv"
    )
    events: list[str] = []
    listed, described = inventory.listed, SweepSettings.described

    def listing(store: Mapping[str, object], topics: Iterable[str]) -> Any:
        for name in topics:  # none in most tasks
            yield from listed(store, [name])
            events.append("listed")
            place.send(topic, refers(late))

    def describing(settings: SweepSettings) -> dict[str, TopicSpans]:
        events.append("described")
        return described(settings)

    monkeypatch.setattr(sweeping, "listed", listing)
    monkeypatch.setattr(SweepSettings, "described", describing)
    found = run(place.settings(topic))
    assert events == ["described", "listed", "described", "described"]
    assert (outcomes(found), found.folders[0].foreign) == ({"deleted": 1}, 1)
    assert place.there() == {late, f"file://{foreign}"}


def test_deleted_topic_that_may_exist(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic of which the credentials do not show whether it exists is not taken for deleted."""
    place.publish("gone", b"orphan")
    monkeypatch.setattr("app.payloads.sweep_settings.identified", lambda *_: {})
    with pytest.raises(ConfigurationError, match="--deleted-topic: these credentials may not describe gone"):
        run(place.settings(deleted_topics=("gone",)))


def test_sweep_leaves_what_is_published_while_it_runs(
    place: Place, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphan that is published again after the listing stays, whether its record is there yet or not."""
    topic = make_topic()
    gone, again = place.publish(topic, b"orphan", b"again")
    look = sweeping._too_many

    def meanwhile(*arguments: Any) -> Any:
        place.publish(topic, b"again", age_s=0)
        return look(*arguments)

    monkeypatch.setattr(sweeping, "_too_many", meanwhile)
    assert outcomes(run(place.settings(topic))) == {"changed": 1, "deleted": 1}
    assert place.there() == {again}
    assert gone != again


# --- refusals


def refusals() -> list[tuple[str, Callable[[str], Record], str]]:
    root = "file:///elsewhere/"
    return [
        ("malformed", lambda _: Record(b"k", b"\xff", [("large-message", b"true")]), "offset 1: malformed reference"),
        ("other-root", lambda path: refers(f"{root}t/{path[-9:]}"), "lead elsewhere than to file:///"),
        ("unmarked", lambda path: Record(b"k", path.encode()), "is not marked as a reference: not wideload?"),
        ("flag", lambda path: Record(b"k", b"\1" + path.encode()), "is not marked as a reference: not wideload?"),
        ("chunk", lambda path: refers(path, b"k", ("large-message.chunk.uuid", b"u")), "is a chunk of a reference"),
    ]


@pytest.mark.parametrize(("make", "words"), [case[1:] for case in refusals()], ids=[case[0] for case in refusals()])
def test_sweep_refuses_what_it_cannot_read(
    place: Place, make_topic: MakeTopic, make: Callable[[str], Record], words: str
) -> None:
    """One record that may refer to anything is a reason to delete nothing, and is named."""
    topic = make_topic()
    live, orphan = place.publish(topic, b"live", b"orphan")
    place.send(topic, refers(live), make(orphan), Record(b"k", b"plain"))
    found = run(place.settings(topic))
    assert words in refusal(found)
    assert f"the first in topic {topic} partition 0 offset 1" in refusal(found)
    assert place.there() == {live, orphan}
    if "lead elsewhere" in words:
        assert outcomes(run(place.settings(topic, other_roots=("file:///elsewhere/",)))) == {"deleted": 1}


def test_sweep_of_other_topics_beside_a_quarantine(place: Place, make_topic: MakeTopic) -> None:
    """Who writes nonsense of any kind into one topic keeps the payloads of that topic, and no other.

    The sound references of that topic count.
    """
    topic, bad = make_topic(), make_topic()
    live, orphan, carried = place.publish(topic, b"live", b"orphan", b"carried")
    kept = place.publish(bad, b"kept", b"kept too")
    nonsense = [make(kept[0]) for _, make, _ in refusals()]
    place.send(topic, refers(live))
    place.send(bad, refers(carried), *nonsense)
    settings = place.settings(topic, bad)
    assert f"in topic {bad} partition 0 offset 1" in refusal(run(settings))
    found = run(dataclasses.replace(settings, quarantined=(bad,)))
    assert outcomes(found) == {"deleted": 1}
    assert (found.quarantined, [folder.topic for folder in found.folders]) == ({bad: len(nonsense)}, [topic])
    assert bad in found.left_alone
    assert place.there() == {live, carried, *kept}
    assert orphan not in place.there()


@pytest.mark.parametrize("part", ["value", "key"])
def test_refusal_is_safe_for_a_terminal(place: Place, part: str) -> None:
    """A path that stands in a record comes without control characters, as one line of some length."""
    hostile = b"s3://b/p/\x1b[2J\x1b]0;title\x07\nsweep: done, all is well" + b" long" * 2_000 + b"/id"
    key, value = (hostile, b"v") if part == "key" else (b"k", hostile)
    [found] = ReferenceFinder(root="s3://b/p/").find(Record(key, value))
    rows = [Found(None, name, 0, 7, 1, error=found.error) for name in ("orders", "dead")]
    rows += [Found(None, "dead", 0, 8, 1, error=f"is a dead letter {found.error}")]
    survey = _survey(frozenset({"dead"}), ("s3://b/p/",), rows)
    told, hidden = _unreadable(survey, place.settings("orders", "others", "dead"), "s3://b/p/")
    assert r"partition 0 offset 7: begins with s3://b/p/\x1b[2J\x1b]0;title\x07\nsweep: done" in told
    assert "--quarantine orders" in told
    assert r"it is a dead letter begins with s3://b/p/\x1b[2J\x1b]0;title\x07\nsweep: done" in hidden
    for text in (told, hidden):
        assert text.isprintable()
        assert len(text) < 1_500


def test_sweep_refuses_a_quarantine_of_letters(place: Place, make_topic: MakeTopic) -> None:
    """A dead letter whose record is elsewhere may be a sound reference: nobody may say that it is none."""
    topic, dead = make_topic(), make_topic()
    orphan = place.publish(topic, b"orphan")
    place.send(dead, refers("s3://b/t/i", b"k", (MARK, b"record")))
    found = run(place.settings(topic, carriers=(dead,)))
    assert "--quarantine" not in refusal(found)
    found = run(place.settings(topic, carriers=(dead,), quarantined=(dead,)))
    assert f"topic {dead} is in quarantine, and its record in partition 0 at offset 0 may hold a sound" in (
        refusal(found)
    )
    assert place.there() == set(orphan)


def test_sweep_overwritten_nonsense_is_no_obstacle(place: Place, make_topic: MakeTopic) -> None:
    """With `newest_only`, a malformed record of a compacted topic that was overwritten says nothing any more."""
    topic = make_topic(1, **{"cleanup.policy": "compact"})
    (orphan,) = place.publish(topic, b"orphan")
    place.send(topic, Record(b"k", b"\xff", [("large-message", b"true")]), tombstone(b"k"))
    assert outcomes(run(place.settings(topic, newest_only=True))) == {"deleted": 1}
    assert orphan not in place.there()


def test_sweep_refuses_to_delete_too_many(place: Place, make_topic: MakeTopic) -> None:
    """A topic of which more than the fraction would go is left whole, and so are all others of the run."""
    half, most = make_topic(), make_topic()
    kept, going = place.publish(half, b"1", b"2")
    other = place.publish(most, b"1", b"2", b"3")
    place.send(half, refers(kept))
    place.send(most, refers(other[0]))
    found = run(place.settings(half, most, max_delete_fraction=0.5))
    assert f"2 of the 3 payloads of topic {most} would go" in refusal(found)
    assert [folder.orphans for folder in found.folders] == [1, 2]
    assert place.there() == {kept, going, *other}
    assert outcomes(run(place.settings(half, max_delete_fraction=0.5))) == {"deleted": 1}


@pytest.mark.parametrize("look", [2, 3], ids=["before", "after"])
def test_sweep_refuses_records_that_go_while_it_reads(
    place: Place, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """Where Kafka deletes records during the sweep, before they were read or after, nothing is deleted."""
    topic = make_topic()
    live, orphan = place.publish(topic, b"live", b"orphan")
    place.send(topic, refers(live), refers(live), refers(live))
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


def delete_records(broker: str, topic: str, before: int) -> None:
    """What retention does, at once."""

    async def delete() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker)
        await admin.start()
        try:
            await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before)})
        finally:
            await admin.close()

    asyncio.run(delete())


def test_sweep_refuses_a_grace_that_is_too_short(place: Place) -> None:
    """What is in flight would look like an orphan: less than an hour must be asked for, and says how."""
    with pytest.raises(ConfigurationError, match=r"--grace: found 59 min 59 s, allowed is 1 h or more.*short-grace"):
        run(place.settings("t", grace=HOUR - timedelta(seconds=1)))
    slow = dataclasses.replace(place.settings("t"), store={**place.config, "large.message.store.timeout.ms": 7_200_000})
    with pytest.raises(ConfigurationError, match=r"--grace: found 1 h, allowed is 2 h 2 min or more"):
        run(slow)
    with pytest.raises(ConfigurationError, match=r"--grace: found 1 h, allowed is 3 h or more"):
        run(place.settings("t", in_flight=timedelta(hours=3)))


def test_sweep_topic_not_there(place: Place) -> None:
    """A topic that is not there is named, and nothing is listed or deleted."""
    (path,) = place.publish("no-such-topic", b"a")
    with pytest.raises(ConfigurationError, match=r"no-such-topic is not on the broker"):
        run(place.settings("no-such-topic"))
    assert place.there() == {path}


def test_sweep_of_nothing(place: Place, make_topic: MakeTopic) -> None:
    """An empty topic and a store without a folder are no error."""
    topic = make_topic(3)
    with closing(open_store(place.config)) as store:
        assert isinstance(store, Store)
        store.check()
    found = run(place.settings(topic))
    assert (found.references, found.folders[0].payloads, outcomes(found)) == (0, 0, {})


def test_sweep_of_thousands(place: Place, make_topic: MakeTopic) -> None:
    """With thousands of payloads and references exactly the orphans go."""
    topic = make_topic(4)
    root = Path(str(place.config["filesystem.root"]))
    (path,) = place.publish(topic, b"first")
    first = Path(path.removeprefix("file://"))
    for number in range(6_000):
        os.link(first, root / topic / f"{number:064x}")  # a third of what it takes to write them
    start = path.rpartition("/")[0]
    live = [f"{start}/{number:064x}" for number in range(0, 6_000, 2)]
    for partition in range(4):
        place.send(topic, *(refers(each) for each in live[partition::4]), partition=partition)
    place.send(topic, refers(path))
    found = run(place.settings(topic))
    assert (found.references, outcomes(found)) == (3_001, {"deleted": 3_000})
    assert place.there() == {path, *live}


# --- on S3


def test_sweep_of_a_bucket(versitygw: S3Server, broker: str, make_topic: MakeTopic) -> None:
    """On a real S3 server orphans go, in more than one request a task; live payloads, and bakdata's own, stay."""
    bucket = {"large.message.payload.store.class": "s3", **versitygw.config("base")}
    place, topic = Place(broker, bucket), make_topic(2, **{"cleanup.policy": "compact"})
    live, overwritten = place.publish(topic, b"live", b"overwritten")
    with ThreadPoolExecutor(8) as pool:
        shares = [[b"%d" % number for number in range(start, 600, 8)] for start in range(8)]
        orphans = [path for paths in pool.map(lambda share: place.publish(topic, *share), shares) for path in paths]
    theirs = next(case.wire for case in bakdata_cases() if case.stored is not None and case.format == "bakdata-headers")
    place.send(topic, refers(overwritten), refers(live), dataclasses.replace(theirs, key=b"theirs"))
    # S3 has whole seconds: what was published in this second is not older than a grace of nothing.
    until(lambda: time.time() > newest_second(place) + 1)
    settings = place.settings(topic, grace=timedelta(0), short_grace=True, newest_only=True)
    dry = run(dataclasses.replace(settings, delete=False))
    assert (dry.folders[0].payloads, dry.folders[0].live, dry.folders[0].orphans) == (602, 1, 601)
    assert place.there() == {live, overwritten, *orphans}
    assert outcomes(run(settings)) == {"deleted": 601}
    assert place.there() == {live}


def newest_second(place: Place) -> float:
    with closing(open_store(place.config)) as store:
        assert isinstance(store, List)
        return max(info.modified.timestamp() for info in store.list())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
