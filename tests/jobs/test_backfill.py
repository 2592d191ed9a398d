"""Backfill between real topics: into references and back, from each form, with restarts in the middle."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession

from app.config.arguments import configure
from app.kafka.range_reader import RecordsLostError
from jobs.backfill import _parser, _said, _settings, _tell, main
from jobs.copying.forms import Tally
from jobs.copying.partitions import Backfill, run
from jobs.copying.range import BackfillSettings, Outcome, copied
from jobs.copying.writer import SinkTopic, sink_topic
from jobs.driver.failures import JobFailedError
from jobs.reading.ranges import OffsetRange
from stores.registry import open_store
from tests.app.payloads.swept import delete_records, filesystem
from tests.integration.operations import Operations
from tests.integration.topics import Found, end_offsets, read_all, send
from tests.jobs.rows import lose, referring
from tests.s3_server import S3Server
from tests.vectors.bakdata import bakdata_cases
from transforms.chunk import Chunking
from transforms.formats import FORMATS, FormatName
from transforms.record import Header, Record
from transforms.reference import Reference, is_reference

MakeTopic = Callable[..., str]
Row = tuple[bytes | None, bytes | None, tuple[Header, ...], int]

THRESHOLD = 1_000
STARTED_MS = 1_600_000_000_000

pytestmark = pytest.mark.usefixtures("in_session")


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

    def settings(self, source: str, sink: str, to: str, *more: str) -> BackfillSettings:
        """What the command line says."""
        parsed = _parser().parse_args(self.arguments(source, sink, to, *more))
        configure(parsed)
        return _settings(parsed)

    def run(self, source: str, sink: str, to: str, *more: str) -> int:
        return main(self.arguments(source, sink, to, *more))

    def send(self, topic: str, records: Sequence[Record], partition: int = 0) -> None:
        send(self.broker, topic, [(partition, r.key, r.value, r.headers, r.timestamp) for r in records])

    def rows(self, topic: str) -> dict[int, list[Row]]:
        return {number: rows_of(found) for number, found in read_all(self.broker, topic).items()}

    def referring(self, topic: str, record: Record) -> Record:
        return referring(self.config, topic, record)


def rows_of(found: Sequence[Found]) -> list[Row]:
    return [(each.key, each.value, each.headers, each.timestamp) for each in found]


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
def place(broker: str, tmp_path: Path) -> Place:
    return Place(broker, tmp_path, filesystem(tmp_path / "payloads"))


# --- there and back


@pytest.mark.matrix
@pytest.mark.usefixtures("compiled")
def test_there_and_back(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """Into references and back, each partition is what it was: order, keys, values, headers, timestamps."""
    source, references, plain = make_topic(2), make_topic(2), make_topic(2)
    sent = {0: of_all_kinds(1), 1: list(reversed(of_all_kinds(3)))}
    for number, records in sent.items():
        place.send(source, records, number)
    expected = {number: [row(record) for record in records] for number, records in sent.items()}
    capsys.readouterr()

    assert place.run(source, references, "references", "--max-range-records", "2") == 0
    summary = summary_of(capsys)
    assert (summary["status"], summary["written"], summary["payloads"], summary["left"]) == ("done", 18, 8, 0)
    found = place.rows(references)
    for number, rows in expected.items():
        assert [(key, time) for key, _, _, time in found[number]] == [(key, time) for key, _, _, time in rows]
        for (_, value, headers, _), (_, old, own, _) in zip(found[number], rows, strict=True):
            assert is_reference(headers) is (old is not None and len(old) > THRESHOLD)
            assert headers[: len(own)] == own
            assert is_reference(headers) or (value, headers) == (old, own)

    assert place.run(references, plain, "plain", "--max-range-records", "4") == 0
    assert place.rows(plain) == expected


@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
def test_bakdata_vectors(
    broker: str, tmp_path: Path, versitygw: S3Server, make_topic: MakeTopic, name: FormatName
) -> None:
    """What bakdata's serializer wrote comes out of our format as the values that it was given."""
    config = {"large.message.payload.store.class": "s3", **versitygw.config("base")}
    place = Place(broker, tmp_path, config)
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
    place.send(source, chunks_of(Record(b"l", large(9), (), STARTED_MS), "lonely")[1:])  # what comes later goes on
    assert place.run(source, references, "references") == 0
    assert place.run(references, plain, "plain") == 0
    late = row(Record(b"l", large(9), (), STARTED_MS))
    assert place.rows(plain)[0] == [row(ordinary), row(two), row(one), late]


