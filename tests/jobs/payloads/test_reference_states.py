"""What an audit finds: a real broker, the filesystem store and a real S3 server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs.audit import main
from jobs.driver.failures import JobFailedError
from jobs.driver.session import SessionSettings
from jobs.payloads.inventory import STATED
from jobs.payloads.reference_states import EXPIRY, FINDING, RETAINED, AuditSettings, _check_same, findings, run
from jobs.payloads.references import REFERENCE
from jobs.reading.topics import Kafka, Span, Topic
from jobs.records.timestamps import LAST_MS
from stores.payload import publish
from stores.registry import STORE_CLASS, open_store
from stores.store import Delete, Lifecycle, Put
from tests.integration.topics import send
from tests.s3_server import S3Server, S3UnavailableError, s3_server
from tests.vectors.bakdata import bakdata_cases
from transforms.compression import Codec
from transforms.errors import ConfigurationError
from transforms.formats import WIDELOAD, FormatName
from transforms.keyring import EncryptionSettings, LocalKeyring
from transforms.offload import Offload, Payload
from transforms.record import Record
from transforms.reference import KEY, Reference
from transforms.retention import Retention
from transforms.signing import Signing
from transforms.wrapper import Wrap

MakeTopic = Callable[..., str]


class Place:
    """A store and a broker, and what a test puts there."""

    def __init__(self, broker: str, config: Mapping[str, object]) -> None:
        self.broker = broker
        self.config = config

    def settings(self, *topics: str, **changes: Any) -> AuditSettings:
        return AuditSettings(Kafka(self.broker), self.config, topics, **changes)

    def offload(self, topic: str, value: bytes, codec: Codec | None = None) -> Reference:
        """A payload as the worker publishes it."""
        payload: Payload = Offload(codec=codec).payload(value)
        with closing(open_store(self.config)) as store:
            return payload.reference(store.publish(topic, payload.data))

    def replace(self, reference: Reference, data: bytes | None) -> None:
        with closing(open_store(self.config)) as store:
            if data is None:
                assert isinstance(store, Delete)
                store.delete(reference.path)
            else:
                assert isinstance(store, Put)
                _, topic, object_id = reference.path.rsplit("/", 2)
                store.put(topic, object_id, data)

    def send(self, topic: str, *records: Record) -> None:
        send(self.broker, topic, [(0, r.key, r.value, list(r.headers), max(r.timestamp, 0)) for r in records])


@pytest.fixture
def place(tmp_path: Path, broker: str) -> Place:
    """A store in a folder of this test."""
    store = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(tmp_path / "p")}
    with closing(open_store(store)) as opened:
        opened.publish("made", b"")
    return Place(broker, store)


def refers(reference: Reference, key: bytes | None = b"k") -> Record:
    return WIDELOAD.write_reference(Record(key, b"?"), reference)


# --- pure


def at(day: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)


def cipher_of(path: str | None) -> str | None:
    return "aes-256-gcm" if "sealed" in (path or "") else None


def test_findings_of_each_kind(spark: SparkSession) -> None:
    """Each reference has one state, the first that is wrong, with its reason and times."""
    day_us = 86_400_000_000
    start_us = round(at(0).timestamp()) * 1_000_000
    cases = [  # topic, path, size, compression, error; state, stored, published on day; expected state and times
        ("t", "r/a/ok", 3, None, None, "there", 3, 0, "ok", None, 7),
        ("t", "r/a/seed", None, None, None, "there", 3, 0, "ok", None, 7),
        ("t", "r/a/size", 4, None, None, "there", 3, 0, "size", None, 7),
        ("t", "r/a/packed", 4, "zstd", None, "there", 3, 0, "ok", None, 7),
        ("t", "r/a/long", 4, "zstd", None, "there", 5, 0, "size", None, 7),
        ("t", "r/a/huge", 2_000, "zstd", None, "there", 5, 0, "size", None, 7),
        ("t", "r/a/sealed", 4, None, None, "there", 20, 0, "ok", None, 7),
        ("t", "r/a/sealed and packed", 400, "zstd", None, "there", 99, 0, "ok", None, 7),
        ("t", "r/a/sealed at the limit", 1_999, None, None, "there", 2_015, 0, "ok", None, 7),
        ("t", "r/a/sealed wrong", 4, None, None, "there", 4, 0, "size", None, 7),
        ("t", "r/a/gone", 4, None, None, "missing", None, None, "missing", None, 7),
        ("t", "elsewhere", 4, None, None, "refused", None, None, "refused", None, 7),
        ("t", None, None, None, "why", None, None, None, "malformed", None, 7),
        ("t", "r/a/checksum", 3, None, None, "there", 3, 0, "checksum", None, 7),
        ("t", "r/b/enough", 3, None, None, "there", 3, 2, "ok", 7, 7),
        ("t", "r/b/early", 3, None, None, "there", 3, 1, "expiring", 6, 7),
        ("t", "r/c/date", 3, None, None, "there", 3, 1, "expiring", 3, 7),
        ("u", "r/b/ever", 3, None, None, "there", 3, 0, "expiring", 5, None),
        ("u", "r/b/values/theirs", 3, None, None, "there", 3, 0, "expiring", 5, None),
        ("u", "r/a/ever", 3, None, None, "there", 3, 0, "ok", None, None),
    ]
    found = spark.createDataFrame(
        [
            (topic, 0, number, at(0), b"k", "value", "wideload", path, size, None, codec, cipher_of(path), error)
            for number, (topic, path, size, codec, error, *_) in enumerate(cases)
        ],
        REFERENCE,
    )
    payloads = spark.createDataFrame(
        [
            (path, state, stored, None if day is None else start_us + day * day_us, f"{state}!")
            for _, path, _, _, _, state, stored, day, *_ in cases
            if path is not None
        ],
        STATED,
    )
    expiry = spark.createDataFrame([("b", 5, None, "rule b"), ("c", None, "2026-01-04", "rule c")], EXPIRY)
    retained = spark.createDataFrame([("t", 7 * 86_400_000), ("u", None)], RETAINED)
    verified = spark.createDataFrame(
        [("wideload", "r/a/checksum", 3, None, None, None, "checksum", "another")],
        "format string, path string, size long, checksum string, compression string, encryption string, wrong string, "
        "why string",
    )
    result = findings(found, payloads, expiry, retained, verified, max_bytes=1_999)
    assert result.columns == FINDING.fieldNames()
    rows = result.orderBy("offset").collect()
    assert [row.state for row in rows] == [case[8] for case in cases]
    for row, (*_, expires, until) in zip(rows, cases, strict=True):
        assert (row.expires, row.record_until) == tuple(
            None if day is None else at(day).astimezone().replace(tzinfo=None) for day in (expires, until)
        )
    details = {row.path: row.detail for row in rows}
    assert details["r/a/ok"] is None
    assert details["r/a/size"] == "the store has 3 bytes, the reference says 4"
    assert details["r/a/sealed wrong"] == "the store has 4 bytes, the reference says 20"
    assert details["r/a/huge"] == "2000 bytes are more than large.message.max.bytes allows readers, which is 1999"
    assert (details["r/a/gone"], details[None], details["r/a/checksum"]) == ("missing!", "why", "another")
    assert (details["r/b/early"], details["r/c/date"]) == ("rule b", "rule c")


# --- with Kafka and a store


def test_a_topic_that_is_created_again_while_it_is_audited() -> None:
    """References of two topics are not audited as those of one."""
    topic = Topic("t", "id", {0: Span(0, 9, 9)}, Retention("t", -1, "delete"))
    _check_same([topic], [replace(topic, spans={0: Span(5, 12, 12)})])
    with pytest.raises(JobFailedError, match="topic t was deleted and created again while it was read"):
        _check_same([topic], [replace(topic, id="other")])


@pytest.mark.usefixtures("compiled")
def test_audit_of_what_is_whole(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """Values and keys with their payloads, plain or compressed by any codec, are well, read or not."""
    topic = make_topic()
    codecs: list[Codec | None] = [None, "gzip", "snappy", "lz4", "zstd"]
    values = [place.offload(topic, b"line\n" * 1_000, codec) for codec in codecs]
    keys = [place.offload(topic, b"a key", codec) for codec in codecs]
    place.send(
        topic,
        *map(refers, values),
        *(Record(key.value(), b"small", key.headers(KEY)) for key in keys),
        Record(b"k", values[0].path.encode(), [("large-message", b"true")]),
        *map(refers, values),
        Record(b"k", None),
        Record(b"k", b"plain"),
    )
    for verify in (False, True):
        audit = run(spark, place.settings(topic, verify=verify))
        assert (audit.states, audit.wrong, audit.examples) == ({topic: {"ok": 16}}, 0, [])


def test_audit_of_what_is_wrong(spark: SparkSession, place: Place, make_topic: MakeTopic, tmp_path: Path) -> None:
    """What is missing, another, elsewhere or malformed, wrapped or not, is told with its place; the report has all."""
    topic, other = make_topic(), make_topic()
    fine, gone, cut, changed, broken = (place.offload(topic, b"%d" % n * 100) for n in range(5))
    packed = place.offload(topic, b"z" * 1_000, "zstd")
    distant, nowhere = place.offload(other, b"in another folder"), Reference("file:///etc/passwd")
    place.replace(gone, None)
    place.replace(cut, b"short")
    place.replace(changed, b"x" * 100)
    place.replace(packed, b"not zstd")
    bad = Record(b"k", b"\xff", [("large-message", b"true")])
    references = [fine, gone, cut, changed, broken, packed, distant, nowhere]
    records = [refers(reference) for reference in references]
    records[1] = Wrap().wrap(records[1])
    place.send(topic, *records, bad, Wrap().wrap(refers(fine)))
    place.replace(broken, None)
    states = {"ok": 5, "missing": 2, "size": 1, "refused": 1, "malformed": 1}
    assert run(spark, place.settings(topic)).states == {topic: states}

    report = tmp_path / "report"
    audit = run(spark, place.settings(topic, verify=True, report=str(report)))
    states |= {"ok": 3, "checksum": 1, "compression": 1}
    assert (audit.states, audit.wrong) == ({topic: states}, 7)
    rows = spark.read.parquet(str(report)).orderBy("offset").collect()
    expected = ["ok", "missing", "size", "checksum", "missing", "compression", "ok", "refused", "malformed", "ok"]
    assert [row.state for row in rows] == expected
    assert [row.offset for row in audit.examples] == [1, 2, 3, 4, 5, 7, 8]
    assert "the store has 5 bytes, the reference says 100" in rows[2].detail or "size is" in rows[2].detail
    assert "it is not below the store's root" in rows[7].detail
    with pytest.raises(ConfigurationError, match=r"--report: .* is there already; give a new folder"):
        run(spark, place.settings(topic, report=str(report)))


def test_audit_of_what_is_not_signed(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """With a key, a reference that is not signed is refused, though its payload is there; also inside of a wrapper."""
    topic, signing = make_topic(), Signing("s" * 32)
    reference = place.offload(topic, b"payload")
    signed = signing.signed(reference)
    forged = replace(signed, size=8)
    place.send(topic, refers(signed), refers(reference), refers(forged), Wrap().wrap(refers(signed)))
    place.config = {**place.config, "large.message.signing.key": "s" * 32}
    audit = run(spark, place.settings(topic))
    assert audit.states == {topic: {"ok": 2, "refused": 2}}
    assert [(row.offset, row.path) for row in audit.examples] == [(1, reference.path), (2, reference.path)]
    assert ["it has no signature" in row.detail for row in audit.examples] == [True, False]


def test_audit_of_encrypted_payloads(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """An audit needs no key: it finds a payload that was cut or changed, and lets those that are whole be."""
    topic = make_topic()
    keyring = LocalKeyring(EncryptionSettings(True, "one", {"one": b"k" * 32}))
    with closing(open_store(place.config)) as store:
        references = [
            publish(store, topic, Offload(codec=codec).payload(b"line\n" * 99), by_digest=True, keyring=keyring)
            for codec in (None, "zstd", None, None, "zstd")
        ]
    _, _, cut, changed, changed_too = references
    place.replace(cut, b"x" * 99 * 5)
    place.replace(changed, b"x" * (99 * 5 + 16))
    place.replace(changed_too, b"x")
    place.send(topic, *map(refers, references))
    assert run(spark, place.settings(topic)).states == {topic: {"ok": 4, "size": 1}}
    audit = run(spark, place.settings(topic, verify=True))
    assert audit.states == {topic: {"ok": 2, "size": 1, "checksum": 2}}


def test_audit_of_a_compacted_topic(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """What a new group meets counts, overwritten or not; `newest_only` leaves out what Kafka has yet to remove."""
    topic = make_topic(1, **{"cleanup.policy": "compact"})
    old, new, gone = (place.offload(topic, b"%d" % n) for n in range(3))
    place.send(topic, refers(old), refers(new), refers(gone, b"g"), Record(b"g", None))
    place.replace(old, None)
    place.replace(gone, None)
    audit = run(spark, place.settings(topic))
    assert audit.states == {topic: {"ok": 1, "missing": 2}}
    assert f"topic {topic} is compacted, and a reader that begins at the beginning meets 2" in audit.notes[0]
    audit = run(spark, place.settings(topic, newest_only=True))
    assert (audit.states, audit.notes) == ({topic: {"ok": 1}}, [])


def test_audit_of_timestamps_of_other_units(
    spark: SparkSession, place: Place, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Such records are audited, counted and told with their place, up to the ends of what Spark can hold."""
    topic = make_topic(**{"message.timestamp.after.max.ms": 2**63 - 1, "retention.ms": 2**40})
    gone = place.offload(topic, b"gone")
    place.replace(gone, None)
    record = refers(gone)
    stamps = [LAST_MS, 1_700_000_000_000_000, 2**63 - 1, -(2**62)]
    send(place.broker, topic, [(0, record.key, record.value, list(record.headers), stamp) for stamp in stamps])
    audit = run(spark, place.settings(topic, report=str(tmp_path / "report")))
    assert audit.states == {topic: {"missing": 4}}
    assert [row.offset for row in audit.examples] == [0, 1, 2, 3]
    (note,) = audit.notes
    assert note.startswith(f"topic {topic} partition 0 offset 2: the timestamp is {2**63 - 1} ms")
    assert "2 records have such a timestamp" in note


