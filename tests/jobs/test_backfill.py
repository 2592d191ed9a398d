"""Backfill between real topics: into references and back, from each form, with restarts in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.records_to_delete import RecordsToDelete
from pyspark.sql import SparkSession

from app.config.arguments import configure
from jobs.backfill import _parser, _settings, _tell, main
from jobs.copying.forms import Tally
from jobs.copying.partitions import Backfill, run
from jobs.copying.range import BackfillSettings, Outcome, copied
from jobs.copying.writer import SinkTopic, sink_topic
from jobs.driver.failures import JobFailedError
from jobs.driver.session import SessionSettings
from jobs.reading.ranges import OffsetRange
from stores.registry import open_store
from stores.store import Delete
from tests.integration.operations import Operations
from tests.integration.topics import Found, end_offsets, read_all, send
from tests.s3_server import S3Server, s3_server_or_skip
from tests.vectors.bakdata import bakdata_cases
from transforms.chunk import Chunking
from transforms.formats import FORMATS, FormatName
from transforms.offload import Offload
from transforms.record import Header, Record
from transforms.reference import Reference, is_reference

REPOSITORY = Path(__file__).resolve().parents[2]
MakeTopic = Callable[..., str]
Row = tuple[bytes | None, bytes | None, tuple[Header, ...], int]

THRESHOLD = 1_000
STARTED_MS = 1_600_000_000_000


class Place:
    """A store, and the command on the tests' own session."""

    def __init__(self, broker: str, folder: Path, config: Mapping[str, object]) -> None:
        self.broker = broker
        self.folder = folder
        self.config = config

    def arguments(self, source: str, sink: str, to: str, *more: str) -> list[str]:
        config = {key: str(value).lower() if isinstance(value, bool) else value for key, value in self.config.items()}
        return [
            *("--bootstrap-servers", self.broker, "--source", source, "--sink", sink, "--to", to),
            *("--checkpoint", str(self.folder / f"checkpoint-{sink}"), "--threshold-bytes", str(THRESHOLD)),
            *(part for key, value in config.items() for part in ("--store", f"{key}={value}")),
            *more,
        ]

    def run(self, source: str, sink: str, to: str, *more: str) -> int:
        return main(self.arguments(source, sink, to, *more))

    def send(self, topic: str, records: Sequence[Record], partition: int = 0) -> None:
        send(self.broker, topic, [(partition, r.key, r.value, r.headers, r.timestamp) for r in records])

    def rows(self, topic: str) -> dict[int, list[Row]]:
        return {number: rows_of(found) for number, found in read_all(self.broker, topic).items()}

    def referring(self, topic: str, record: Record) -> Record:
        work = Offload(0)
        assert record.value is not None
        payload = work.payload(record.value)
        with closing(open_store(self.config)) as store:
            return work.refer(record, payload.reference(store.publish(topic, payload.data)))

    def lose(self, record: Record) -> bytes:
        """Removes a record's payload; gives what it was."""
        assert record.value is not None
        with closing(open_store(self.config)) as store:
            assert isinstance(store, Delete)
            data = store.download(record.value.decode())
            store.delete(record.value.decode())
        return data


def rows_of(found: Sequence[Found]) -> list[Row]:
    return [(each.key, each.value, each.headers, each.timestamp) for each in found]


async def delete_below(broker: str, topic: str, offset: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=offset)})
    finally:
        await admin.close()


def row(record: Record) -> Row:
    return record.key, record.value, tuple(record.headers), record.timestamp


def large(seed: int, size: int = 5_000) -> bytes:
    return random.Random(seed).randbytes(size)


def of_all_kinds(seed: int) -> list[Record]:
    """Records of every kind that a topic may hold, whose timestamps do not go up."""
    headers: list[Header] = [("trace", b"1"), ("trace", None), ("", b"")]
    return [
        Record(b"small", b"value", headers, STARTED_MS),
        Record(b"large", large(seed), headers, STARTED_MS - 5),
        Record(b"small", None, [("why", b"deleted")], STARTED_MS + 1),
        Record(None, large(seed + 1), (), STARTED_MS + 7),
        Record(b"empty", b"", (), STARTED_MS),
        Record(None, None, (), STARTED_MS),
        Record(b"", large(seed), (), STARTED_MS + 2),
        Record(b"edge", bytes(THRESHOLD), (), 0),
        Record(b"over", bytes(THRESHOLD + 1), (), STARTED_MS),
    ]


