"""What a sweep finds and removes: a real broker, the filesystem store and a real S3 server."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from jobs.payloads import orphans, other_topics
from jobs.payloads.inventory import LISTED
from jobs.payloads.orphans import Sweep, SweepSettings, marked, run
from jobs.payloads.other_topics import SearchSettings, _conditions
from jobs.payloads.reference_states import EXPIRY, RETAINED, findings
from jobs.payloads.references import REFERENCE, _parsed, newest, references
from jobs.reading.topics import Kafka, Span, Topic, describe, difference
from stores.registry import open_store
from stores.store import List, Store
from tests.integration.topics import send
from tests.s3_server import S3Server
from tests.vectors.bakdata import bakdata_cases
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS, FormatName
from transforms.letter import BATCH_FORMS, MARK
from transforms.record import Header, Record
from transforms.reference import KEY, Reference
from transforms.retention import Retention
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
        return SweepSettings(Kafka(self.broker), self.config, topics, **values | changes)

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


def outcomes(sweep: Sweep) -> dict[str, int]:
    assert sweep.refusal is None
    return {outcome: payloads for outcome, (payloads, _) in sweep.outcomes.items()}


# --- pure


def test_marked(spark: SparkSession) -> None:
    """A payload is live if one reference leads to it, young if it is not older than the cutoff, else an orphan.

    What nobody of the project has named is none.
    """
    orphan, uuid = "file:///r/t/" + "0f" * 32, "file:///r/t/0123abcd-0123-4123-8123-0123456789ab"
    others = ["file:///r/t/sales.csv", "file:///r/t/" + "0F" * 32, "file:///r/t/" + "0f" * 33]
    cutoff = datetime(2026, 1, 1, tzinfo=UTC)
    at = round(cutoff.timestamp() * 1_000_000)
    listing = spark.createDataFrame(
        [
            ("t", "live", 1, at - 1),
            ("t", "young", 1, at),
            ("t", orphan, 1, at - 1),
            ("t", uuid, 1, at - 1),
            *(("t", path, 1, at - 1) for path in others),
            ("u", "shared", 1, 0),
        ],
        LISTED,
    )
    paths = ["live", "shared", "shared", "elsewhere", None]
    rows = [("t", 0, 0, cutoff, b"k", "value", None, path, None, None, None, None, None) for path in paths]
    found = marked(listing, spark.createDataFrame(rows, REFERENCE), cutoff)
    assert {row.path: row.state for row in found.collect()} == {
        "live": "live",
        "shared": "live",
        "young": "young",
        **dict.fromkeys((orphan, uuid), "orphan"),
        **dict.fromkeys(others, "foreign"),
    }
    found = marked(listing, spark.createDataFrame([], REFERENCE), cutoff, any_name=True)
    assert {row.state for row in found.collect()} == {"orphan", "young"}


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
def test_twenty_thousand_references(spark: SparkSession) -> None:
    """Of as many references a sweep's plan and an audit's findings have each one in its place.

    Ten times as many are swept and audited by the benchmark, which looks at the same.
    """
    root, count = "file:///srv/", 20_000
    rows = spark.range(count).withColumnsRenamed({"id": "offset"})
    flag = sf.array(sf.struct(sf.lit("large-message").alias("key"), sf.lit(b"true").alias("value")))
    path = sf.format_string(f"{root}t/%064x", sf.col("offset"))
    source = rows.select(
        sf.encode(sf.col("offset").cast("string"), "UTF-8").alias("key"),
        sf.encode(path, "UTF-8").alias("value"),
        flag.alias("headers"),
        sf.lit("t").alias("topic"),
        (sf.col("offset") % 4).cast("int").alias("partition"),
        "offset",
        sf.lit(datetime(2026, 1, 1, tzinfo=UTC)).alias("timestamp"),
    )
    found = references(newest(source), root=root).persist()
    # Each second payload is there, and as many that nothing refers to.
    there = spark.range(0, 2 * count, 2).select(sf.format_string(f"{root}t/%064x", "id").alias("path"))
    listing = there.select(
        sf.lit("t").alias("topic"), "path", sf.lit(1).alias("stored"), sf.lit(0).alias("modified_us")
    )
    states = marked(listing, found, datetime.now(UTC)).groupBy("state").count().collect()
    assert {row["state"]: row["count"] for row in states} == {"live": count // 2, "orphan": count // 2}
    stated = there.select(
        "path", sf.lit("there").alias("state"), sf.lit(1).alias("stored"), sf.lit(0).alias("modified_us")
    )
    stated = stated.withColumn("detail", sf.lit(None).cast("string"))
    nothing = spark.createDataFrame([], EXPIRY), spark.createDataFrame([("t", None)], RETAINED)
    audited = findings(found, stated, *nothing).groupBy("state").count().collect()
    assert {row["state"]: row["count"] for row in audited} == {"ok": count // 2, "unknown": count // 2}
    found.unpersist()


def test_difference_tells_what_was_not_read() -> None:
    """A topic that was made anew, grew, changed its policy or lost records while it was read is not known."""
    topic = Topic("t", "id", {0: Span(5, 9, 9), 1: Span(0, 0, 0)}, Retention("t", -1, "delete"))
    same = dataclasses.replace(topic, spans={0: Span(5, 12, 12), 1: Span(0, 3, 3)})
    assert difference([topic], [same]) is None
    for change, words in (
        ({"id": "other"}, "topic t was deleted and made anew"),
        ({"spans": {**topic.spans, 2: Span(0, 0, 0)}}, "topic t had 2 partitions and has 3 now"),
        ({"spans": {0: Span(6, 9, 9), 1: Span(0, 0, 0)}}, "partition 0 began at offset 5 and begins at 6 now"),
        ({"spans": {0: Span(5, 8, 8), 1: Span(0, 0, 0)}}, "partition 0 ended at offset 9 and ends at 8 now"),
        ({"retention": Retention("t", -1, "compact,delete")}, "cleanup.policy of topic t was changed"),
    ):
        assert words in (difference([topic], [dataclasses.replace(topic, **change)]) or "")


# --- on the filesystem


def test_sweep_of_a_topic_whose_records_go_by_age(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """Every record in the log keeps its payload, overwritten or not; shared ones too; the rest goes, if it is old."""
    topic, other = make_topic(2), make_topic()
    first, second, key, shared, orphan = place.publish(topic, b"1", b"2", b"key", b"shared", b"orphan")
    (young,) = place.publish(topic, b"young", age_s=60)
    (stays,) = place.publish(other, b"orphan of another topic")
    reference = Reference(key, 3)
    place.send(topic, refers(first), refers(second), refers(shared), tombstone(b"k"), Record(b"k", b"plain"))
    place.send(topic, refers(shared, b"other"), Record(reference.value(), b"v", reference.headers(KEY)), partition=1)
    dry = run(spark, place.settings(topic, delete=False))
    (folder,) = dry.folders
    assert (folder.payloads, folder.live, folder.young, folder.orphans, folder.orphan_bytes) == (6, 4, 1, 1, 6)
    assert folder.oldest is not None
    assert abs(folder.oldest.timestamp() - (time.time() - DAY)) < 120
    assert (dry.references, dry.left_alone, dry.outcomes) == (5, [other], {})
    assert place.there() == {first, second, key, shared, orphan, young, stays}

    assert outcomes(run(spark, place.settings(topic))) == {"deleted": 1}
    assert place.there() == {first, second, key, shared, young, stays}
    assert outcomes(run(spark, place.settings(topic))) == {}


@pytest.mark.parametrize("topic", ["orders", "values", "keys"])
def test_search_knows_the_topic_of_a_path(spark: SparkSession, topic: str) -> None:
    """A path leads to the payloads of a topic under each name of the store, also if the topic is named as a folder is.

    bakdata's serializers keep payloads in the folders `values` and `keys` of a topic.
    """
    settings = SearchSettings([topic], [], root="s3://b/p/")
    leads = [f"s3://b/p/{topic}/1f", f"s3://other/{topic}/1f", f"s3://b/p/{topic}/values/1", f"s3://b/p/{topic}/keys/1"]
    others = [f"s3://b/p/{topic}s/1f", f"s3://b/{topic}/p/1f", f"s3://b/p/q/{topic}1", f"{topic}"]
    rows = spark.createDataFrame([(path,) for path in (*leads, *others)], "path string")
    refers, _ = _conditions(settings)
    found = rows.withColumn("error", sf.lit(None).cast("string")).where(refers).collect()
    assert [row.path for row in found] == leads


def test_sweep_finds_the_carriers_that_were_forgotten(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """A topic that refers to the payloads and is not given is a reason to refuse, until it is a carrier or ignored."""
    topic, copies, flagged, odd, plain, apart = (make_topic(2) for _ in range(6))
    carried, orphan = place.publish(topic, b"carried", b"orphan")
    (theirs,) = place.publish(apart, b"of another topic")
    copied = refers(carried)
    place.send(copies, Record(b"k", b"plain"), copied, refers(theirs), partition=1)
    place.send(flagged, Record(None, b"\x01" + carried.encode()), refers(carried, name="bakdata-flag"))
    place.send(odd, Record(b"k", b"\xff", copied.headers))
    place.send(plain, Record(b"k", b"plain"), refers("s3://elsewhere/x/1"), refers(theirs))
    settings = place.settings(topic)
    refused = run(spark, settings)
    assert place.there() == {carried, orphan, theirs}
    assert {name: (each.references, each.unclear, each.partition) for name, each in refused.search.found.items()} == {
        copies: (1, 0, 1),
        flagged: (2, 0, 0),
        odd: (0, 1, 0),
    }
    assert f"refer to these payloads: {copies} (1 of its newest, the first in partition 1 offset 1)" in str(
        refused.refusal
    )
    assert "give each with --carrier, or with --ignore-topic" in str(refused.refusal)
    assert refused.search.searched >= 5
    # Of each partition only the newest records are looked at.
    place.send(copies, refers(theirs), partition=1)
    assert set(run(spark, dataclasses.replace(settings, search_records=1)).search.found) == {flagged, odd}
    # What there was no time for is as good as found.
    late = run(spark, dataclasses.replace(settings, search_time=timedelta(0)))
    assert {copies, flagged, odd, plain} <= set(late.search.unread)
    assert late.search.searched == 0
    assert f"{plain} (no time was left; --search-time gives more)" in str(late.refusal)

    ignored = (flagged, f"{odd[:-1]}?", f"{plain}*")
    given = dataclasses.replace(settings, carriers=(copies,), ignored=ignored)
    assert outcomes(run(spark, given)) == {"deleted": 1}
    assert place.there() == {carried, theirs}


def test_search_has_an_end(
    spark: SparkSession, place: Place, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that cannot be searched in time holds up nothing for longer: Spark's job is cancelled, and it is told."""
    topic, slow = make_topic(), make_topic()
    (orphan,) = place.publish(topic, b"orphan")
    place.send(slow, Record(b"k", b"plain"))

    def kept(_: int) -> bool:
        time.sleep(60)
        return True

    def sleeping(rows: DataFrame, *more: Any) -> DataFrame:
        keeps = sf.udf(kept, "boolean").asNondeterministic()  # or other filters come first
        return references(rows.where(keeps("offset")), *more)

    monkeypatch.setattr(other_topics, "references", sleeping)
    begun = time.monotonic()
    sweep = run(spark, place.settings(topic, search_time=timedelta(seconds=4)))
    assert time.monotonic() - begun < 50
    assert sweep.search.unread[slow] == "no time was left; --search-time gives more"
    assert place.there() == {orphan}
    until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())


