"""What an audit finds: a real broker, the filesystem store and a real S3 server."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from app.config.settings import ClientSettings
from app.kafka.clients import ClusterError
from app.kafka.spans import TopicSpans, described
from app.payloads.audit import Audit, AuditSettings, audit
from app.payloads.audit_command import main
from app.payloads.local_engine import LocalEngine
from stores.payload import publish
from stores.registry import STORE_CLASS, open_store
from stores.store import Delete, Lifecycle, Put
from tests.app.payloads.swept import filesystem, write
from tests.faults.proxy import keeping_rules
from tests.integration.topics import send
from tests.s3_server import S3Server
from tests.vectors.bakdata import bakdata_cases
from transforms.compression import Codec
from transforms.errors import ConfigurationError
from transforms.formats import WIDELOAD, FormatName
from transforms.found_references import ReferenceFinder
from transforms.keyring import EncryptionSettings, LocalKeyring
from transforms.offload import Offload, Payload
from transforms.record import Record
from transforms.reference import KEY, Reference
from transforms.signing import Signing
from transforms.wrapper import Wrap

MakeTopic = Callable[..., str]


class Place:
    """A store and a broker, and what a test puts there."""

    def __init__(self, broker: str, config: Mapping[str, object]) -> None:
        self.broker = broker
        self.config = config

    def settings(self, *topics: str, **changes: Any) -> AuditSettings:
        finder = ReferenceFinder(changes.pop("reference_format", "wideload"), signing=Signing.of(self.config))
        return AuditSettings(ClientSettings(self.broker), self.config, dict.fromkeys(topics, finder), **changes)

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
        write(self.broker, topic, *records)


@pytest.fixture
def place(tmp_path: Path, broker: str) -> Place:
    """A store in a folder of this test."""
    store = filesystem(tmp_path / "p")
    with closing(open_store(store)) as opened:
        opened.publish("made", b"")
    return Place(broker, store)


def run(settings: AuditSettings) -> Audit:
    """An audit in this process."""
    with LocalEngine() as engine:
        return audit(engine, settings)[1]


def options(config: Mapping[str, object]) -> list[str]:
    return [f"--store={key}={str(value).lower() if value is False else value}" for key, value in config.items()]


def refers(reference: Reference, key: bytes | None = b"k") -> Record:
    return WIDELOAD.write_reference(Record(key, b"?"), reference)


def test_a_topic_that_is_created_again_while_it_is_audited(
    place: Place, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """References of two topics are not audited as those of one."""
    topic, looks = make_topic(), itertools.count()

    def looked(*arguments: Any) -> dict[str, TopicSpans]:
        found = described(*arguments)[topic]
        return {topic: replace(found, topic=replace(found.topic, id=str(next(looks))))}

    monkeypatch.setattr("app.payloads.audit.described", looked)
    with pytest.raises(ClusterError, match=f"topic {topic} was deleted and created again while it was read; run it"):
        run(place.settings(topic))


def test_audit_of_what_is_whole(place: Place, make_topic: MakeTopic) -> None:
    """Values and keys with their payloads, plain or compressed by any codec, are well, read or not."""
    topic = make_topic()
    codecs: list[Codec | None] = [None, "gzip", "snappy", "lz4", "zstd"]
    values, keys = ([place.offload(topic, data, each) for each in codecs] for data in (b"line\n" * 1_000, b"a key"))
    keyed = [Record(key.value(), b"small", key.headers(KEY)) for key in keys]
    bare = Record(b"k", values[0].path.encode(), [("large-message", b"true")])
    place.send(topic, *map(refers, values * 2), *keyed, bare, Record(b"k", None), Record(b"k", b"plain"))
    for verify in (False, True):
        result = run(place.settings(topic, verify=verify))
        assert (result.states, result.wrong, result.examples) == ({topic: {"ok": 16}}, 0, [])


def test_audit_of_what_is_wrong(place: Place, make_topic: MakeTopic, tmp_path: Path) -> None:
    """What is missing, another, elsewhere or malformed, wrapped or not, is told with its place; the report has all."""
    topic, other = make_topic(), make_topic()
    fine, gone, cut, changed, broken = (place.offload(topic, b"%d" % n * 100) for n in range(5))
    packed = place.offload(topic, b"z" * 1_000, "zstd")
    distant, nowhere = place.offload(other, b"in another folder"), Reference("file:///etc/passwd")
    for reference, data in ((gone, None), (cut, b"short"), (changed, b"x" * 100), (packed, b"not zstd")):
        place.replace(reference, data)
    bad = Record(b"k", b"\xff", [("large-message", b"true")])
    records = [*map(refers, (fine, gone, cut, changed, broken, packed, distant, nowhere))]
    records[1] = Wrap().wrap(records[1])
    place.send(topic, *records, bad, Wrap().wrap(refers(fine)))
    place.replace(broken, None)
    states = {"ok": 5, "missing": 2, "size": 1, "refused": 1, "malformed": 1}
    assert run(place.settings(topic)).states == {topic: states}

    report = tmp_path / "report.parquet"
    result = run(place.settings(topic, verify=True, report=str(report)))
    states |= {"ok": 3, "checksum": 1, "compression": 1}
    assert (result.states, result.wrong) == ({topic: states}, 7)
    rows = sorted(pyarrow.parquet.read_table(report).to_pylist(), key=lambda row: row["offset"])
    expected = ["ok", "missing", "size", "checksum", "missing", "compression", "ok", "refused", "malformed", "ok"]
    assert [row["state"] for row in rows] == expected
    assert [row.offset for row in result.examples] == [1, 2, 3, 4, 5, 7, 8]
    assert "the store has 5 bytes, the reference says 100" in rows[2]["detail"] or "size is" in rows[2]["detail"]
    assert "it is not below the store's root" in rows[7]["detail"]
    with pytest.raises(ConfigurationError, match=r"--report: .* already exists"):
        run(place.settings(topic, report=str(report)))


def test_audit_of_what_is_not_signed(place: Place, make_topic: MakeTopic) -> None:
    """With a key, a reference that is not signed is refused, though its payload is there; also inside of a wrapper."""
    topic, signing = make_topic(), Signing("s" * 32)
    reference = place.offload(topic, b"payload")
    signed = signing.signed(reference)
    forged = replace(signed, size=8)
    place.send(topic, refers(signed), refers(reference), refers(forged), Wrap().wrap(refers(signed)))
    place.config = {**place.config, "large.message.signing.key": "s" * 32}
    result = run(place.settings(topic))
    assert result.states == {topic: {"ok": 2, "refused": 2}}
    assert [(row.offset, row.path) for row in result.examples] == [(1, reference.path), (2, reference.path)]
    assert ["it has no signature" in (row.detail or "") for row in result.examples] == [True, False]


def test_audit_of_encrypted_payloads(place: Place, make_topic: MakeTopic) -> None:
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
    assert run(place.settings(topic)).states == {topic: {"ok": 4, "size": 1}}
    result = run(place.settings(topic, verify=True))
    assert result.states == {topic: {"ok": 2, "size": 1, "checksum": 2}}


def test_audit_of_a_compacted_topic(place: Place, make_topic: MakeTopic) -> None:
    """What a new group meets counts, overwritten or not; `newest_only` leaves out what Kafka has yet to remove."""
    topic = make_topic(1, **{"cleanup.policy": "compact"})
    old, new, gone = (place.offload(topic, b"%d" % n) for n in range(3))
    place.send(topic, refers(old), refers(new), refers(gone, b"g"), Record(b"g", None))
    place.replace(old, None)
    place.replace(gone, None)
    result = run(place.settings(topic))
    assert result.states == {topic: {"ok": 1, "missing": 2}}
    assert f"topic {topic} is compacted, and a reader that starts at the beginning finds 2" in result.notes[0]
    result = run(place.settings(topic, newest_only=True))
    assert (result.states, result.notes) == ({topic: {"ok": 1}}, [])
    place.replace(new, None)
    result = run(place.settings(topic, newest_only=True))
    assert (result.states, result.notes) == ({topic: {"missing": 1}}, [])


def test_audit_of_timestamps_of_other_units(place: Place, make_topic: MakeTopic, tmp_path: Path) -> None:
    """Such records are audited and counted as others; a report has no time for those that are too far away."""
    topic = make_topic(**{"message.timestamp.after.max.ms": 2**63 - 1, "retention.ms": 2**40})
    gone = place.offload(topic, b"gone")
    place.replace(gone, None)
    record, report = refers(gone), tmp_path / "report.jsonl"
    stamps = [1_700_000_000_000, 1_700_000_000_000_000_000, 2**63 - 1, -(2**62)]
    send(place.broker, topic, [(0, record.key, record.value, list(record.headers), stamp) for stamp in stamps])
    result = run(place.settings(topic, report=str(report)))
    assert result.states == {topic: {"missing": 4}}
    assert [row.offset for row in result.examples] == [0, 1, 2, 3]
    rows = sorted(map(json.loads, report.read_text().splitlines()), key=lambda row: row["offset"])
    assert [row["timestamp"] is None for row in rows] == [False, True, True, True]


# --- on S3


def test_audit_of_a_bucket(versitygw: S3Server, broker: str, make_topic: MakeTopic) -> None:
    """On a real S3 server payloads are found and read; those that a rule deletes before their records expire.

    Where the server has no rules it is not known whether payloads do.
    """
    day_ms = 86_400_000
    topic = make_topic(1, **{"retention.ms": 3 * day_ms, "cleanup.policy": "delete"})
    now = round(datetime.now(UTC).timestamp() * 1000)
    with keeping_rules(versitygw) as server:
        place, bare = (
            Place(broker, {"large.message.payload.store.class": "s3", **each.config("base")})
            for each in (server, versitygw)
        )
        one, two, gone = (place.offload(topic, b"%d" % n * 50) for n in range(3))
        place.replace(gone, None)
        records = [refers(one), refers(two), refers(gone)]
        ages = [0, 2 * day_ms + day_ms // 2, 0]  # the second record goes before its payload would
        place.send(topic, *(replace(r, timestamp=now - age) for r, age in zip(records, ages, strict=True)))
        for each, notes in ((place, 0), (bare, 1)):
            result = run(each.settings(topic, verify=True))
            assert (result.states, len(result.notes)) == ({topic: {"ok": 2, "missing": 1}}, notes)
        assert "it is not known whether payloads expire" in result.notes[0]
        with closing(open_store(place.config)) as store:
            assert isinstance(store, Lifecycle)
            store.set_expiry(topic, 1)
        result = run(place.settings(topic))
    assert result.states == {topic: {"expiring": 1, "ok": 1, "missing": 1}}
    assert "deletes it after 1 d" in (result.examples[0].detail or "")


@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
def test_audit_of_bakdatas_payloads(versitygw: S3Server, broker: str, make_topic: MakeTopic, name: FormatName) -> None:
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
    result = run(place.settings(topic, reference_format=name, verify=True))
    assert result.states == {topic: {"ok": len(cases)}}


# --- as a command


def test_main_says_what_is_wrong(
    place: Place, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends with 3 where something is wrong, and says what, in JSON or as a table."""
    topic = make_topic()
    fine, gone = place.offload(topic, b"fine"), place.offload(topic, b"gone")
    place.send(topic, refers(fine), refers(gone))
    place.replace(gone, None)
    command = ["--bootstrap-servers", place.broker, "--topic", topic, *options(place.config)]
    assert main(command) == 3
    summary = json.loads(capsys.readouterr().out)
    assert (summary["status"], summary["topics"]) == ("wrong", {topic: {"ok": 1, "missing": 1}})
    assert summary["examples"][0]["path"] == gone.path
    place.send(topic, refers(gone, b"again"), refers(fine, b"again"))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(command) == 3
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["topic", "references", "ok", "missing"],
        [topic, "4", "2", "2"],
        ["payloads:", "4", "B"],
    ]
    assert lines[3] == f"{topic} partition 0 offset 1 value: missing: there is no payload at {gone.path!r}"
    assert len(lines) == 5