def chunks_of(record: Record, uuid: str) -> list[Record]:
    return list(Chunking(1_500).split(record, uuid))


def summary_of(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    summary: dict[str, object] = json.loads(capsys.readouterr().out)
    return summary


@pytest.fixture
def in_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on the tests' own session, which is there already."""

    @contextlib.contextmanager
    def opened(_settings: SessionSettings) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("jobs.backfill.open_session", opened)


@pytest.fixture
def place(broker: str, tmp_path: Path) -> Place:
    config = {
        "large.message.payload.store.class": "filesystem",
        "filesystem.root": str(tmp_path / "payloads"),
        "filesystem.fsync": False,
    }
    return Place(broker, tmp_path, config)


def on_s3(broker: str, folder: Path, server: S3Server) -> Place:
    return Place(broker, folder, {"large.message.payload.store.class": "s3", **server.config("base")})


# --- there and back


def there_and_back(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str], most: int) -> None:
    source, references, plain = make_topic(2), make_topic(2), make_topic(2)
    sent = {0: of_all_kinds(1), 1: list(reversed(of_all_kinds(3)))}
    for number, records in sent.items():
        place.send(source, records, number)
    expected = {number: [row(record) for record in records] for number, records in sent.items()}
    capsys.readouterr()

    assert place.run(source, references, "references", "--max-range-records", str(most)) == 0
    summary = summary_of(capsys)
    assert (summary["status"], summary["written"], summary["payloads"], summary["left"]) == ("done", 18, 8, 0)
    found = place.rows(references)
    for number, rows in expected.items():
        assert [(key, time) for key, _, _, time in found[number]] == [(key, time) for key, _, _, time in rows]
        for (_, value, headers, _), (_, old, own, _) in zip(found[number], rows, strict=True):
            assert is_reference(headers) is (old is not None and len(old) > THRESHOLD)
            assert headers[: len(own)] == own
            assert is_reference(headers) or (value, headers) == (old, own)

    assert place.run(references, plain, "plain", "--max-range-records", str(2 * most)) == 0
    assert place.rows(plain) == expected


