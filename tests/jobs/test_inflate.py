"""References that become values: each format, both parts, what is wrong with them, and how much memory they take."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from jobs.driver.failures import JobFailedError
from jobs.inflate import inflate, split
from jobs.records.arrow import INPUT_BYTES
from jobs.records.inflater import Inflater, InflaterSettings
from jobs.records.schemas import HEADERS
from stores.registry import open_store
from transforms.compression import Codec
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS, FormatName
from transforms.offload import Offload
from transforms.record import Header, Record, RecordLike
from transforms.reference import KEY, Reference
from transforms.wrapper import HeaderTable, Unwrap, Wrap

REPOSITORY = Path(__file__).resolve().parents[2]

SOURCE = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", HEADERS),
    ]
)


def frame(spark: SparkSession, *partitions: Sequence[Record]) -> DataFrame:
    """Rows as Spark's Kafka source has them; offsets are positions in the lists."""
    rows = [
        (r.key, r.value, "t", number, offset, datetime.fromtimestamp(5, UTC), 0, list(r.headers) or None)
        for number, records in enumerate(partitions)
        for offset, r in enumerate(records)
    ]
    return spark.createDataFrame(rows, SOURCE)


def record_of(row: Row) -> Record:
    def plain(data: bytearray | None) -> bytes | None:
        return None if data is None else bytes(data)

    headers = [(header.key, plain(header.value)) for header in row.headers or ()]
    return Record(plain(row.key), plain(row.value), headers)


def records_of(rows: DataFrame) -> list[Record]:
    return [record_of(row) for row in rows.orderBy("partition", "offset").collect()]


class Place:
    """A folder of payloads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config: dict[str, object] = {
            "large.message.payload.store.class": "filesystem",
            "filesystem.root": str(root),
            "filesystem.fsync": False,
        }

    def publish(self, value: bytes, codec: Codec | None = None, name: FormatName = "wideload") -> Reference:
        payload = Offload(codec=codec, format=FORMATS[name]).payload(value)
        with closing(open_store(self.config)) as store:
            return payload.reference(store.publish("t", payload.data))

    def referring(
        self, value: bytes, *own: Header, codec: Codec | None = None, name: FormatName = "wideload"
    ) -> Record:
        return FORMATS[name].write_reference(Record(b"k", value, own), self.publish(value, codec, name))

    def settings(self, **changes: Any) -> InflaterSettings:
        return InflaterSettings(self.config, **changes)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "payloads")


# --- without Spark


def restored(settings: InflaterSettings, records: Iterable[Record]) -> list[tuple[RecordLike, str | None]]:
    with closing(Inflater(settings)) as inflater:
        return [
            (found.record, None if found.problem is None else found.problem.state)
            for found in inflater.inflated(((n, each, None) for n, each in enumerate(records)), str)
        ]


class HeldStore:
    """A store that counts how many bytes are asked for and not yet taken by who asked."""

    KEYS = ("sizes",)
    asked = 0
    most = 0
    lock = threading.Lock()

    def configure(self, config: object) -> None: ...

    def publish(self, topic: str, data: bytes) -> str:
        raise NotImplementedError

    def download(self, full_path: str) -> bytes:
        size = int(full_path.rpartition("/")[2])
        with HeldStore.lock:
            HeldStore.asked += size
            HeldStore.most = max(HeldStore.most, HeldStore.asked)
        return bytes(size)

    def id(self, data: bytes) -> str:
        return "x"

    def close(self) -> None: ...


def test_inflater_holds_no_more_than_allowed() -> None:
    """Payloads that are asked for and not yet given stay below the bound, or are one record."""
    HeldStore.asked = HeldStore.most = 0
    sizes = [random.Random(3).choice([10, 400, 1_000, 5_000]) for _ in range(300)]
    settings = InflaterSettings({"large.message.payload.store.class": HeldStore}, held_bytes=2_000, threads=4)
    records = [Record(b"k", b"%d" % size, Reference("-", size).headers()) for size in sizes]
    found = []
    with closing(Inflater(settings)) as inflater:
        for each in inflater.inflated(((n, each, None) for n, each in enumerate(records)), str):
            found.append(len(each.record.value or b""))
            with HeldStore.lock:
                HeldStore.asked -= found[-1]
    assert found == sizes
    assert 1_000 < HeldStore.most <= 5_000 + 2_000


class MeetingStore(HeldStore):
    """A store that answers when four have asked."""

    together = threading.Barrier(4)

    def download(self, full_path: str) -> bytes:
        MeetingStore.together.wait(timeout=30)
        return b"v" * 10


def test_inflater_downloads_several_at_a_time() -> None:
    """One task downloads as many payloads at a time as it may, so a partition with all the large ones is not slow."""
    settings = InflaterSettings({"large.message.payload.store.class": MeetingStore}, held_bytes=100, threads=4)
    records = [Record(b"k", b"path", Reference("-", 10).headers())] * 12
    assert [r.value for r, _ in restored(settings, records)] == [b"v" * 10] * 12


PEAK = """
import resource, sys
import pyarrow as pa
from jobs.driver.failures import JobFailedError
from jobs.inflate import _Inflation
from jobs.records.inflater import InflaterSettings

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