def test_sweep_of_a_compacted_topic(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
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
    sweep = run(spark, place.settings(topic))
    assert (outcomes(sweep), sweep.folders[0].live, sweep.references) == ({}, 7, 8)
    sweep = run(spark, place.settings(topic, newest_only=True))
    assert (outcomes(sweep), sweep.references) == ({"deleted": 3}, 4)
    assert place.there() == {new, shared, late, replaced}


@pytest.mark.slow
def test_sweep_counts_transactions_either_way(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
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
            sweep = await asyncio.to_thread(run, spark, place.settings(topic, newest_only=True))
            await second.abort_transaction()
            return sweep

    assert outcomes(asyncio.run(transactions())) == {"deleted": 1}
    assert place.there() == {committed, aborted, still_open, behind}


def test_sweep_of_timestamps_of_other_units(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """A record whose timestamp Spark cannot hold ends no sweep, here or in another topic; a note has its place."""
    unlimited = {"message.timestamp.after.max.ms": 2**63 - 1}
    topic, other = make_topic(**unlimited), make_topic(**unlimited)
    live, odd, orphan = place.publish(topic, b"live", b"odd", b"orphan")
    place.send(topic, refers(live))
    record, nanoseconds = refers(odd), 1_700_000_000_000_000_000
    send(place.broker, topic, [(0, record.key, record.value, list(record.headers), nanoseconds)])
    send(place.broker, other, [(0, b"k", b"v", [], nanoseconds)])
    sweep = run(spark, place.settings(topic))
    assert outcomes(sweep) == {"deleted": 1}
    assert place.there() == {live, odd}
    assert orphan not in place.there()
    assert sweep.notes[0].startswith(f"topic {topic} partition 0 offset 1: the timestamp is {nanoseconds} ms")
    assert other not in sweep.search.unread


def test_sweep_reads_carriers_too(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """A dead letter or a copy keeps the payload; the carrier's own folder is not swept."""
    topic, dead = make_topic(), make_topic()
    one, two = place.publish(topic, b"1", b"2")
    (own,) = place.publish(dead, b"3")
    place.send(dead, refers(one, b"k", ("__connect.errors.topic", topic.encode())))
    sweep = run(spark, place.settings(topic, carriers=(dead,)))
    assert (outcomes(sweep), sweep.left_alone) == ({"deleted": 1}, [dead])
    assert place.there() == {one, own}
    assert two not in place.there()


def test_sweep_of_wrapped_references(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """A payload stays while a wrapper refers to it, in its topic or a carrier's."""
    topic, carrier = make_topic(1, **{"cleanup.policy": "compact"}), make_topic()
    live, carried, overwritten = place.publish(topic, b"live", b"carried", b"overwritten")
    wrap = Wrap()
    place.send(topic, wrap.wrap(refers(overwritten)), wrap.wrap(refers(live)), wrap.wrap(Record(b"p", b"plain")))
    place.send(carrier, wrap.wrap(refers(carried)))
    sweep = run(spark, place.settings(topic, carriers=(carrier,), newest_only=True))
    assert (outcomes(sweep), sweep.references) == ({"deleted": 1}, 2)
    assert place.there() == {live, carried}


@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
def test_sweep_of_bakdatas_formats(spark: SparkSession, place: Place, make_topic: MakeTopic, name: FormatName) -> None:
    """Payloads of the worker's are swept by references in the format, whose inline values are no references."""
    topic, carrier = make_topic(), make_topic()
    live, carried, _ = place.publish(topic, b"live", b"carried", b"orphan")
    inline = FORMATS[name].write_inline(Record(b"k", b"orphan"))
    place.send(topic, refers(live, name=name), inline, tombstone(b"x"))
    place.send(carrier, refers(carried), Record(b"k", b"plain, and no flag before it"))
    settings = place.settings(topic, carriers=(carrier,), reference_format=name, formats={carrier: "wideload"})
    assert outcomes(run(spark, settings)) == {"deleted": 1}
    assert place.there() == {live, carried}


def test_sweep_of_a_deleted_topic(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """Of a topic that is no more all goes that no other topic refers to; one that is there is not taken for deleted."""
    carrier, there = make_topic(), make_topic()
    gone = f"{carrier}-gone"
    carried, young = place.publish(gone, b"carried")[0], place.publish(gone, b"young", age_s=60)[0]
    place.publish(gone, b"1", b"2")
    (other,) = place.publish(there, b"3")
    place.send(carrier, refers(carried))
    with pytest.raises(ConfigurationError, match=f"--deleted-topic: topic {there} is on the brokers"):
        run(spark, place.settings(carrier, deleted_topics=(gone, there)))
    settings = place.settings(carriers=(carrier,), deleted_topics=(gone,))
    assert outcomes(run(spark, settings)) == {"deleted": 2}
    assert place.there() == {carried, young, other}
    assert outcomes(run(spark, dataclasses.replace(settings, carriers=(), ignored=(carrier,)))) == {"deleted": 1}


def test_sweep_leaves_what_is_published_while_it_runs(
    spark: SparkSession, place: Place, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphan that is published again after the listing stays, whether its record is there yet or not."""
    topic = make_topic()
    gone, again = place.publish(topic, b"orphan", b"again")
    look = orphans._too_many

    def meanwhile(*arguments: Any) -> Any:
        place.publish(topic, b"again", age_s=0)
        return look(*arguments)

    monkeypatch.setattr(orphans, "_too_many", meanwhile)
    assert outcomes(run(spark, place.settings(topic))) == {"changed": 1, "deleted": 1}
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
    spark: SparkSession, place: Place, make_topic: MakeTopic, make: Callable[[str], Record], words: str
) -> None:
    """One record that may refer to anything is a reason to delete nothing, and is named."""
    topic = make_topic()
    live, orphan = place.publish(topic, b"live", b"orphan")
    place.send(topic, refers(live), make(orphan), Record(b"k", b"plain"))
    sweep = run(spark, place.settings(topic))
    assert words in (sweep.refusal or "")
    assert f"the first in topic {topic} partition 0 offset 1" in (sweep.refusal or "")
    assert place.there() == {live, orphan}
    if "lead elsewhere" in words:
        assert outcomes(run(spark, place.settings(topic, other_roots=("file:///elsewhere/",)))) == {"deleted": 1}


def test_sweep_of_other_topics_beside_a_quarantine(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
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
    assert f"in topic {bad} partition 0 offset 1" in (run(spark, settings).refusal or "")
    sweep = run(spark, dataclasses.replace(settings, quarantined=(bad,)))
    assert (sweep.refusal, outcomes(sweep)) == (None, {"deleted": 1})
    assert (sweep.quarantined, [folder.topic for folder in sweep.folders]) == ({bad: len(nonsense)}, [topic])
    assert bad in sweep.left_alone
    assert place.there() == {live, carried, *kept}
    assert orphan not in place.there()


@pytest.mark.parametrize("part", ["value", "key"])
def test_refusal_is_safe_for_a_terminal(part: str) -> None:
    """A path that stands in a record comes without control characters, as one line of some length."""
    hostile = b"s3://b/p/\x1b[2J\x1b]0;title\x07\nsweep: done, all is well" + b" long" * 5_000 + b"/id"
    key, value = (hostile, b"v") if part == "key" else (b"k", hostile)
    [(found, _)] = _parsed(bytearray(key), bytearray(value), [], "wideload", "s3://b/p/")
    first = Row(topic="orders", partition=0, offset=7, error=found[-1])
    settings = SweepSettings(Kafka("b:1"), {}, ("orders", "others"))
    with closing(open_store({"large.message.payload.store.class": "memory"})) as store:
        told = orphans._unreadable(Row(first_wrong=first, wrong=1), settings, store) or ""
    assert r"partition 0 offset 7: begins with s3://b/p/\x1b[2J\x1b]0;title\x07\nsweep: done" in told
    assert "--quarantine orders" in told
    hidden = orphans._hidden(Row(first_hidden=first)) or ""
    assert r"it begins with s3://b/p/\x1b[2J\x1b]0;title\x07\nsweep: done" in hidden
    for text in (told, hidden):
        assert text.isprintable()
        assert len(text) < 1_500


def test_batches_in_dead_letters_are_not_looked_into() -> None:
    """As docs/sweep.md says: references in a letter that is a whole batch do not count; the letter's own does."""
    path = "s3://b/p/orders/id"
    record = refers(path)
    batch = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 10_000)
    batch.append(0, 1, record.key, record.value, list(record.headers))
    for form in BATCH_FORMS:
        mark = Row(key=MARK, value=form)
        assert not list(_parsed(None, bytearray(batch.build()), [mark], "wideload", "s3://b/p/"))
        stored = [mark, *(Row(key=name, value=value) for name, value in record.headers)]
        assert [each[2] for each, _ in _parsed(None, bytearray(path.encode()), stored, "wideload", "s3://b/p/")] == [
            path
        ]


def test_sweep_refuses_a_quarantine_of_letters(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """A dead letter whose record is elsewhere may be a sound reference: nobody may say that it is none."""
    topic, dead = make_topic(), make_topic()
    orphan = place.publish(topic, b"orphan")
    place.send(dead, refers("s3://b/t/i", b"k", (MARK, b"record")))
    sweep = run(spark, place.settings(topic, carriers=(dead,)))
    assert "--quarantine" not in (sweep.refusal or "")
    sweep = run(spark, place.settings(topic, carriers=(dead,), quarantined=(dead,)))
    assert f"topic {dead} is in quarantine, and its record in partition 0 at offset 0 may hold a sound" in (
        sweep.refusal or ""
    )
    assert place.there() == set(orphan)


def test_sweep_overwritten_nonsense_is_no_obstacle(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """With `newest_only`, a malformed record of a compacted topic that was overwritten says nothing any more."""
    topic = make_topic(1, **{"cleanup.policy": "compact"})
    (orphan,) = place.publish(topic, b"orphan")
    place.send(topic, Record(b"k", b"\xff", [("large-message", b"true")]), tombstone(b"k"))
    assert outcomes(run(spark, place.settings(topic, newest_only=True))) == {"deleted": 1}
    assert orphan not in place.there()


def test_sweep_refuses_to_delete_too_many(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """A topic of which more than the fraction would go is left whole, and so are all others of the run."""
    half, most = make_topic(), make_topic()
    kept, going = place.publish(half, b"1", b"2")
    other = place.publish(most, b"1", b"2", b"3")
    place.send(half, refers(kept))
    place.send(most, refers(other[0]))
    sweep = run(spark, place.settings(half, most, max_delete_fraction=0.5))
    assert f"2 of the 3 payloads of topic {most} would go" in (sweep.refusal or "")
    assert [folder.orphans for folder in sweep.folders] == [1, 2]
    assert place.there() == {kept, going, *other}
    assert outcomes(run(spark, place.settings(half, max_delete_fraction=0.5))) == {"deleted": 1}


@pytest.mark.parametrize("look", [2, 3], ids=["before", "after"])
def test_sweep_refuses_records_that_go_while_it_reads(
    spark: SparkSession, place: Place, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """Where Kafka deletes records during the sweep, before they were read or after, nothing is deleted."""
    topic = make_topic()
    live, orphan = place.publish(topic, b"live", b"orphan")
    place.send(topic, refers(live), refers(live), refers(live))
    looks = iter(range(1, 10))

    def deleting(*arguments: Any) -> list[Topic]:
        found = describe(*arguments)
        if next(looks) == look:
            delete_records(place.broker, topic, 2)
        # The third look is after the reading, and sees that records are gone.
        return found if look == 2 else describe(*arguments)

    monkeypatch.setattr("jobs.payloads.orphans.describe", deleting)
    assert "records were deleted" in (run(spark, place.settings(topic)).refusal or "")
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


def test_sweep_refuses_a_grace_that_is_too_short(spark: SparkSession, place: Place) -> None:
    """What is in flight would look like an orphan: less than an hour must be asked for, and says how."""
    with pytest.raises(ConfigurationError, match=r"--grace: found 59 min 59 s, allowed is 1 h or more.*short-grace"):
        run(spark, place.settings("t", grace=HOUR - timedelta(seconds=1)))
    slow = dataclasses.replace(place.settings("t"), store={**place.config, "large.message.store.timeout.ms": 7_200_000})
    with pytest.raises(ConfigurationError, match=r"--grace: found 1 h, allowed is 2 h 2 min or more"):
        run(spark, slow)
    with pytest.raises(ConfigurationError, match=r"--grace: found 1 h, allowed is 3 h or more"):
        run(spark, place.settings("t", in_flight=timedelta(hours=3)))


def test_sweep_topic_not_there(spark: SparkSession, place: Place) -> None:
    """A topic that is not there is named, and nothing is listed or deleted."""
    (path,) = place.publish("no-such-topic", b"a")
    with pytest.raises(ConfigurationError, match=r"no-such-topic is not on the broker"):
        run(spark, place.settings("no-such-topic"))
    assert place.there() == {path}


def test_sweep_of_nothing(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """An empty topic and a store without a folder are no error."""
    topic = make_topic(3)
    with closing(open_store(place.config)) as store:
        assert isinstance(store, Store)
        store.check()
    sweep = run(spark, place.settings(topic))
    assert (sweep.references, sweep.folders[0].payloads, outcomes(sweep)) == (0, 0, {})


def test_sweep_of_thousands(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
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
    sweep = run(spark, place.settings(topic))
    assert (sweep.references, outcomes(sweep)) == (3_001, {"deleted": 3_000})
    assert place.there() == {path, *live}


# --- on S3


def test_sweep_of_a_bucket(spark: SparkSession, versitygw: S3Server, broker: str, make_topic: MakeTopic) -> None:
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
    dry = run(spark, dataclasses.replace(settings, delete=False))
    assert (dry.folders[0].payloads, dry.folders[0].live, dry.folders[0].orphans) == (602, 1, 601)
    assert place.there() == {live, overwritten, *orphans}
    assert outcomes(run(spark, settings)) == {"deleted": 601}
    assert place.there() == {live}


def newest_second(place: Place) -> float:
    with closing(open_store(place.config)) as store:
        assert isinstance(store, List)
        return max(info.modified.timestamp() for info in store.list())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