@pytest.mark.matrix
@pytest.mark.usefixtures("compiled", "in_session")
def test_there_and_back(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """Into references and back, each partition is what it was: order, keys, values, headers, timestamps."""
    there_and_back(place, make_topic, capsys, 2)


@pytest.mark.usefixtures("in_session")
def test_there_and_back_on_s3(
    broker: str, tmp_path: Path, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a real S3 server it is the same."""
    with s3_server_or_skip("versitygw", tmp_path / "s3") as server:
        there_and_back(on_s3(broker, tmp_path, server), make_topic, capsys, 5)


@pytest.mark.usefixtures("in_session")
@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
def test_bakdata_vectors(
    broker: str, tmp_path: Path, versitygw: S3Server, make_topic: MakeTopic, name: FormatName
) -> None:
    """What bakdata's serializer wrote comes out of our format as the values that it was given."""
    place = on_s3(broker, tmp_path, versitygw)
    cases = [case for case in bakdata_cases() if case.format == name]
    with closing(versitygw.client()) as client:
        for path, data in (case.stored for case in cases if case.stored is not None):
            client.put_object(Bucket=versitygw.bucket, Key=path.removeprefix(f"s3://{versitygw.bucket}/"), Body=data)
    source, references, plain = make_topic(), make_topic(), make_topic()
    place.send(source, [Record(c.wire.key, c.wire.value, c.wire.headers, STARTED_MS + n) for n, c in enumerate(cases)])

    assert place.run(source, references, "references", "--format", name, "--threshold-bytes", "99") == 0
    found = place.rows(references)[0]
    for (_, value, headers, _), case in zip(found, cases, strict=True):
        assert is_reference(headers) is (case.stored is not None)
        assert value is None or not is_reference(headers) or f"/{references}/".encode() in value
    assert place.run(references, plain, "plain") == 0
    wanted = [(c.plain.key, c.plain.value, tuple(c.plain.headers), STARTED_MS + n) for n, c in enumerate(cases)]
    assert place.rows(plain)[0] == wanted


@pytest.mark.usefixtures("in_session")
def test_chunks_become_references(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages of chunks, interleaved and cut by ranges, become one reference each, in the order of their ends."""
    source, references, plain = make_topic(), make_topic(), make_topic()
    one, two = (Record(b"k%d" % n, large(n), [("x", b"%d" % n)], STARTED_MS + n) for n in (1, 2))
    first, second = chunks_of(one, "one"), chunks_of(two, "two")
    ordinary = Record(b"o", b"v", (), STARTED_MS)
    lonely = chunks_of(Record(b"l", large(9), (), STARTED_MS), "lonely")[:1]
    log = [first[0], second[0], *first[1:3], ordinary, *second[1:], *first[3:], *lonely]
    place.send(source, log)
    capsys.readouterr()
    assert place.run(source, references, "references", "--max-range-records", "2") == 0
    summary = summary_of(capsys)
    assert (summary["written"], summary["payloads"]) == (3, 2)
    assert summary["read"] == {
        "plain": {"records": 1, "bytes": 2},
        "chunk": {"records": len(log) - 1, "bytes": sum(len(r.value or b"") + len(r.key or b"") for r in log) - 2},
    }
    assert [is_reference(headers) for _, _, headers, _ in place.rows(references)[0]] == [False, True, True]
    assert place.run(references, plain, "plain") == 0
    assert place.rows(plain)[0] == [row(ordinary), row(two), row(one)]


@pytest.mark.usefixtures("in_session")
def test_chunk_that_comes_later(place: Place, make_topic: MakeTopic) -> None:
    """A message whose last chunk comes after a run is written by the next, which goes on where the first ended."""
    source, plain = make_topic(), make_topic()
    record = Record(b"k", large(1), (), STARTED_MS)
    chunks = chunks_of(record, "late")
    place.send(source, [*chunks[:2], Record(b"o", b"v", (), 1)])
    assert place.run(source, plain, "plain") == 0
    place.send(source, chunks[2:])
    assert place.run(source, plain, "plain") == 0
    assert place.rows(plain)[0] == [(b"o", b"v", (), 1), row(record)]


@pytest.mark.usefixtures("in_session")
def test_chunk_beyond_the_lookback(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """A first chunk too far before the range is no silent loss: the job names the option, and goes on with more."""
    source, plain = make_topic(), make_topic()
    record = Record(b"k", large(1), (), STARTED_MS)
    first, *rest = chunks_of(record, "far")
    between = [Record(b"%d" % n, b"v", (), 1) for n in range(5)]
    place.send(source, [first, *between, *rest])
    near = ("--max-range-records", "6", "--chunk-lookback")
    capsys.readouterr()
    assert place.run(source, plain, "plain", *near, "3") == 1
    assert "and no first one before it within 3 offsets (--chunk-lookback)" in capsys.readouterr().err
    assert place.run(source, plain, "plain", *near, "6") == 0
    assert place.rows(plain)[0] == [*(row(each) for each in between), row(record)]


@pytest.mark.usefixtures("in_session")
def test_records_deleted_by_kafka(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """Records that Kafka deleted before they were read are a failure that names them, unless it is told otherwise."""
    source, sink = make_topic(), make_topic()
    place.send(source, [Record(b"%d" % n, b"v", (), 1) for n in range(3)])
    assert place.run(source, sink, "references") == 0
    place.send(source, [Record(b"%d" % n, b"v", (), 1) for n in range(3, 9)])
    asyncio.run(delete_below(place.broker, source, 5))
    capsys.readouterr()
    assert place.run(source, sink, "references") == 1
    said = f"topic {source} partition 0 was read up to offset 3 and begins at 5 now: records were deleted before"
    assert said in capsys.readouterr().err
    assert place.run(source, sink, "references", "--no-fail-on-data-loss") == 0
    assert [key for key, _, _, _ in place.rows(sink)[0]] == [b"0", b"1", b"2", b"5", b"6", b"7", b"8"]


@pytest.mark.usefixtures("in_session")
def test_references_are_published_anew_or_kept(place: Place, make_topic: MakeTopic) -> None:
    """References of the source get payloads below the sink's name; with --keep-references they go as they are."""
    source, anew, kept = make_topic(), make_topic(), make_topic()
    reference = place.referring(source, Record(b"k", large(1), [("x", b"1")], STARTED_MS))
    place.send(source, [reference])
    assert place.run(source, anew, "references") == 0
    ((key, value, headers, time_ms),) = place.rows(anew)[0]
    assert (key, headers, time_ms) == (b"k", tuple(reference.headers), STARTED_MS)
    assert value is not None
    assert f"/{anew}/".encode() in value
    place.lose(reference)
    assert place.run(source, kept, "references", "--keep-references") == 0
    assert place.rows(kept)[0] == [row(reference)]


@pytest.mark.usefixtures("in_session")
def test_references_are_encrypted_and_back(place: Place, make_topic: MakeTopic) -> None:
    """References without encryption become encrypted ones, and plain values again; without the key the job ends."""
    source, sink, plain = make_topic(), make_topic(), make_topic()
    values = [Record(b"%d" % number, large(number), (), STARTED_MS) for number in range(3)]
    place.send(source, [place.referring(source, record) for record in values])
    kept = place.config
    keys = {"large.message.encryption.key.id": "one", "large.message.encryption.key.secret": "1f" * 32}
    place.config = {**kept, **keys, "large.message.encryption.type": "aes-256-gcm"}
    assert place.run(source, sink, "references") == 0
    found = place.rows(sink)[0]
    assert [dict(headers)["large-message.encryption.key"] for _, _, headers, _ in found] == [b"one"] * 3
    place.config = {**kept, **keys}
    assert place.run(sink, plain, "plain") == 0
    assert place.rows(plain)[0] == [row(record) for record in values]
    place.config = kept
    assert place.run(sink, make_topic(), "plain") == 1


@pytest.mark.usefixtures("in_session")
def test_partition_by_key(place: Place, make_topic: MakeTopic) -> None:
    """By key, each key's records are in one partition of the sink, in order, where Kafka's own clients put them."""
    source, sink = make_topic(3), make_topic(2)
    for number in range(3):
        keyed = [Record(b"key-%d" % (3 * n + number), b"%d" % n, (), STARTED_MS) for n in range(20)]
        again = [Record(r.key, b"again", (), STARTED_MS) for r in keyed]
        known = Record((b"abc", b"21", b"foobar")[number], b"known", (), 1)
        place.send(source, [*keyed, *again, known, Record(None, b"a", (), 1), Record(None, b"b", (), 1)], number)
    assert place.run(source, sink, "references", "--partition-by", "key") == 0
    found = place.rows(sink)
    assert sum(map(len, found.values())) == 3 * 43
    for rows in found.values():
        keys = [key for key, value, _, _ in rows if value == b"again"]
        assert len(set(keys)) == len(keys)
        for key in keys:
            assert [value for each, value, _, _ in rows if each == key][1:] == [b"again"]
    places = {key: number for number, rows in found.items() for key, _, _, _ in rows if key is not None}
    assert len(places) == 60 + 3
    # Of the Java client's own tests: murmur2 of these is 479470107, -973932308 and -790332482.
    assert (places[b"abc"], places[b"21"], places[b"foobar"]) == (1, 0, 0)
    assert [[value for key, value, _, _ in found[n] if key is None] for n in (0, 1)] == [
        [b"a", b"b", b"a", b"b"],
        [b"a", b"b"],
    ]


# --- what cannot be restored


@pytest.mark.usefixtures("in_session")
def test_failure_then_again(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """A record whose payload is gone ends the job with one sentence; set right, the next run repeats nothing."""
    source, plain = make_topic(), make_topic()
    records = [Record(b"%d" % n, large(n), (), STARTED_MS + n) for n in range(6)]
    references = [place.referring(source, record) for record in records]
    place.send(source, references)
    lost = place.lose(references[3])
    capsys.readouterr()
    for _ in range(2):
        assert place.run(source, plain, "plain") == 1
        captured = capsys.readouterr()
        assert captured.err.startswith(f"backfill: topic {source} partition 0 offset 3: value missing: there is no")
        assert captured.err.count("\n") == 1
        assert json.loads(captured.out)["status"] == "failed"
        assert place.rows(plain)[0] == [row(record) for record in records[:3]]
    with closing(open_store(place.config)) as store:
        store.publish(source, lost)
    assert place.run(source, plain, "plain") == 0
    assert place.rows(plain)[0] == [row(record) for record in records]


@pytest.mark.usefixtures("in_session")
def test_problem_kept(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """With --on-error keep, such a record goes as it is, and chunks that make no message are left out; both count."""
    source, plain = make_topic(), make_topic()
    reference = place.referring(source, Record(b"k", large(1), (), STARTED_MS))
    place.lose(reference)
    spoilt = chunks_of(Record(b"c", large(2), (), STARTED_MS), "spoilt")
    del spoilt[1]
    last = Record(b"last", b"v", (), STARTED_MS)
    place.send(source, [reference, *spoilt, last])
    capsys.readouterr()
    assert place.run(source, plain, "plain", "--on-error", "keep") == 0
    summary = summary_of(capsys)
    assert (summary["kept"], summary["left_out"], summary["written"]) == (1, len(spoilt), 2)
    assert place.rows(plain)[0] == [row(reference), row(last)]


@pytest.mark.usefixtures("in_session")
def test_other_format(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """References that --format does not mean are no values: the job says which format they have."""
    source, theirs, sink = make_topic(), make_topic(), make_topic()
    form = FORMATS["bakdata-headers"]
    place.send(theirs, [form.write_reference(Record(b"k", None), Reference("s3://b/t/values/id"))])
    place.send(source, [place.referring(source, Record(b"k", large(1)))])
    capsys.readouterr()
    assert place.run(theirs, sink, "plain") == 1
    assert "is --format bakdata-headers meant?" in capsys.readouterr().err
    assert place.run(source, make_topic(), "plain", "--format", "bakdata-headers") == 1
    assert "is --format wideload meant?" in capsys.readouterr().err
    assert end_offsets(place.broker, sink) == {0: 0}


@pytest.mark.usefixtures("in_session")
def test_value_too_large_for_the_sink(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that the sink does not take ends the job before it is sent, with both sizes."""
    source, plain = make_topic(), make_topic(**{"max.message.bytes": 4_000})
    place.send(source, [place.referring(source, Record(b"k", large(1, 4_000)))])
    capsys.readouterr()
    assert place.run(source, plain, "plain") == 1
    said = f"value too-large: a record of 4,071 bytes; max.message.bytes of topic {plain} is 4,000"
    assert said in capsys.readouterr().err


# --- refusals


@pytest.mark.usefixtures("in_session")
def test_refusals(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """What would lose order, timestamps or records is refused with one sentence and status 2; nothing is written."""
    source, two, one, clock = (
        make_topic(2),
        make_topic(2),
        make_topic(),
        make_topic(2, **{"message.timestamp.type": "LogAppendTime"}),
    )
    place.send(source, of_all_kinds(1))
    place.send(two, [Record(b"k", b"there already")])

    def refused(sink: str, *more: str) -> str:
        capsys.readouterr()
        assert place.run(source, sink, "references", *more) == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)
        return captured.err.removeprefix("backfill: ")

    assert refused(one).startswith(f"--sink: topic {one} has 1 partitions, the source has 2; make it with as many, or")
    assert refused(clock).startswith(f"--sink: topic {clock} has message.timestamp.type=LogAppendTime")
    assert refused(source).startswith(f"--sink: found {source}, which is the source")
    assert refused("nowhere").startswith("--sink: nowhere is not on the broker")
    assert f"is new, and topic {two} has had records already" in refused(two)
    assert refused(two, "--conf", "x").startswith("--conf: is KEY=VALUE")
    assert end_offsets(place.broker, clock) == {0: 0, 1: 0}

    assert place.run(source, two, "references", "--append") == 0
    assert len(place.rows(two)[0]) == 1 + len(of_all_kinds(1))
    other = ("--checkpoint", str(place.folder / f"checkpoint-{two}"))
    capsys.readouterr()
    assert place.run(source, two, "plain", *other) == 2
    assert "belongs to to references, this is to plain" in capsys.readouterr().err
    missing = [a for a in place.arguments("nowhere", two, "plain") if "checkpoint" not in a] + ["--dry-run"]
    assert main(missing) == 2
    assert capsys.readouterr().err.startswith("backfill: --source: nowhere is not on the broker")


@pytest.mark.usefixtures("in_session")
def test_topics_made_anew(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint that knows of more than source or sink have is not followed."""
    source, sink = make_topic(), make_topic()
    place.send(source, of_all_kinds(1))
    assert place.run(source, sink, "references") == 0
    folder = place.folder / f"checkpoint-{sink}"
    last = max((file for file in folder.iterdir() if file.name.isdecimal()), key=lambda file: int(file.name))
    note = json.loads(last.read_text())
    assert (note["positions"], note["ends"], note["marks"]["0"][0]) == ({"0": 9}, {"0": 9}, 8)
    capsys.readouterr()
    said = {
        "ends": f"topic {sink} partition 0 was written up to offset 11 and ends at 10 now",  # 9 records, and a commit
        "positions": f"topic {source} partition 0 was read up to offset 10 and ends at 9 now",
        "marks": f"topic {source} partition 0 has another record at offset 8 than was read there",
    }
    for part, sentence in said.items():
        (folder / f".{last.name}.crc").unlink(missing_ok=True)
        wrong = {"ends": 11, "positions": 10, "marks": [8, 0]}[part]
        last.write_text(json.dumps({**note, part: {"0": wrong}}))
        assert place.run(source, sink, "references") == 1
        assert sentence in capsys.readouterr().err


# --- a dry run


@pytest.mark.usefixtures("in_session")
def test_dry_run(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run counts by form, with what would be published, and neither writes nor asks the store."""
    source, sink = make_topic(2), make_topic(2)
    place.send(source, [*of_all_kinds(1), *chunks_of(Record(b"c", large(5)), "c")], 0)
    bakdata = FORMATS["bakdata-headers"].write_reference(Record(b"k", None), Reference("s3://b/t/values/id"))
    place.send(source, [place.referring(source, Record(b"k", large(1))), bakdata], 1)
    capsys.readouterr()
    assert place.run(source, sink, "references", "--dry-run", "--max-range-records", "3") == 0
    summary = summary_of(capsys)
    counts = {form: found["records"] for form, found in summary["read"].items()}  # type: ignore[attr-defined]
    assert counts == {"plain": 7, "reference": 1, "bakdata": 1, "chunk": 5, "tombstone": 2}
    assert (summary["status"], summary["written"], summary["payloads"], summary["unsized"]) == ("dry-run", 11, 7, 1)
    assert summary["payload_bytes"] == 5 * 5_000 + THRESHOLD + 1
    assert end_offsets(place.broker, sink) == {0: 0, 1: 0}
    assert not (place.folder / f"checkpoint-{sink}").exists()


@pytest.mark.usefixtures("in_session")
def test_table(
    place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal the summary is a table and sentences."""
    source, sink = make_topic(), make_topic()
    place.send(source, of_all_kinds(1))
    capsys.readouterr()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert place.run(source, sink, "references", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines() == [
        "read as    records     size",
        "plain            7  17.0 kB",
        "tombstone        2      5 B",
        "would be written: 9 records",
        "would be published: 4 payloads, 16.0 kB",
        "nothing was written: this was a dry run",
    ]


def test_kept_records_bind_the_topics(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that was kept may refer to a payload of the source: the table says what a sweep of that needs."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    given = ["--source", "old", "--sink", "new", "--to", "plain", "--bootstrap-servers", "b:1"]
    _tell(Backfill(Tally(kept=2), 1), _parser().parse_args(given), "done", None)
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [
        "kept as they are, since they cannot be restored: 2 records",
        "these may refer to payloads of old: a sweep of it needs --carrier new",
    ]
    _tell(Backfill(Tally(), 1), _parser().parse_args(given), "done", None)
    assert "carrier" not in capsys.readouterr().out


# --- restarts


def settings_of(arguments: Sequence[str]) -> BackfillSettings:
    """What the command line says."""
    parsed = _parser().parse_args(arguments)
    configure(parsed)
    return _settings(parsed)


def test_stop_and_go_on(place: Place, spark: SparkSession, make_topic: MakeTopic) -> None:
    """Stopped, a run ends with the range that is under way; what follows repeats nothing."""
    source, sink = make_topic(), make_topic()
    records = [Record(b"%d" % n, b"value", (), STARTED_MS) for n in range(20)]
    place.send(source, records)
    arguments = place.arguments(source, sink, "references", "--max-range-records", "5")
    settings = settings_of(arguments)
    stop, found = Event(), Backfill()
    run(spark, settings, found, stop, lambda now: stop.set() if now.ranges == 2 else None)
    assert (found.ranges, found.left, found.tally.records) == (2, 10, 10)
    assert place.rows(sink)[0] == [row(record) for record in records[:10]]
    run(spark, settings, found := Backfill(), Event())
    assert (found.ranges, found.left, found.tally.records) == (2, 0, 10)
    assert place.rows(sink)[0] == [row(record) for record in records]


def test_range_ends_by_bytes(place: Place, spark: SparkSession, make_topic: MakeTopic) -> None:
    """A bound of bytes holds for what is restored, though references in the log are small."""
    source, sink = make_topic(), make_topic()
    place.send(source, [place.referring(source, Record(b"%d" % n, large(n))) for n in range(4)])
    arguments = place.arguments(source, sink, "plain", "--max-range-bytes", "9000")
    settings = settings_of(arguments)
    tight = replace(settings, source=replace(settings.source, inflater=replace(settings.source.inflater, held_bytes=1)))
    run(spark, tight, found := Backfill(), Event())
    # What is on its way when the bound is passed belongs to the range: one record here, 64 MiB by default.
    assert (found.ranges, found.tally.records) == (2, 4)


def killed_behind(start: int, settings: BackfillSettings, sink: SinkTopic, range_: OffsetRange) -> Outcome:
    """Copies a range; if it begins at `start`, the process that did is killed, so that nobody hears of it."""
    outcome = copied(settings, sink, range_)
    if range_.start == start:
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome


@pytest.mark.usefixtures("in_session")
def test_killed_between_commit_and_note(
    place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when a range is committed and not noted: the next run learns it from Kafka, and repeats nothing."""
    source, sink = make_topic(), make_topic()
    records = [Record(b"%d" % n, b"value", (), STARTED_MS + n) for n in range(9)]
    place.send(source, records)
    pace = ("--max-range-records", "4")
    with monkeypatch.context() as patch:
        for start in (0, 4):  # the second run learns of the first range, and dies behind the second
            patch.setattr("jobs.copying.partitions.copied", partial(killed_behind, start))
            assert place.run(source, sink, "references", *pace) == 1
            assert place.rows(sink)[0] == [row(record) for record in records[: start + 4]]
    capsys.readouterr()
    assert place.run(source, sink, "references", *pace) == 0
    summary = summary_of(capsys)
    assert (summary["status"], summary["written"], summary["left"]) == ("done", 5, 0)
    assert place.rows(sink)[0] == [row(record) for record in records]


def test_receipt_of_another_sink_or_checkpoint(place: Place, make_topic: MakeTopic) -> None:
    """A range that is done is not done again, with the same counts; for another checkpoint, or a new sink, it is.

    An old copy of the checkpoint is refused, and nothing is written.
    """
    source, sink = make_topic(), make_topic()
    place.send(source, records := [Record(b"k", large(1), (), STARTED_MS), Record(b"k", None, (), STARTED_MS)])
    settings = replace(settings_of(place.arguments(source, sink, "references")), checkpoint_id="one")
    client, range_ = settings.source.client, OffsetRange(source, 0, 0, 2)
    first = copied(settings, sink_topic(client, sink), range_)
    assert (first.error, first.next, first.tally.payloads) == (None, 2, 1)
    assert copied(settings, sink_topic(client, sink), range_) == first
    assert copied(settings, sink_topic(client, sink), replace(range_, start=1)) == first
    place.send(source, [Record(b"later", b"v", (), STARTED_MS)])
    assert copied(settings, sink_topic(client, sink), OffsetRange(source, 0, 2, 3)).next == 3
    behind = copied(settings, sink_topic(client, sink), range_)
    assert (behind.next, behind.ends) == (0, {})
    assert f"{source} partition 0 is copied up to offset 3, and the checkpoint {settings.checkpoint} is at 0" in str(
        behind.error
    )
    assert len(place.rows(sink)[0]) == 3
    assert copied(replace(settings, checkpoint_id="two"), sink_topic(client, sink), range_).ends == {0: 7}
    assert len(place.rows(sink)[0]) == 5
    Operations(place.broker).remove_topic(sink)
    make_topic(named=sink)
    assert copied(replace(settings, checkpoint_id="two"), sink_topic(client, sink), range_).ends == {0: 2}
    assert [key for key, *_ in place.rows(sink)[0]] == [record.key for record in records]


def test_receipt_of_a_sink_with_more_partitions(place: Place, make_topic: MakeTopic) -> None:
    """The receipt names a partition that the sink, made anew, does not have: the range is done again."""
    source, sink = make_topic(), make_topic(4)
    place.send(source, [Record(b"7", b"value", (), STARTED_MS)])  # murmur2: partition 3 of 4
    arguments = place.arguments(source, sink, "references", "--partition-by", "key")
    settings = replace(settings_of(arguments), checkpoint_id="one")
    client, range_ = settings.source.client, OffsetRange(source, 0, 0, 1)
    assert copied(settings, sink_topic(client, sink), range_).ends == {3: 1}
    Operations(place.broker).remove_topic(sink)
    make_topic(1, named=sink)
    again = copied(settings, sink_topic(client, sink), range_)
    assert (again.error, again.ends) == (None, {0: 1})


def test_two_backfills_with_checkpoints_of_their_own(
    place: Place, spark: SparkSession, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that begin at once, with checkpoints of their own, both find an empty sink: no range is written twice.

    The one that comes second to a partition ends. If it has leave to append, the other one notices it, and ends.
    """
    source, sink = make_topic(), make_topic()
    place.send(source, records := [Record(b"%d" % n, b"value", (), STARTED_MS + n) for n in range(4)])
    first = settings_of(place.arguments(source, sink, "references", "--max-range-records", "2"))
    second = replace(first, checkpoint=str(place.folder / "second"))
    empty = sink_topic(first.source.client, sink)

    def beside(other: BackfillSettings, found: Backfill) -> None:
        if found.ranges == 1:
            with monkeypatch.context() as patch:
                patch.setattr("jobs.copying.partitions.sink_topic", lambda *_: empty)
                run(spark, other, Backfill(), Event())

    with pytest.raises(JobFailedError, match=r"a backfill with another checkpoint than .*/second has written") as error:
        run(spark, first, Backfill(), Event(), partial(beside, second))
    assert f"topic {source} partition 0 up to offset 2" in str(error.value)
    assert place.rows(sink)[0] == [row(record) for record in records[:2]]
    run(spark, first, Backfill(), Event())
    assert place.rows(sink)[0] == [row(record) for record in records]

    sink = make_topic()
    first, empty = replace(first, sink=sink, checkpoint=str(place.folder / "third")), replace(empty, name=sink)
    third = replace(first, checkpoint=str(place.folder / "fourth"), append=True)
    with pytest.raises(JobFailedError, match=r"a backfill with another checkpoint than .*/third has written"):
        run(spark, first, Backfill(), Event(), partial(beside, third))
    assert place.rows(sink)[0] == [row(record) for record in [*records[:2], *records]]


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.usefixtures("in_session")
def test_process_killed(
    place: Place, make_topic: MakeTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in the middle, and run again: no gap, and with `read_committed` each record once, in order."""
    source, sink, plain = make_topic(2), make_topic(2), make_topic(2)
    size = 700
    values = [large(n, 3_000) if n % 3 == 0 else b"small" for n in range(size)]
    records = [Record(b"%d" % n, value, (), STARTED_MS + n) for n, value in enumerate(values)]
    sent = {0: records, 1: records[::-1]}
    for number, records in sent.items():
        place.send(source, records, number)
    most = 100
    arguments = place.arguments(source, sink, "references", "--max-range-records", str(most))
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs.backfill", *arguments, "--conf", "spark.ui.enabled=false", "--master", "local[2]"],
        cwd=REPOSITORY,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path / "local")},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline, pause = time.monotonic() + 300, Event()
        while sum(end_offsets(place.broker, sink).values()) < 3 * most:
            assert process.poll() is None
            assert time.monotonic() < deadline
            pause.wait(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    middle = sum(end_offsets(place.broker, sink).values())
    assert middle < 2 * size

    capsys.readouterr()
    assert main(arguments) == 0
    summary = summary_of(capsys)
    assert (summary["status"], summary["left"]) == ("done", 0)
    assert place.run(sink, plain, "plain") == 0
    assert place.rows(plain) == {number: [row(record) for record in records] for number, records in sent.items()}