root, path, size, count, held = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
store = {"large.message.payload.store.class": "filesystem", "filesystem.root": root}
headers = [{"key": "large-message", "value": b"true"}, {"key": "large-message.size", "value": b"%d" % size}]
kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
batch = pa.RecordBatch.from_pydict({
    "key": pa.nulls(count, pa.binary()), "value": pa.array([path.encode()] * count, pa.binary()),
    "topic": ["t"] * count, "partition": [0] * count, "offset": list(range(count)),
    "headers": pa.array([headers] * count, kind),
})
before = peak()
rows = done = 0
for out in _Inflation(InflaterSettings(store, held_bytes=held * 2**20), "fail")(iter([batch])):
    rows += out.num_rows
    done += len(out.column("value")[0].as_buffer())
print(rows, done, peak() - before)
"""


def test_inflate_memory_of_a_task(place: Place) -> None:
    """A task that restores 640 MiB of one partition takes little more than it may hold."""
    size = 8 * 2**20
    path = place.publish(random.Random(1).randbytes(size)).path
    arguments = [str(place.root), path, str(size), "80", "32"]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    rows, restored_bytes, grown_mib = map(int, done.stdout.split())
    assert (rows, restored_bytes) == (80, 80 * size)
    assert grown_mib < 32 + 2 * 8


def test_inflater_large_payload_of_unknown_size(place: Place) -> None:
    """The seed's own format says no size: what is larger than its share comes all the same, in its place."""
    values = [bytes([n]) * size for n, size in enumerate([10, 90_000, 20, 5_000, 90_000, 30])]
    records = [Record(b"k", place.publish(v).path.encode(), [("large-message", b"true")]) for v in values]
    assert [r.value for r, _ in restored(place.settings(held_bytes=32_000, threads=4), records)] == values
    small = place.settings(held_bytes=32_000)
    assert isinstance(small.store, dict)
    small.store["large.message.max.bytes"] = 50_000
    assert [state for _, state in restored(small, records)] == [None, "too-large", None, None, "too-large", None]


def test_inflater_store_that_fails_is_no_fault_of_the_record(place: Place) -> None:
    """A store that is not there raises, whichever record asked; nothing is called missing."""
    record = place.referring(b"value")
    place.root.rename(place.root.with_name("gone"))
    with pytest.raises(JobFailedError, match=r"^0: the payload store failed: .*is it mounted"):
        restored(place.settings(), [record])