def test_main_failures(
    place: Place,
    make_topic: MakeTopic,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is to be set right is one sentence and status 2, before a topic is read; an empty topic is well."""
    topic, nobody = make_topic(2), "127.0.0.1:1"
    store = options(place.config)
    for server, name, more, said in (
        (nobody, "t", [f"--store={STORE_CLASS}=s4"], f"audit: {STORE_CLASS}: found 's4'"),
        (nobody, "t", store, "audit: bootstrap.servers: no broker answers at 127.0.0.1:1"),
        (place.broker, f"{topic}x", store, f"did you mean {topic}?"),
        (place.broker, topic, [*store, "--report", str(tmp_path)], "audit: --report: "),
    ):
        assert main(["--bootstrap-servers", server, "--topic", name, *more]) == 2
        err = capsys.readouterr().err
        assert (err.startswith("audit: "), said in err, err.count("\n")) == (True, True, 1)
    assert main(["--bootstrap-servers", place.broker, "--topic", topic, "--verify", *store]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["status"], summary["topics"], summary["stored_bytes"]) == ("ok", {topic: {}}, 0)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("app.payloads.audit_command.audit", interrupted)
    assert main(["--bootstrap-servers", place.broker, "--topic", topic, *store]) == 130
    assert capsys.readouterr().err == "audit: interrupted; there is no result\n"