def test_audit_of_nothing(spark: SparkSession, place: Place, make_topic: MakeTopic) -> None:
    """A topic without records is well; one that is not there is named."""
    topic = make_topic(2)
    audit = run(spark, place.settings(topic, verify=True))
    assert (audit.states, audit.wrong, audit.stored) == ({topic: {}}, 0, 0)
    with pytest.raises(ConfigurationError, match="no-such-topic is not on the broker"):
        run(spark, place.settings("no-such-topic"))


# --- on S3


@pytest.fixture(scope="module", params=["versitygw", "minio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with the bucket that the vectors name."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(s3_server(request.param, tmp_path_factory.mktemp("s3")))
        except S3UnavailableError as exc:
            pytest.skip(str(exc))


def test_audit_of_a_bucket(spark: SparkSession, server: S3Server, broker: str, make_topic: MakeTopic) -> None:
    """On a real S3 server payloads are found, read, and said to expire where the server has a rule for that."""
    place = Place(broker, {"large.message.payload.store.class": "s3", **server.config("base")})
    day_ms = 86_400_000
    topic = make_topic(1, **{"retention.ms": 3 * day_ms, "cleanup.policy": "delete"})
    now = round(datetime.now(UTC).timestamp() * 1000)
    one, two, gone = (place.offload(topic, b"%d" % n * 50) for n in range(3))
    place.replace(gone, None)
    records = [refers(one), refers(two), refers(gone)]
    ages = [0, 2 * day_ms + day_ms // 2, 0]  # the second record goes before its payload would
    place.send(topic, *(Record(r.key, r.value, r.headers, now - old) for r, old in zip(records, ages, strict=True)))
    audit = run(spark, place.settings(topic, verify=True))
    assert audit.states == {topic: {"ok": 2, "missing": 1}}
    if server.kind == "versitygw":
        assert "it is not known whether payloads expire" in audit.notes[0]
        return
    assert audit.notes == []
    with closing(open_store(place.config)) as store:
        assert isinstance(store, Lifecycle)
        store.set_expiry(topic, 1)
    audit = run(spark, place.settings(topic))
    assert audit.states == {topic: {"expiring": 1, "ok": 1, "missing": 1}}
    assert "deletes it after 1 d" in audit.examples[0].detail


@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
def test_audit_of_bakdatas_payloads(
    spark: SparkSession, versitygw: S3Server, broker: str, make_topic: MakeTopic, name: FormatName
) -> None:
    """What bakdata's serializer wrote and stored, in folders of its own, is found and decompressed."""
    cases = [case for case in bakdata_cases() if case.format == name and case.stored is not None]
    place = Place(broker, {"large.message.payload.store.class": "s3", **versitygw.config("base")})
    topic = make_topic()
    with closing(open_store(place.config)) as store:
        for case in cases:
            assert case.stored is not None
            path, data = case.stored
            store._client.put_object(Bucket=versitygw.bucket, Key=path.split("/", 3)[3], Body=data)  # type: ignore[attr-defined] # no store of ours writes there
    place.send(topic, *(case.wire for case in cases))
    audit = run(spark, place.settings(topic, reference_format=name, verify=True))
    assert audit.states == {topic: {"ok": len(cases)}}


# --- as a command


def test_main_says_what_is_wrong(
    spark: SparkSession,
    place: Place,
    make_topic: MakeTopic,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command ends with 1 where something is wrong, and says what, in JSON or as a table."""

    @contextlib.contextmanager
    def opened(_settings: SessionSettings) -> Iterator[SparkSession]:
        yield spark  # the tests' own, which is there already

    monkeypatch.setattr("jobs.audit.open_session", opened)
    topic = make_topic()
    fine, gone = place.offload(topic, b"fine"), place.offload(topic, b"gone")
    place.send(topic, refers(fine), refers(gone))
    place.replace(gone, None)
    command = [
        *("--bootstrap-servers", place.broker, "--topic", topic),
        *(f"--store={key}={value}" for key, value in place.config.items()),
    ]
    capsys.readouterr()
    assert main(command) == 1
    summary = json.loads(capsys.readouterr().out)
    assert (summary["status"], summary["topics"]) == ("wrong", {topic: {"ok": 1, "missing": 1}})
    assert summary["examples"][0]["path"] == gone.path
    place.send(topic, refers(gone, b"again"))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["topic", "references", "ok", "missing"],
        [topic, "3", "1", "2"],
        ["payloads:", "4", "B"],
    ]
    assert lines[3] == f"{topic} partition 0 offset 1 value: missing: there is no payload at {gone.path!r}"
    assert len(lines) == 5


def test_main_nothing_wrong_with_the_store_but_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """A store that cannot be opened is one sentence and status 2."""
    assert main(["--bootstrap-servers", "127.0.0.1:1", "--topic", "t", "--store", f"{STORE_CLASS}=s4"]) == 2
    assert capsys.readouterr().err.startswith(f"audit: {STORE_CLASS}: found 's4'")
