"""References that become values: each format, both parts, what is wrong with them, and how much memory they take."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from jobs.driver.failures import JobFailedError
from jobs.inflate import OnError, _Inflation, inflate, split
from jobs.records.arrow import INPUT_BYTES
from jobs.records.inflater import Inflater, InflaterSettings
from tests.app.payloads.swept import filesystem
from tests.jobs.rows import SOURCE, batch, frame, published, record_of, records_of, referring
from transforms.errors import ConfigurationError
from transforms.formats import FORMATS, FormatName
from transforms.record import Header, Record, RecordLike
from transforms.reference import KEY, Reference
from transforms.wrapper import HeaderTable, Unwrap, Wrap

REPOSITORY = Path(__file__).resolve().parents[2]
Problems = list[tuple[str, str] | None]


@pytest.fixture
def store(tmp_path: Path) -> dict[str, object]:
    return filesystem(tmp_path / "payloads")


def stored(store: dict[str, object], value: bytes, *own: Header, **more: Any) -> Record:
    """A record whose value is in the store."""
    return referring(store, "t", Record(b"k", value, own), **more)


def restored(settings: InflaterSettings, records: Iterable[Record]) -> list[tuple[RecordLike, str | None]]:
    with closing(Inflater(settings)) as inflater:
        return [
            (found.record, None if found.problem is None else found.problem.state)
            for found in inflater.inflated(((n, each, None) for n, each in enumerate(records)), str)
        ]


def inflated(
    store: dict[str, object], records: Sequence[Record], on_error: OnError = "fail", **more: Any
) -> tuple[list[Record], Problems]:
    """What a task makes of rows, and of `inflate_error`."""
    found = _Inflation(InflaterSettings(store, **more), on_error)(iter([batch(records)]))
    rows = [row for each in found for row in each.to_pylist()]
    assert [row["offset"] for row in rows] == [*range(len(records))]
    errors = (row.get("inflate_error") for row in rows)
    return [record_of(row) for row in rows], [each and (each["which"], each["state"]) for each in errors]


def listed(*records: Record) -> list[Record]:
    return [Record(r.key, r.value, list(r.headers)) for r in records]


# --- memory, and downloads at a time


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
from jobs.inflate import _Inflation
from jobs.records.inflater import InflaterSettings
from tests.jobs.rows import batch
from transforms.record import Record
from transforms.reference import Reference

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

root, path, size, count, held = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
store = {"large.message.payload.store.class": "filesystem", "filesystem.root": root}
records = batch([Record(b"k", path.encode(), Reference(path, size).headers())] * count)
before = peak()
rows = done = 0
for out in _Inflation(InflaterSettings(store, held_bytes=held * 2**20), "fail")(iter([records])):
    rows += out.num_rows
    done += len(out.column("value")[0].as_buffer())
print(rows, done, peak() - before)
"""


