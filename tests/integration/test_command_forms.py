"""The commands with a real broker: values as references, as chunks, and in wrappers, written and read."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.serializers import LargeMessageDeserializer
from tests.integration.command_line import lines, wideload
from tests.integration.topics import Found, end_offsets, read_all
from tests.integration.way import MakeTopic
from tests.integration.worker_process import toml
from transforms.chunk import Chunk
from transforms.chunked_message import Assembled, Limits
from transforms.reassembly import Reassembly
from transforms.record import Record
from transforms.wrapper import HeaderTable, MessageWrapper, Unwrap

LIMIT = 20_000
THRESHOLD = 1_000
LARGE = 90_000
NO_STORE = dict.fromkeys(("large.message.threshold.bytes", "large.message.payload.store.class", "filesystem.root"))
TABLE = {"wrapper.header.3000001": "trace-id"}


class Place:
    """A topic that takes no large values, a store, files to be sent, and configurations."""

    def __init__(self, broker: str, topic: str, folder: Path) -> None:
        self.broker = broker
        self.topic = topic
        self.folder = folder

    def file(self, name: str, size: int) -> Path:
        """A file of random bytes."""
        path = self.folder / name
        path.write_bytes(os.urandom(size))
        return path

    def config(self, keys: Mapping[str, object] | None = None) -> Path:
        """A configuration with one pipeline to the topic; see `configs`."""
        return self.configs({"orders": keys or {}})

    def configs(self, pipelines: Mapping[str, Mapping[str, object]]) -> Path:
        """A configuration with pipelines to the topic, which offload, each with keys of its own; None removes one."""
        store = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(self.folder / "store")}
        common = {"output.topic": self.topic, "transforms": ["offload"], "large.message.threshold.bytes": THRESHOLD}
        tables = {
            name: {
                key: value
                for key, value in {"topics": [f"raw-{name}"], **common, **store, **keys}.items()
                if value is not None
            }
            for name, keys in pipelines.items()
        }
        path = self.folder / "wideload.toml"
        path.write_text(toml({"bootstrap.servers": self.broker}, tables))
        return path

    def produce(self, *arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        """Runs `wideload produce` on the topic."""
        return wideload("produce", self.topic, *arguments, stdin=stdin)

    def sent(self, *arguments: object, stdin: bytes = b"") -> dict[str, Any]:
        """The summary of a run that succeeds."""
        (summary,) = lines(self.produce(*arguments, "--json", stdin=stdin))
        return summary

    def consumed(self, *arguments: object, status: int = 0) -> list[dict[str, Any]]:
        """The lines of `wideload consume --values`, from beginning to end."""
        return lines(
            wideload("consume", self.topic, "--from-beginning", "-e", "--json", "--values", *arguments), status=status
        )

    def found(self) -> list[Found]:
        """All records, partition by partition."""
        return [record for _, records in sorted(read_all(self.broker, self.topic).items()) for record in records]

    def empty(self) -> bool:
        """Whether nothing was sent."""
        return not any(end_offsets(self.broker, self.topic).values())


@pytest.fixture
def place(broker: str, make_topic: MakeTopic, tmp_path: Path) -> Place:
    """A topic of four partitions."""
    return Place(broker, make_topic(4, **{"max.message.bytes": LIMIT}), tmp_path)


def assembled(records: list[Found]) -> list[Record]:
    """The records of one partition for a reader, which must find all messages whole."""
    reader, made = Reassembly(Limits()), list[Record]()
    for record in records:
        if not any(name.startswith("large-message.chunk") for name, _ in record.headers):
            made.append(Record(record.key, record.value, record.headers, record.timestamp))
            continue
        for event in reader.receive(0, record):
            assert isinstance(event, Assembled), event
            made.append(Record(event.record.key, event.record.value, event.record.headers, event.record.timestamp))
    assert reader.pending == 0
    return made


# --- chunks -----------------------------------------------------------------------------------------------------------


def test_large_values_go_as_chunks_in_order_to_one_partition(place: Place) -> None:
    """Without a store: each message's chunks follow each other in one partition, though it has no key."""
    files = [place.file(f"f{number}", size) for number, size in enumerate((LARGE, 5, LARGE, LARGE, LARGE))]
    options = ("--strategy", "chunk", "--key-from", "none", "-H", "own=1", "-b", place.broker)
    summary = place.sent(*files, *options)
    found = place.found()
    assert (summary["messages"], summary["chunked"], summary["chunks"], summary["references"]) == (
        5, 4, len(found) - 1, 0,
    )  # fmt: skip
    assert summary["bytes"] == 4 * LARGE + 5
    values: list[bytes | None] = []
    for number in range(4):
        whole = assembled([record for record in found if record.partition == number])
        assert {each.headers for each in whole} <= {(("own", b"1"),)}
        values += [each.value for each in whole]
    assert sorted(map(bytes, filter(None, values))) == sorted(file.read_bytes() for file in files)
    by_uuid: dict[str, list[Found]] = {}
    for record in found:
        if len(record.headers) > 1:
            by_uuid.setdefault(Chunk.parse(record)[0].uuid, []).append(record)
    assert len(by_uuid) == 4
    for chunks in by_uuid.values():
        assert len({record.timestamp for record in chunks}) == len({record.partition for record in chunks}) == 1
        assert [Chunk.parse(record)[0].id for record in chunks] == list(range(len(chunks)))
    told = place.produce(files[0], "--strategy", "chunk", "-b", place.broker).stdout
    assert f"sent 1 message (90.0 kB; 1 as {summary['chunks'] // 4} chunks) to {place.topic}" in told