def test_inflater_takes_wrappers_off(place: Place) -> None:
    """What is wrapped is restored as if it were not; what is no wrapper, or refers to nothing, is told."""
    table = HeaderTable({3_000_001: "trace"})
    wrap, unwrap = Wrap(table), Unwrap(table)
    value = place.referring(b"stored", ("trace", b"1"), codec="zstd")
    key = place.publish(b"a large key")
    missing = Record(b"k", f"file://{place.root}/t/nothing".encode(), (("large-message", b"true"),))
    piece = Record(b"k", b"\0 piece", [("large-message.chunk.uuid", b"u")])
    both = Record(key.path.encode(), None, [("trace", b"2"), *key.headers(KEY)])
    log = [wrap.wrap(value), wrap.wrap(both), wrap.wrap(Record(b"k", b"v")), wrap.wrap(missing), Record(b"k", b"plain")]
    log = [*log, piece, Record(b"k", None, [("x", b"1")])]
    found = restored(place.settings(unwrap=unwrap, held_bytes=100), log)
    assert found[:3] == [
        (Record(b"k", b"stored", (("trace", b"1"),)), None),
        (Record(b"a large key", None, (("trace", b"2"),)), None),
        (Record(b"k", b"v", ()), None),
    ]
    assert [state for _, state in found[3:]] == ["missing", "malformed", None, None]
    assert [record for record, _ in found[4:]] == log[4:]
    passing = restored(place.settings(unwrap=Unwrap(table, "pass")), log[3:5])
    assert passing == [(missing, "missing"), (log[4], None)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference_format": "other"}, "format: found 'other', allowed are wideload, bakdata-headers, bakdata-flag"),
        ({"on_error": "skip"}, "on_error: found 'skip', allowed are fail, null, keep"),
        ({"max_bytes": 0}, "max_bytes: found 0, allowed is 1 or more"),
        (
            {"reference_format": "bakdata-flag", "store": {"large.message.signing.key": "k" * 32}},
            "large.message.signing.key: cannot be combined with format 'bakdata-flag', which has no signatures",
        ),
    ],
)
def test_inflate_bad_argument(spark: SparkSession, place: Place, changes: dict[str, Any], message: str) -> None:
    """A wrong argument is told when `inflate` is called, before Spark does anything."""
    store = place.config | changes.pop("store", {})
    with pytest.raises(ConfigurationError, match=message):
        inflate(frame(spark), store, **changes)


def test_inflate_bad_store(spark: SparkSession, place: Place) -> None:
    """A wrong key of the store is told when `inflate` is called; so is a column that is missing."""
    with pytest.raises(ConfigurationError, match=r"did you mean filesystem\.root"):
        inflate(frame(spark), place.config | {"filesystem.rot": "x"})
    with pytest.raises(ValueError, match="includeHeaders"):
        inflate(frame(spark).drop("headers"), place.config)


# --- with Spark


@pytest.mark.matrix
def test_inflate_restores_records(spark: SparkSession, place: Place) -> None:
    """Values and keys come back whole, in order, with the headers that the records had; other rows are untouched."""
    key = place.publish(b"a large key" * 9)
    value = place.publish(b"its value")
    both = Record(key.path.encode(), value.path.encode(), [("x", b"1"), *key.headers(KEY), *value.headers()])
    large = random.Random(1).randbytes(3_000_000)
    own: list[Header] = [("x", b"1"), ("large-message", b"no"), ("x", None)]
    log = [
        Record(b"k", b"plain", [("x", b"1")]),
        place.referring(b"one", *own),
        place.referring(b"text " * 999, codec="zstd"),
        place.referring(large),
        both,
        Record(key.path.encode(), None, key.headers(KEY)),
        Record(b"k", None, [("large-message", b"true")]),
        Record(b"k", b"a piece", [("large-message.chunk.uuid", b"u"), ("large-message", b"true")]),
        Record(None, b"", ()),
        place.referring(b"two"),
    ]
    rows = inflate(frame(spark, log).selectExpr("*", "offset * 2 AS more"), place.config)
    whole = [
        log[0],
        Record(b"k", b"one", own),
        Record(b"k", b"text " * 999),
        Record(b"k", large),
        Record(b"a large key" * 9, b"its value", [("x", b"1")]),
        Record(b"a large key" * 9, None),
        log[6],
        log[7],
        log[8],
        Record(b"k", b"two"),
    ]
    found = rows.collect()
    assert [record_of(row) for row in found] == [Record(r.key, r.value, list(r.headers)) for r in whole]
    assert rows.columns == [*SOURCE.fieldNames(), "more"]
    assert [(row.offset, row.more, row.timestampType) for row in found] == [(n, 2 * n, 0) for n in range(len(log))]
    assert found[3].timestamp.replace(tzinfo=UTC).timestamp() == 5
    assert found[8].headers is None
    limit = ("maxRecordsPerBatch", 16) if spark.version.startswith("3.") else ("maxBytesPerBatch", INPUT_BYTES)
    assert int(spark.conf.get(f"spark.sql.execution.arrow.{limit[0]}") or 0) == limit[1]