def test_inflate_memory_of_a_task(store: dict[str, object]) -> None:
    """A task that restores 640 MiB of one partition takes little more than it may hold."""
    size = 8 * 2**20
    path = published(store, "t", random.Random(1).randbytes(size)).path
    command = [sys.executable, "-c", PEAK, str(store["filesystem.root"]), path, str(size), "80", "32"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    rows, restored_bytes, grown_mib = map(int, done.stdout.split())
    assert (rows, restored_bytes) == (80, 80 * size)
    assert grown_mib < 32 + 2 * 8


def test_inflater_large_payload_of_unknown_size(store: dict[str, object]) -> None:
    """The seed's own format says no size: what is larger than its share comes all the same, in its place."""
    values = [bytes([n]) * size for n, size in enumerate([10, 90_000, 20, 5_000, 90_000, 30])]
    records = [Record(b"k", published(store, "t", v).path.encode(), [("large-message", b"true")]) for v in values]
    settings = InflaterSettings(store, held_bytes=32_000, threads=4)
    assert [r.value for r, _ in restored(settings, records)] == values
    small = InflaterSettings(store | {"large.message.max.bytes": 50_000}, held_bytes=32_000)
    assert [state for _, state in restored(small, records)] == [None, "too-large", None, None, "too-large", None]


# --- a task


def test_inflater_takes_wrappers_off(store: dict[str, object]) -> None:
    """What is wrapped is restored as if it were not; what is no wrapper, or refers to nothing, is told."""
    table = HeaderTable({3_000_001: "trace"})
    wrap, unwrap = Wrap(table), Unwrap(table)
    value = stored(store, b"stored", ("trace", b"1"), codec="zstd")
    key = published(store, "t", b"a large key")
    missing = Record(b"k", f"file://{store['filesystem.root']}/t/nothing".encode(), (("large-message", b"true"),))
    piece = Record(b"k", b"\0 piece", [("large-message.chunk.uuid", b"u")])
    both = Record(key.path.encode(), None, [("trace", b"2"), *key.headers(KEY)])
    log = [wrap.wrap(value), wrap.wrap(both), wrap.wrap(Record(b"k", b"v")), wrap.wrap(missing), Record(b"k", b"plain")]
    log = [*log, piece, Record(b"k", None, [("x", b"1")])]
    found = restored(InflaterSettings(store, unwrap=unwrap, held_bytes=100), log)
    assert found[:3] == [
        (Record(b"k", b"stored", (("trace", b"1"),)), None),
        (Record(b"a large key", None, (("trace", b"2"),)), None),
        (Record(b"k", b"v", ()), None),
    ]
    assert [state for _, state in found[3:]] == ["missing", "malformed", None, None]
    assert [record for record, _ in found[4:]] == log[4:]
    passing = restored(InflaterSettings(store, unwrap=Unwrap(table, "pass")), log[3:5])
    assert passing == [(missing, "missing"), (log[4], None)]


@pytest.mark.parametrize("plain", ["fail", "pass"])
def test_inflate_of_wrappers(store: dict[str, object], plain: Literal["fail", "pass"]) -> None:
    """Wrapped references become values; what cannot be restored is kept as it is in the log, wrapper and all."""
    log = [stored(store, b"stored"), wrong(store)[0][0], Record(b"k", None), Record(b"k", b"v")]
    plain_values = [Record(b"k", b"\0plain", [("x", b"1")]), Record(b"k", b"plain", [])]
    wrapped = [*map(Wrap().wrap, log), *plain_values, stored(store, b"unwrapped")]
    found, problems = inflated(store, wrapped, "keep", unwrap=Unwrap(plain=plain))
    assert [each.value for each in found[:4]] == [b"stored", wrapped[1].value, None, b"v"]
    last: Problems = [None] * 3 if plain == "pass" else [("value", "malformed")] * 3
    assert problems == [None, ("value", "missing"), None, None, *last]
    assert found[4:6] == plain_values
    assert found[6:] == listed(Record(b"k", b"unwrapped") if plain == "pass" else wrapped[6])


@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
def test_inflate_bakdatas_formats(store: dict[str, object], name: FormatName) -> None:
    """In bakdata's formats references become values, and values lose their mark."""
    log = [
        FORMATS[name].write_inline(Record(b"k", b"inline", [("x", b"1")])),
        stored(store, b"stored", ("x", b"2"), name=name),
        stored(store, b"text " * 999, codec="gzip", name=name),
        Record(b"k", None),
    ]
    assert inflated(store, log, reference_format=name)[0] == [
        Record(b"k", b"inline", [("x", b"1")]),
        Record(b"k", b"stored", [("x", b"2")]),
        Record(b"k", b"text " * 999, []),
        Record(b"k", None, []),
    ]


def wrong(store: dict[str, object]) -> list[tuple[Record, str, str]]:
    """Records that cannot be restored, with what they come to."""
    missing = Reference(f"file://{store['filesystem.root']}/t/nothing", 5)
    good = published(store, "t", b"12345")

    def value(reference: Reference) -> Record:
        return Record(b"k", (good.path if reference.path == "-" else reference.path).encode(), reference.headers())

    return [
        (value(missing), "value", "missing"),
        (value(Reference("file:///etc/passwd")), "value", "refused"),
        (value(Reference("-", 5, "0" * 64)), "value", "checksum"),
        (value(Reference("-", 4, good.checksum)), "value", "size"),
        (value(Reference("-", 2**40)), "value", "too-large"),
        (Record(b"k", b"\xff", [("large-message", b"true")]), "value", "malformed"),
        (Record(missing.path.encode(), b"v", missing.headers(KEY)), "key", "missing"),
    ]


def test_inflate_null(store: dict[str, object]) -> None:
    """What cannot be restored is null with the reason beside it; the rest of the row, and other rows, are there."""
    cases = wrong(store)
    records, problems = inflated(store, [*(case[0] for case in cases), stored(store, b"there")], "null")
    assert problems == [*(case[1:] for case in cases), None]
    assert [each.value for each in records] == [*[None] * 6, b"v", b"there"]
    assert [each.key for each in records] == [*[b"k"] * 6, None, b"k"]


@pytest.mark.parametrize("on_error", ["fail", "null"])
def test_inflate_fails(store: dict[str, object], on_error: OnError) -> None:
    """Without a choice a payload that is missing is a failure that names the record; a store that is gone always is."""
    log = [Record(b"k", b"plain"), wrong(store)[0][0], stored(store, b"there")]
    if on_error == "fail":
        with pytest.raises(JobFailedError, match="topic t partition 0 offset 1: the value cannot be restored: there"):
            inflated(store, log)
    root = Path(str(store["filesystem.root"]))
    root.rename(root.with_name("gone"))
    with pytest.raises(
        JobFailedError, match=r"topic t partition 0 offset 1: the payload store failed: .*is it mounted"
    ):
        inflated(store, [log[0], log[2]], on_error)


def test_inflate_takes_no_more_than_is_asked_for(store: dict[str, object]) -> None:
    """A query that ends early leaves the task without a failure."""
    rows = _Inflation(InflaterSettings(store), "fail")(
        iter([batch([stored(store, b"%d" % n * 600_000) for n in range(4)])])
    )
    assert next(rows).num_rows < 4
    rows.close()  # type: ignore[attr-defined] # it is a generator


# --- with Spark


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference_format": "other"}, "format: found 'other', allowed are wideload, bakdata-headers, bakdata-flag"),
        ({"on_error": "skip"}, "on_error: found 'skip', allowed are fail, null, keep"),
        ({"max_bytes": 0}, "max_bytes: found 0, allowed is 1 or more"),
        ({"store": {"filesystem.rot": "x"}}, r"did you mean filesystem\.root"),
        (
            {"reference_format": "bakdata-flag", "store": {"large.message.signing.key": "k" * 32}},
            "large.message.signing.key: cannot be combined with format 'bakdata-flag', which has no signatures",
        ),
    ],
)
def test_inflate_bad_argument(
    spark: SparkSession, store: dict[str, object], changes: dict[str, Any], message: str
) -> None:
    """A wrong argument is told when `inflate` is called, before Spark does anything; so is a column that is missing."""
    with pytest.raises(ConfigurationError, match=message):
        inflate(frame(spark), store | changes.pop("store", {}), **changes)
    with pytest.raises(ValueError, match="includeHeaders"):
        inflate(frame(spark).drop("headers"), store)