def test_chunks_of_lines_and_of_a_pipe(place: Place) -> None:
    """Lines and standard input may be longer than the topic takes, up to chunk.max.message.bytes."""
    long = b"x" * LARGE
    summary = place.sent("--lines", "-p", 1, "--strategy", "chunk", "-b", place.broker, stdin=b"a\n" + long + b"\nb\n")
    assert (summary["messages"], summary["chunked"]) == (3, 1)
    place.sent("-", "-p", 1, "--strategy", "chunk", "-b", place.broker, stdin=long)
    assert [record.value for record in assembled(place.found())] == [b"a", long, b"b", long]
    config = place.config({"chunk.max.message.bytes": 2 * LIMIT, "transforms": ["chunk"], **NO_STORE})
    done = place.produce("--lines", "-p", 1, "--strategy", "chunk", "-c", config, stdin=b"c\n" + long)
    assert done.returncode == 1
    assert "standard input, line 2: it is longer than 40,000 bytes, chunk.max.message.bytes" in done.stderr
    assert [record.value for record in assembled(place.found())][4:] == [b"c"]


def test_compressed_values_that_fit_are_no_chunks(place: Place) -> None:
    """As in the worker, it is the compressed batch that counts; chunks of what does not compress fit, too."""
    zeros = place.folder / "zeros"
    zeros.write_bytes(bytes(LARGE))
    options = ("-p", 0, "--strategy", "chunk", "--compression-type", "gzip", "-b", place.broker)
    summary = place.sent(zeros, place.file("random", LARGE), *options)
    assert (summary["messages"], summary["chunked"]) == (2, 1)
    assert [record.key for record in assembled(place.found())] == [b"zeros", b"random"]
    assert place.found()[0].value == bytes(LARGE)


# --- references -------------------------------------------------------------------------------------------------------


def test_large_values_go_as_references_to_the_store_of_the_configuration(place: Place) -> None:
    """Over the threshold, or over the topic's limit; the clients' deserializer reads what was written."""
    files = {name: place.file(name, size) for name, size in {"large": LARGE, "some": 1_001, "small": 1_000}.items()}
    summary = place.sent(*files.values(), "-p", 2, "-H", "own=1", "--strategy", "offload", "-c", place.config())
    assert (summary["messages"], summary["references"], summary["bytes"]) == (
        3,
        2,
        LARGE + 2_001 + len("largesomesmall"),
    )
    reader = LargeMessageDeserializer(
        {"large.message.payload.store.class": "filesystem", "filesystem.root": str(place.folder / "store")}
    )
    for record in place.found():
        headers = list(record.headers)
        assert (
            reader.deserialize(place.topic, headers, record.value) == files[(record.key or b"").decode()].read_bytes()
        )
        assert headers == [("own", b"1")]
    told = place.produce(files["large"], "--strategy", "offload", "-c", place.config()).stdout
    assert f"sent 1 message (90.0 kB; 1 as a reference) to {place.topic}" in told
    stored = [path.name for path in (place.folder / "store" / place.topic).iterdir()]
    assert len(stored) == 2, "the SHA-256 names a payload, so the same value is stored once"