def test_driver_without_pandas(spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark requires pandas there, and one sentence says so."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigurationError, match=r"^driver: lacks a package that PySpark requires: .*andas >= "):
        inflate(frame(spark, []), place.config)


@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
def test_inflate_bakdatas_formats(spark: SparkSession, place: Place, name: FormatName) -> None:
    """In bakdata's formats references become values, and values lose their mark."""
    form = FORMATS[name]
    log = [
        form.write_inline(Record(b"k", b"inline", [("x", b"1")])),
        place.referring(b"stored", ("x", b"2"), name=name),
        place.referring(b"text " * 999, codec="gzip", name=name),
        Record(b"k", None),
    ]
    found = records_of(inflate(frame(spark, log), place.config, reference_format=name))
    assert found == [
        Record(b"k", b"inline", [("x", b"1")]),
        Record(b"k", b"stored", [("x", b"2")]),
        Record(b"k", b"text " * 999, []),
        Record(b"k", None, []),
    ]


def wrong(place: Place) -> list[tuple[Record, str, str]]:
    """Records that cannot be restored, with what they come to."""
    there = place.referring(b"there")
    missing = Reference(f"file://{place.root}/t/nothing", 5)
    outside = Reference("file:///etc/passwd")
    good = place.publish(b"12345")
    forged = Reference(good.path, 5, "0" * 64)
    short = Reference(good.path, 4, good.checksum)
    key = Record(missing.path.encode(), b"v", missing.headers(KEY))
    return [
        (Record(b"k", missing.path.encode(), missing.headers()), "value", "missing"),
        (Record(b"k", outside.path.encode(), outside.headers()), "value", "refused"),
        (Record(b"k", good.path.encode(), forged.headers()), "value", "checksum"),
        (Record(b"k", good.path.encode(), short.headers()), "value", "size"),
        (Record(b"k", good.path.encode(), Reference("-", 2**40).headers()), "value", "too-large"),
        (Record(b"k", b"\xff", [("large-message", b"true")]), "value", "malformed"),
        (key, "key", "missing"),
        (Record(b"k", there.value, there.headers), "", ""),
    ]


def test_inflate_null(spark: SparkSession, place: Place) -> None:
    """What cannot be restored is null with the reason beside it; the rest of the row, and other rows, are there."""
    cases = wrong(place)
    rows = inflate(frame(spark, [case[0] for case in cases]), place.config, on_error="null").orderBy("offset").collect()
    assert [(row.inflate_error.which, row.inflate_error.state) for row in rows[:-1]] == [c[1:] for c in cases[:-1]]
    assert [row.value for row in rows[:6]] == [None] * 6
    assert (rows[6].key, bytes(rows[6].value)) == (None, b"v")
    assert (bytes(rows[7].value), rows[7].inflate_error, rows[7].headers) == (b"there", None, None)
    assert "there is no payload at" in rows[0].inflate_error.detail


@pytest.mark.parametrize("plain", ["fail", "pass"])
def test_inflate_of_wrappers(spark: SparkSession, place: Place, plain: Literal["fail", "pass"]) -> None:
    """Wrapped references become values; what cannot be restored is kept as it is in the log, wrapper and all."""
    lost = wrong(place)[0][0]
    log = [place.referring(b"stored"), lost, Record(b"k", None), Record(b"k", b"v")]
    wrapped = [*map(Wrap().wrap, log), Record(b"k", b"\0plain", [("x", b"1")]), place.referring(b"unwrapped")]
    rows = inflate(frame(spark, wrapped), place.config, on_error="keep", unwrap=Unwrap(plain=plain)).orderBy("offset")
    found = rows.collect()
    assert [record_of(row).value for row in found[:4]] == [b"stored", wrapped[1].value, None, b"v"]
    states = [row.inflate_error and row.inflate_error.state for row in found]
    plain_states = [None, None] if plain == "pass" else ["malformed", "malformed"]
    assert states == [None, "missing", None, None, *plain_states]
    assert record_of(found[4]) == wrapped[4]
    assert record_of(found[5]) == (Record(b"k", b"unwrapped", []) if plain == "pass" else as_list(wrapped[5]))


def as_list(record: Record) -> Record:
    return Record(record.key, record.value, list(record.headers))


def test_inflate_keep_and_split(spark: SparkSession, place: Place) -> None:
    """What cannot be restored stays as it is in the log, and becomes a dead letter with Connect's headers."""
    cases = wrong(place)
    rows = inflate(frame(spark, [case[0] for case in cases]), place.config, on_error="keep")
    whole, dead = split(rows)
    assert [r.value for r in records_of(whole)] == [b"there"]
    assert whole.columns == SOURCE.fieldNames()
    assert dead.columns == ["key", "value", "headers"]
    letters = [record_of(row) for row in dead.collect()]
    for letter, (record, which, state) in zip(letters, cases, strict=False):
        assert (letter.key, letter.value) == (record.key, record.value)
        own = len(record.headers)
        assert list(letter.headers[:own]) == list(record.headers)
        context = dict(letter.headers[own:])
        assert context["__connect.errors.topic"] == b"t"
        assert context["__connect.errors.exception.class.name"] == f"{which} {state}".encode()
    assert [dict(letter.headers)["__connect.errors.offset"] for letter in letters] == [b"%d" % n for n in range(7)]
    with pytest.raises(ValueError, match="on_error"):
        split(frame(spark))


def test_inflate_fail_names_the_record(spark: SparkSession, place: Place) -> None:
    """Without a choice a payload that is missing is a failure that says which record it was."""
    log = [place.referring(b"there"), wrong(place)[0][0]]
    with pytest.raises(PythonException, match="topic t partition 1 offset 1: the value cannot be restored: there"):
        inflate(frame(spark, [], log), place.config).collect()


@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_inflate_store_that_is_gone(spark: SparkSession, place: Place, on_error: Any) -> None:
    """A store that does not answer is a failure whatever was chosen, and no row is called missing."""
    rows = inflate(frame(spark, [Record(b"k", b"plain"), place.referring(b"there")]), place.config, on_error=on_error)
    place.root.rename(place.root.with_name("gone"))
    with pytest.raises(PythonException, match="topic t partition 0 offset 1: the payload store failed: there is"):
        rows.collect()


def test_inflate_takes_no_more_than_is_asked_for(spark: SparkSession, place: Place) -> None:
    """A query that ends early leaves the task without a failure."""
    rows = inflate(frame(spark, [place.referring(b"%d" % n * 50_000) for n in range(40)]), place.config)
    assert [bytes(row.value[:1]) for row in rows.limit(2).collect()] == [b"0", b"1"]