def test_driver_without_pandas(spark: SparkSession, store: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark requires pandas there, and one sentence says so."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigurationError, match=r"^driver: lacks a package that PySpark requires: .*andas >= "):
        inflate(frame(spark, []), store)


@pytest.mark.matrix
def test_inflate_restores_records(spark: SparkSession, store: dict[str, object]) -> None:
    """Values and keys come back whole, in order, with the headers that the records had; other rows are untouched."""
    key, value = published(store, "t", b"a large key" * 9), published(store, "t", b"its value")
    both = Record(key.path.encode(), value.path.encode(), [("x", b"1"), *key.headers(KEY), *value.headers()])
    large = random.Random(1).randbytes(3_000_000)
    own: list[Header] = [("x", b"1"), ("large-message", b"no"), ("x", None)]
    pairs = [
        (plain := Record(b"k", b"plain", [("x", b"1")]), plain),
        (stored(store, b"one", *own), Record(b"k", b"one", own)),
        (stored(store, b"text " * 999, codec="zstd"), Record(b"k", b"text " * 999)),
        (stored(store, large), Record(b"k", large)),
        (both, Record(b"a large key" * 9, b"its value", [("x", b"1")])),
        (Record(key.path.encode(), None, key.headers(KEY)), Record(b"a large key" * 9, None)),
        (tombstone := Record(b"k", None, [("large-message", b"true")]), tombstone),
        (piece := Record(b"k", b"p", [("large-message.chunk.uuid", b"u"), ("large-message", b"true")]), piece),
        (empty := Record(None, b"", ()), empty),
        (stored(store, b"two"), Record(b"k", b"two")),
    ]
    rows = inflate(frame(spark, [sent for sent, _ in pairs]).selectExpr("*", "offset * 2 AS more"), store)
    found = rows.collect()
    assert [record_of(row) for row in found] == listed(*(record for _, record in pairs))
    assert rows.columns == [*SOURCE.fieldNames(), "more"]
    assert [(row.offset, row.more, row.timestampType) for row in found] == [(n, 2 * n, 0) for n in range(len(pairs))]
    assert found[3].timestamp.replace(tzinfo=UTC).timestamp() == -1
    assert found[8].headers is None
    limit = ("maxRecordsPerBatch", 16) if spark.version.startswith("3.") else ("maxBytesPerBatch", INPUT_BYTES)
    assert int(spark.conf.get(f"spark.sql.execution.arrow.{limit[0]}") or 0) == limit[1]


def test_inflate_keep_and_split(spark: SparkSession, store: dict[str, object]) -> None:
    """What cannot be restored stays as it is in the log, and becomes a dead letter with Connect's headers."""
    cases = wrong(store)
    rows = inflate(frame(spark, [*(case[0] for case in cases), stored(store, b"there")]), store, on_error="keep")
    good, dead = split(rows)
    assert [r.value for r in records_of(good)] == [b"there"]
    assert good.columns == SOURCE.fieldNames()
    assert dead.columns == ["key", "value", "headers"]
    letters = [record_of(row) for row in dead.collect()]
    for letter, (record, which, state) in zip(letters, cases, strict=True):
        own = len(record.headers)
        assert Record(letter.key, letter.value, letter.headers[:own]) == listed(record)[0]
        context = dict(letter.headers[own:])
        assert context["__connect.errors.topic"] == b"t"
        assert context["__connect.errors.exception.class.name"] == f"{which} {state}".encode()
    assert [dict(letter.headers)["__connect.errors.offset"] for letter in letters] == [b"%d" % n for n in range(7)]
    with pytest.raises(ValueError, match="on_error"):
        split(frame(spark))