def test_values_go_as_chunks_while_the_store_is_down(place: Place) -> None:
    """`auto` says so once, and sends all messages; `offload` ends with the name of the first."""
    store = "tests.integration.switched_store.SwitchedStore"
    keys = {"large.message.payload.store.class": store, "switched.root": str(place.folder), "filesystem.root": None}
    config = place.config(keys)
    large = [place.file("first", LARGE), place.file("second", LARGE)]
    assert place.sent(large[0], "-p", 0, "--strategy", "auto", "-c", config)["references"] == 1
    (place.folder / "down").touch()
    done = place.produce(*large, "-p", 0, "--strategy", "auto", "-c", config, "--json")
    (summary,) = lines(done)
    assert (summary["messages"], summary["chunked"], summary["references"]) == (2, 2, 0)
    assert done.stderr.count("so large values are sent as chunks: the store is switched off\n") == 1
    assert [record.value for record in assembled(place.found()[1:])] == [file.read_bytes() for file in large]
    failed = place.produce(*large, "-p", 0, "--strategy", "offload", "-c", config)
    assert (failed.returncode, failed.stderr) == (
        1, f"wideload: {large[0]}: the store is switched off (0 messages were sent before)\n",
    )  # fmt: skip


# --- wrappers ---------------------------------------------------------------------------------------------------------


def test_headers_and_values_go_in_wrappers(place: Place) -> None:
    """By the table of the configuration; what the worker unwraps is what was given."""
    config = place.config(TABLE)
    options = ("-p", 0, "-H", "trace-id=7", "-H", "wrapper.header.5=x", "--tombstone", "gone", "--wrap", "-c", config)
    summary = place.sent(place.file("small", 50), *options)
    assert (summary["messages"], summary["wrapped"]) == (2, 2)
    small, gone = place.found()
    assert (small.headers, gone.headers) == ((), ())
    value = (place.folder / "small").read_bytes()
    assert MessageWrapper.parse(small.value or b"") == MessageWrapper({3_000_001: b"7", 5: b"x"}, value)
    assert MessageWrapper.parse(gone.value or b"").value is None
    unwrapped = Unwrap(HeaderTable.configured(TABLE)).unwrap(small)
    assert (unwrapped.headers, unwrapped.value) == ((("trace-id", b"7"), ("wrapper.header.5", b"x")), value)


def test_wrappers_hold_references_and_chunks_hold_wrappers(place: Place) -> None:
    """The worker's order: offload, wrap, chunk."""
    large, config = place.file("large", LARGE), place.config(TABLE)
    options = ("-p", 0, "-H", "trace-id=7", "--wrap", "-c", config)
    assert place.sent(large, *options, "--strategy", "offload")["references"] == 1
    assert place.sent(large, *options, "--strategy", "chunk")["chunked"] == 1
    reference, *chunks = place.found()
    unwrap = Unwrap(HeaderTable.configured(TABLE))
    found = unwrap.unwrap(reference)
    assert [name for name, _ in found.headers][:2] == ["trace-id", "large-message"]
    assert (found.value or b"").startswith(f"file://{place.folder}/store/".encode())
    (whole,) = assembled(chunks)
    assert unwrap.unwrap(whole).value == large.read_bytes()