def test_records_deleted_by_kafka(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """Records that Kafka deleted before they were read are a failure that names them, unless it is told otherwise."""
    source, sink = make_topic(), make_topic()
    place.send(source, [Record(b"%d" % n, b"v", (), 1) for n in range(3)])
    assert place.run(source, sink, "references") == 0
    place.send(source, [Record(b"%d" % n, b"v", (), 1) for n in range(3, 9)])
    delete_records(place.broker, source, 5)
    capsys.readouterr()
    assert place.run(source, sink, "references") == 1
    said = f"topic {source} partition 0 was read up to offset 3 and begins at 5 now: records were deleted before"
    assert said in capsys.readouterr().err
    assert place.run(source, sink, "references", "--no-fail-on-data-loss") == 0
    assert [key for key, _, _, _ in place.rows(sink)[0]] == [b"0", b"1", b"2", b"5", b"6", b"7", b"8"]


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
    lose(place.config, reference)
    assert place.run(source, kept, "references", "--keep-references") == 0
    assert place.rows(kept)[0] == [row(reference)]


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


# --- what cannot be restored


def test_sentences() -> None:
    """What the data source says of its options is said of those of the command."""
    assert _said(JobFailedError("within 3 offsets (chunkLookback)")) == "within 3 offsets (--chunk-lookback)"
    assert _said(RecordsLostError("t", 0, 5, 9)).endswith("; --no-fail-on-data-loss continues without them")


def test_failure_then_again(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """A record whose payload is gone ends the job with one sentence; set right, the next run repeats nothing."""
    source, plain = make_topic(), make_topic()
    records = [Record(b"%d" % n, large(n), (), STARTED_MS + n) for n in range(6)]
    references = [place.referring(source, record) for record in records]
    place.send(source, references)
    lost = lose(place.config, references[3])
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


# --- refusals


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

    assert refused(one).startswith(f"--sink: topic {one} has 1 partitions, the source has 2; create it with as many")
    assert refused(clock).startswith(f"--sink: topic {clock} has message.timestamp.type=LogAppendTime")
    assert refused(source).startswith(f"--sink: found {source}, which is the source")
    assert refused("nowhere").startswith("--sink: nowhere is not on the broker")
    assert f"is new, and topic {two} already has, or had, records" in refused(two)
    assert refused(two, "--conf", "x").startswith("--conf: must be KEY=VALUE")
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
        "marks": f"topic {source} partition 0 has a different record at offset 8 than the one that was read there",
    }
    for part, sentence in said.items():
        (folder / f".{last.name}.crc").unlink(missing_ok=True)
        wrong = {"ends": 11, "positions": 10, "marks": [8, 0]}[part]
        last.write_text(json.dumps({**note, part: {"0": wrong}}))
        assert place.run(source, sink, "references") == 1
        assert sentence in capsys.readouterr().err


# --- a dry run


def test_dry_run(place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run counts by form, with what would be published, and neither writes nor asks the store."""
    source, sink = make_topic(2), make_topic(2)
    place.send(source, [*of_all_kinds(1), *chunks_of(Record(b"c", large(5)), "c")], 0)
    bakdata = FORMATS["bakdata-headers"].write_reference(Record(b"k", None), Reference("s3://b/t/values/id"))
    edge = Record(b"edge", bytes(THRESHOLD))
    place.send(source, [*(place.referring(source, each) for each in (Record(b"k", large(1)), edge)), bakdata], 1)
    capsys.readouterr()
    assert place.run(source, sink, "references", "--dry-run", "--max-range-records", "3") == 0
    summary = summary_of(capsys)
    counts = {form: found["records"] for form, found in summary["read"].items()}  # type: ignore[attr-defined]
    assert counts == {"plain": 7, "reference": 2, "bakdata": 1, "chunk": 5, "tombstone": 2}
    assert (summary["status"], summary["written"], summary["payloads"], summary["unsized"]) == ("dry-run", 12, 7, 1)
    assert summary["payload_bytes"] == 5 * 5_000 + THRESHOLD + 1
    assert end_offsets(place.broker, sink) == {0: 0, 1: 0}
    assert not (place.folder / f"checkpoint-{sink}").exists()


def test_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal the summary is a table and sentences.

    A record that was kept may refer to a payload of the source: the table says what a sweep of that needs.
    """
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    given = ["--source", "old", "--sink", "new", "--to", "plain", "--bootstrap-servers", "b:1"]
    tally = Tally({"plain": [7, 17_000], "tombstone": [2, 5]}, 9, 17_005, 4, 16_001, 1, 2, 3)
    head = ["read as    records     size", "plain            7  17.0 kB", "tombstone        2      5 B"]
    end = [
        "kept unchanged, because they cannot be restored: 2 records",
        "they may refer to payloads of old: sweep that topic with --carrier new",
        "left out: 3 chunks that do not form a message",
    ]
    sized = "4 payloads, 16.0 kB, and 1 of them whose size only the store knows"
    dry = ["would be written: 9 records", f"would be published: {sized}"]
    for found, more, state, lines in (
        (Backfill(), (), "done", ["nothing is left to do"]),
        (Backfill(Tally(), 1), (), "done", [head[0], "written: 0 records, 0 B", "published: 0 payloads, 0 B"]),
        (
            Backfill(tally, 1, {0: 5}, {0: 9}),
            (),
            "stopped",
            [
                *head,
                "written: 9 records, 17.0 kB",
                f"published: {sized}",
                *end,
                "stopped with 4 offsets left; run the job again to continue",
            ],
        ),
        (Backfill(tally, 1), ("--dry-run",), "dry-run", [*head, *dry, *end, "nothing was written: this was a dry run"]),
    ):
        _tell(found, _parser().parse_args([*given, *more]), state, None)
        told = capsys.readouterr().out.splitlines()
        assert [line.split() for line in told] == [line.split() for line in lines]


# --- restarts


def test_stop_and_go_on(place: Place, spark: SparkSession, make_topic: MakeTopic) -> None:
    """Stopped, a run ends with the range that is under way; what follows repeats nothing."""
    source, sink = make_topic(), make_topic()
    records = [Record(b"%d" % n, b"value", (), STARTED_MS) for n in range(20)]
    place.send(source, records)
    settings = place.settings(source, sink, "references", "--max-range-records", "5")
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
    settings = place.settings(source, sink, "plain", "--max-range-bytes", "9000")
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
    settings = replace(place.settings(source, sink, "references"), checkpoint_id="one")
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

    many = make_topic(4)  # the receipt names a partition that the sink, made anew, does not have
    place.send(keyed := make_topic(), [Record(b"7", b"value", (), STARTED_MS)])  # murmur2: partition 3 of 4
    settings = replace(place.settings(keyed, many, "references", "--partition-by", "key"), checkpoint_id="one")
    range_ = OffsetRange(keyed, 0, 0, 1)
    assert copied(settings, sink_topic(client, many), range_).ends == {3: 1}
    Operations(place.broker).remove_topic(many)
    make_topic(1, named=many)
    again = copied(settings, sink_topic(client, many), range_)
    assert (again.error, again.ends) == (None, {0: 1})


def test_two_backfills_with_checkpoints_of_their_own(
    place: Place, spark: SparkSession, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that begin at once, with checkpoints of their own, both find an empty sink: no range is written twice.

    The one that comes second to a partition ends. If it has leave to append, the other one notices it, and ends.
    """
    source, sink = make_topic(), make_topic()
    place.send(source, records := [Record(b"%d" % n, b"value", (), STARTED_MS + n) for n in range(4)])
    first = place.settings(source, sink, "references", "--max-range-records", "2")
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