def test_consume_takes_wrappers_off(place: Place) -> None:
    """Value and headers, by the table of the configuration; what is no wrapper is an error, unless it is to pass."""
    config = place.config(TABLE)
    place.sent(place.file("plain", 5), "-p", 0, "-b", place.broker)
    (place.folder / "v").write_bytes(b"value")
    place.sent(place.folder / "v", "--tombstone", "k", "-p", 0, "-H", "trace-id=7", "--wrap", "-c", config)
    bad, value, tombstone = place.consumed("--unwrap", "-c", config, status=1)
    assert "malformed wrapper: the whole is '5 bytes'; allowed: 9 bytes or more" in bad["error"]
    assert (bad["reference"], bad["unwrapped"]) == (False, False)
    assert (value["headers"], value["value"], value["unwrapped"]) == ([["trace-id", "7"]], "value", True)
    assert (tombstone["headers"], tombstone["value"], tombstone["size"]) == ([["trace-id", "7"]], None, None)
    told = wideload("consume", place.topic, "--from-beginning", "-e", "--unwrap", "-c", config).stderr
    assert told.endswith("1 of them could not be unwrapped\n")
    passing = place.config({"unwrap.on.plain.value": "pass", **TABLE})
    assert [line["unwrapped"] for line in place.consumed("--unwrap", "-c", passing)] == [False, True, True]
    # Without a configuration headers have numbers; without the option a wrapper is a value like others.
    assert place.consumed("--unwrap", "-b", place.broker, status=1)[1]["headers"] == [["wrapper.header.3000001", "7"]]
    shown = place.consumed("-b", place.broker)
    assert [(line["headers"], line["unwrapped"]) for line in shown] == [([], False)] * 3
    # It is told all the same, also with --inflate; what was taken off is none any more.
    assert [line["wrapped"] for line in shown] == [False, True, True]
    assert [line["wrapped"] for line in place.consumed("--inflate", "-c", config)] == [False, True, True]
    assert [line["wrapped"] for line in place.consumed("--unwrap", "-c", passing)] == [False, False, False]


def test_consume_restores_in_the_order_of_the_worker(place: Place) -> None:
    """Chunks of a wrapper, a wrapper of a reference, and, as clients make it, a reference to a wrapper: one value."""
    config, large = place.config(TABLE), place.file("large", LARGE)
    large.write_bytes(b"text" * (LARGE // 4))
    options = ("-p", 0, "-H", "trace-id=7", "--wrap", "-c", config)
    place.sent(large, *options, "--strategy", "chunk")
    place.sent(large, *options, "--strategy", "offload")
    wrapped = place.folder / "wrapped"
    wrapped.write_bytes(MessageWrapper({3_000_001: b"7"}, large.read_bytes()).serialize())
    place.sent(wrapped, "-p", 0, "-c", config, "--strategy", "offload")
    found = place.consumed("--unwrap", "--inflate", "-c", config)
    assert [(each["value"], each["headers"]) for each in found] == [
        (large.read_text(), [["trace-id", "7"]])
    ] * 3  # fmt: skip
    assert [(each["assembled"], each["unwrapped"], each["inflated"]) for each in found] == [
        (True, True, False), (False, True, True), (False, True, True),
    ]  # fmt: skip
    # Without --inflate they are shown as what they are; nothing is an error.
    *pieces, reference, outer = place.consumed("--unwrap", "-c", config)
    assert {(each["chunk"], each["unwrapped"]) for each in pieces} == {(True, False)}
    assert [(each["reference"], each["unwrapped"]) for each in (reference, outer)] == [(True, True), (True, False)]
    # A payload that is gone is told of the reference, not of the wrapper.
    for payload in (place.folder / "store" / place.topic).iterdir():
        payload.unlink()
    _, *gone = place.consumed("--unwrap", "--inflate", "-c", config, status=1)
    assert [("there is no payload at" in each["error"], each["reference"]) for each in gone] == [(True, True)] * 2


def test_inspect_tells_wrappers_and_what_is_in_them(place: Place) -> None:
    """Version, headers and size of each; a reference in one is looked up; chunks may make one. None of it is bad."""
    config = place.config(TABLE)
    place.sent(place.file("plain", 5), "-p", 0, "-b", place.broker)
    options = ("-p", 0, "-H", "trace-id=7", "-H", "wrapper.header.5=x", "--wrap", "-c", config)
    place.sent(place.file("small", 50), "--tombstone", "gone", *options)
    large = place.file("large", LARGE)
    place.sent(large, *options, "--strategy", "offload")
    place.sent(large, *options, "--strategy", "chunk")
    small, gone, large_, reference, chunks, last = lines(wideload("inspect", place.topic, "-c", config, "--json"))
    assert small == {
        "partition": 0, "offset": 1, "key": "small", "of": "value", "wrapper": 0, "headers": 2, "size": 50,
    }  # fmt: skip
    assert [(each["key"], each["headers"], each["size"]) for each in (gone, large_)] == [
        ("gone", 2, None), ("large", 5, len(reference["path"])),
    ]  # fmt: skip
    assert (reference["offset"], reference["payload"], reference["size"]) == (3, "ok", LARGE)
    assert chunks["message"] == "whole"
    assert "they form a wrapper, version 0, with 2 headers and a value of 90.0 kB" in chunks["detail"]
    assert (last["summary"]["wrappers"], last["summary"]["references"]) == (3, 1)
    rows = wideload("inspect", place.topic, "-b", place.broker).stdout
    assert "  a wrapper, version 0, with 2 headers and a value of 50 B\n" in rows
    assert f"{place.topic}: 3 wrappers\n" in rows
    (payload,) = (place.folder / "store" / place.topic).iterdir()
    payload.unlink()
    gone, _ = lines(wideload("inspect", place.topic, "-c", config, "--json", "--only-bad"), status=1)
    assert (gone["offset"], gone["payload"]) == (3, "missing")


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_mistakes_of_forms(place: Place, make_topic: MakeTopic) -> None:
    """A wrong argument gives one line and status 2, and nothing is sent."""
    large, small = place.file("large", LARGE), place.file("small", 5)
    compacted = make_topic(1, **{"cleanup.policy": "compact"})
    config = place.configs({"one": TABLE, "two": {"wrapper.header.3000001": "other"}})
    huge = place.folder / "huge"
    with huge.open("wb") as file:
        file.truncate(64 * 1_048_576 + 1)
    wrong: list[tuple[tuple[object, ...], str]] = [
        ((place.topic, small, large), f"FILE: {large} has 90,000 bytes, but topic {place.topic} accepts messages of"),
        (
            (place.topic, small, huge, "--strategy", "chunk"),
            f"FILE: {huge} has 67,108,865 bytes, but chunk.max.message.bytes is 67,108,864, and readers",
        ),
        (
            (compacted, small, "--strategy", "chunk"),
            f"--strategy: found 'chunk', but topic {compacted} has cleanup.poli",
        ),
        (
            (compacted, small, "--strategy", "auto", "-c", config, "--pipeline", "one"),
            f"--strategy: found 'auto', but topic {compacted} has cleanup.policy compact",
        ),
        (
            (compacted, "--tombstone", "k", "--wrap"),
            f"--tombstone: cannot be combined with --wrap, as topic {compacted} has cle",
        ),
        (
            (place.topic, small, "--strategy", "offload"),
            "--strategy: found 'offload', which requires the store of a conf",
        ),
        ((place.topic, small, "--wrap", "-H", "a=b"), "--header: a message wrapper cannot hold the header 'a': no int"),
        (
            (place.topic, small, "--wrap", "-H", "wrapper.header.1"),
            "--header: a message wrapper cannot hold the header",
        ),
        (
            (place.topic, small, "--wrap", "-c", config),
            "--pipeline: is missing, but wrapper.header.NUMBER differ; name one of: one, two",
        ),
        (
            (place.topic, small, "--wrap", "-c", config, "--pipeline", "three"),
            "--pipeline: found 'three', the configuration has: one, two",
        ),
        ((place.topic, small, "--pipeline", "one"), "--pipeline: requires a configuration; pass it with -c FILE"),
        (
            (place.topic, small, "-c", config, "--pipeline", "one"),
            "--pipeline: has no effect without --strategy or --wr",
        ),
    ]
    for arguments, message in wrong:
        done = wideload("produce", *arguments, "-b", place.broker)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert done.stderr.startswith(f"wideload: {message}"), done.stderr
        assert done.stderr.count("\n") == 1
    assert place.empty()
    assert not any(end_offsets(place.broker, compacted).values())
    # What deletes nothing is wrapped, and a true tombstone deletes.
    assert (
        json.loads(wideload("produce", compacted, small, "--wrap", "-b", place.broker, "--json").stdout)["wrapped"] == 1
    )
    passing = place.config({"wrap.on.null.value": "pass", **TABLE})
    wideload("produce", compacted, "--tombstone", "small", "--wrap", "-c", passing)
    assert [record.value is None for record in read_all(place.broker, compacted)[0]] == [False, True]
