"""The commands with a real broker: one successful run each, and the errors of wrong configurations."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka.admin import AdminClient

from app.config.parsing import load
from app.kafka.clients import admin
from app.kafka.topics import Topic, topics
from app.serializers import LargeMessageSerializer
from tests.integration.command_line import lines, wideload
from tests.integration.limits import set_limit
from tests.integration.topics import Sent, committed, end_offsets, read_all, send
from tests.integration.worker_process import WorkerProcess, toml, until
from tests.s3_server import free_port
from transforms.chunk import Chunking
from transforms.record import Record

MakeTopic = Callable[..., str]

LARGE = 3_000_000
STORE = {"large.message.payload.store.class": "filesystem"}
THRESHOLD = 1_000
CTRL_C = b"\x03"


@contextmanager
def consuming(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """A process that shows all records of the source and then waits for more; killed at the end."""
    command = [sys.executable, "-m", "app.cli", "consume", place.raw, "--from-beginning", "-b", place.broker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@dataclass
class Place:
    """A source, a sink, a store, and the configuration of a pipeline between them."""

    broker: str
    raw: str
    orders: str
    folder: Path

    @property
    def group(self) -> str:
        """The consumer group, different for each test."""
        return f"{self.raw}-group"

    def pipeline(self, **keys: object) -> dict[str, object]:
        """The keys of the pipeline; None removes one."""
        values: dict[str, object] = {
            "topics": [self.raw],
            "output.topic": self.orders,
            "transforms": ["offload"],
            "group.id": self.group,
            "large.message.threshold.bytes": THRESHOLD,
            "large.message.payload.store.class": "filesystem",
            "filesystem.root": str(self.folder / "store"),
            **keys,
        }
        return {key: value for key, value in values.items() if value is not None}

    def config(self, worker: Mapping[str, object] | None = None, **keys: object) -> Path:
        """The configuration as a file."""
        path = self.folder / "wideload.toml"
        head = {"bootstrap.servers": self.broker, "web.port": free_port(), **(worker or {})}
        path.write_text(toml(head, {"orders": self.pipeline(**keys)}))
        return path

    def offload(self, count: int) -> None:
        """Runs a worker until the sink has this many records."""
        with WorkerProcess(self.folder, {"bootstrap.servers": self.broker}, {"orders": self.pipeline()}) as worker:
            until(lambda: sum(end_offsets(self.broker, self.orders).values()) >= count, "all is offloaded")
            assert worker.terminate() == 0


@pytest.fixture
def place(broker: str, make_topic: MakeTopic, tmp_path: Path) -> Place:
    """Two topics, the first of which takes large messages."""
    return Place(broker, make_topic(2, **{"max.message.bytes": LARGE + 1_000}), make_topic(2), tmp_path)


# --- produce ----------------------------------------------------------------------------------------------------------


def test_produce_files_with_keys_and_headers(place: Place) -> None:
    """Each file is a message with its name as key and the headers in order; the summary has partitions and offsets."""
    for name, data in (("a.bin", bytes(range(256)) * 10_000), ("b", b""), ("c ü", b"text\n")):
        (place.folder / name).write_bytes(data)
    files = [place.folder / name for name in ("a.bin", "b", "c ü")]
    options = ("-b", place.broker, "-p", 1, "-H", "x=1", "-H", "x=2=3", "-H", "null", "--json")
    (summary,) = lines(wideload("produce", place.raw, *files, *options))
    assert (summary["messages"], summary["partitions"]) == (3, {"1": {"first": 0, "last": 2}})
    found = read_all(place.broker, place.raw)[1]
    headers = (("x", b"1"), ("x", b"2=3"), ("null", None))
    expected = [(os.fsencode(path.name), path.read_bytes(), headers) for path in files]
    assert [(r.key, r.value, r.headers) for r in found] == expected


def test_produce_lines_and_tombstone(place: Place) -> None:
    """Each line is a message, even an empty one or one without a line break; a tombstone is a null value."""
    told = wideload(
        "produce", place.raw, "--lines", "-p", 0, "--tombstone", "k", "-b", place.broker, stdin=b"a\n\nb\r\nc"
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("sent 5 messages (")
    found = read_all(place.broker, place.raw)[0]
    assert [(r.key, r.value) for r in found] == [(None, b"a"), (None, b""), (None, b"b\r"), (None, b"c"), (b"k", None)]


def test_produce_folder_recursive_with_paths(place: Place) -> None:
    """A folder needs --recursive; the keys may be the paths below the folder."""
    folder = place.folder / "in"
    (folder / "sub").mkdir(parents=True)
    (folder / "one").write_bytes(b"1")
    (folder / "sub" / "one").write_bytes(b"2")
    refused = wideload("produce", place.raw, folder, "-b", place.broker)
    assert (refused.returncode, refused.stderr) == (
        2, f"wideload: FILE: {folder} is a directory; --recursive sends all files in it\n",
    )  # fmt: skip
    assert wideload("produce", place.raw, folder, "-r", "--key-from", "path", "-b", place.broker).returncode == 0
    found = [record for records in read_all(place.broker, place.raw).values() for record in records]
    assert {(record.key, record.value) for record in found} == {(b"one", b"1"), (b"sub/one", b"2")}


def test_produce_file_over_the_limit_sends_nothing(place: Place) -> None:
    """One file that is too large: a sentence with name, size and limit, before anything is sent."""
    small, large = place.folder / "small", place.folder / "large"
    small.write_bytes(b"x")
    large.write_bytes(b"x" * (LARGE + 1_001))
    done = wideload("produce", place.raw, small, large, "-b", place.broker)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    for part in (str(large), "3,001,001 bytes", "3,001,000", "nothing was sent"):
        assert part in done.stderr
    assert empty(place.broker, place.raw)


def test_produce_pipe_over_the_limit(place: Place) -> None:
    """Input without a known size is read up to the limit; earlier messages are sent and reported."""
    options = ("-p", 0, "-b", place.broker)
    whole = wideload("produce", place.raw, "-", *options, stdin=b"x" * (LARGE + 1_000))
    assert whole.returncode == 1
    assert "standard input: the record has 3,001,074 bytes as a batch of one" in whole.stderr
    # Compressed, the line would fit; it must not be cut in two.
    line = b"first\n" + b"x" * (LARGE + 1_002) + b"\n"
    done = wideload("produce", place.raw, "--lines", "--compression-type", "gzip", *options, stdin=line)
    assert done.returncode == 1
    assert done.stderr.startswith("wideload: standard input, line 2: it is longer than")
    assert "1 messages were sent before" in done.stderr
    assert [record.value for record in read_all(place.broker, place.raw)[0]] == [b"first"]


def test_produce_sends_each_line_when_it_comes(place: Place) -> None:
    """A line does not wait for the next one, nor for the end of the input; what has no line break yet does."""
    command = [sys.executable, "-m", "app.cli", "produce", place.raw, "--lines", "-p", "0", "-b", place.broker]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        for number, text in enumerate((b"first\n", b"second\nthi", b"rd\nlast")):
            process.stdin.write(text)
            process.stdin.flush()
            until(lambda count=number + 1: end_offsets(place.broker, place.raw)[0] == count, "the line has come")  # type: ignore[misc]
        told, _ = process.communicate(timeout=60)
    assert told.startswith(b"sent 4 messages (")
    assert [record.value for record in read_all(place.broker, place.raw)[0]] == [b"first", b"second", b"third", b"last"]


def test_produce_splits_a_batch_that_the_topic_refuses(broker: str, make_topic: MakeTopic) -> None:
    """A limit that is lowered meanwhile: batches over it are sent again in parts; each line arrives once, in order."""
    topic = make_topic(**{"max.message.bytes": 500_000})
    sent = [b"%06d" % number + b"x" * 994 for number in range(2_000)]
    command = [sys.executable, "-m", "app.cli", "produce", topic, "--lines", "-p", "0", "-b", broker, "--debug"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert any("Kafka producer started" in line for line in process.stderr), "it has asked for the limit before"
        asyncio.run(set_limit(broker, topic, 20_000))
        told, logged = process.communicate(b"\n".join(sent).decode(), timeout=60)
    assert (process.returncode, told.startswith("sent 2,000 messages (")) == (0, True), logged[-2_000:]
    assert "was refused, and is split in two" in logged
    assert [record.value for record in read_all(broker, topic)[0]] == sent


def test_produce_mistake(place: Place) -> None:
    """A wrong argument gives one line and status 2, and nothing is sent."""
    nix = place.folder / "nix"
    wrong: list[tuple[tuple[object, ...], str]] = [
        ((place.raw, nix), f"FILE: {nix} cannot be read: No such file or directory"),
        ((f"{place.raw}-nix", "-"), f"TOPIC: topic {place.raw}-nix does not exist"),
        ((place.raw, "-", "-p", 9), f"--partition: found 9, topic {place.raw} has partitions 0 to 1"),
        ((place.raw, "-", "-H", "=x"), "--header: found '=x', allowed is NAME=VALUE"),
    ]
    for arguments, message in wrong:
        done = wideload("produce", *arguments, "-b", place.broker)
        assert done.returncode == 2
        assert done.stderr.startswith(f"wideload: {message}")
        assert done.stderr.count("\n") == 1
    assert empty(place.broker, place.raw)


# --- topics -----------------------------------------------------------------------------------------------------------


def described(config: Path, *names: str) -> dict[str, Topic]:
    """Those of the topics that exist."""

    async def ask() -> dict[str, Topic]:
        async with admin(load(config).client) as connection:
            return await topics(connection, names)

    return asyncio.run(ask())


@contextmanager
def deleted(config: Path, *names: str) -> Iterator[None]:
    """Deletes topics at the end, and waits until they are gone."""
    try:
        yield
    finally:

        async def delete() -> None:
            async with admin(load(config).client) as connection:
                await connection.delete_topics(list(names))

        asyncio.run(delete())
        until(lambda: not described(config, *names), "the topics are gone")


@pytest.mark.matrix
def test_topics_of_a_file_are_made(place: Place) -> None:
    """Those that are missing, once they are agreed to; `check` has nothing to warn of then. The others stay."""
    new = {name: f"{place.orders}-{name}" for name in ("refs", "dead", "whole")}
    shared = {**STORE, "filesystem.root": str(place.folder), "errors.tolerance": "all"}
    offload = {**shared, "topics": [place.raw], "output.topic": new["refs"], "transforms": ["offload"]}
    inflate = {**shared, "topics": [new["refs"]], "output.topic": new["whole"], "transforms": ["inflate"]}
    letters = {"errors.deadletterqueue.topic.name": new["dead"]}
    path = place.folder / "topics.toml"
    head = {"bootstrap.servers": place.broker, "web.port": free_port()}
    path.write_text(toml(head, {"a": {**offload, **letters}, "b": {**inflate, **letters}}))
    shown = wideload("topics", "create", "-c", path, "--dry-run")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "would create 3 topics; nothing was created" in shown.stdout
    refused = wideload("topics", "create", "-c", path)
    told = "wideload: --yes: is missing, and there is no terminal for the confirmation; add it, or --dry-run\n"
    assert (refused.returncode, refused.stderr) == (2, told)
    before = described(path, place.raw, *new.values())
    assert list(before) == [place.raw]
    with deleted(path, *new.values()):
        done = wideload("topics", "create", "-c", path, "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        assert [f"created topic {name}" in done.stdout for name in new.values()] == [True] * 3
        found = described(path, place.raw, *new.values())
        assert {name: each.partitions for name, each in found.items()} == dict.fromkeys([place.raw, *new.values()], 2)
        assert found[place.raw] == before[place.raw]
        assert [found[new[name]].max_message_bytes for name in new] == [1_048_588, 1_048_588, 104_000_000]
        checked = wideload("check", "-c", path)
        assert (checked.returncode, checked.stderr) == (0, "")
        assert "warning" not in checked.stdout
        again = wideload("topics", "create", "-c", path)
        assert (again.returncode, again.stdout.splitlines()[-1]) == (
            0,
            "all topics exist; run wideload check to verify them",
        )


def at_a_terminal(typed: bytes, *arguments: object) -> tuple[int, str]:
    """Runs a command at a terminal of its own, and types this at its question; status, and what stands behind it."""
    terminal, side = pty.openpty()
    # Opened by the leader of a new session, it is the terminal whose Ctrl-C is a signal.
    at = f'exec "$@" < {os.ttyname(side)} > {os.ttyname(side)} 2>&1'
    command = ["sh", "-c", at, "sh", sys.executable, "-m", "app.cli", *map(str, arguments)]
    with (
        subprocess.Popen(command, start_new_session=True) as process,
        os.fdopen(terminal, "rb+", buffering=0) as screen,
    ):
        shown = b""
        while b"[y/N]: " not in shown:
            shown += screen.read(1_000)
        os.close(side)
        screen.write(typed)
        with suppress(OSError):  # so a terminal ends
            while True:
                # A signal between the question and the read that follows waits for the next key; one that comes while
                # the process ends would end it otherwise.
                silent = not select.select([screen], [], [], 0.5)[0]
                if silent and typed == CTRL_C and b"nothing was created" not in shown:
                    screen.write(typed)
                shown += screen.read(1_000)
        return process.wait(30), shown.decode().partition("[y/N]: ")[2]


def test_topics_are_agreed_to_at_a_terminal(place: Place) -> None:
    """Enter and the end of the input mean no, with status 1; Ctrl-C ends with 130; nothing was created."""
    names = f"{place.raw}-asked", f"{place.orders}-asked"
    config = place.config(None, **{"topics": [names[0]], "output.topic": names[1]})
    command = "topics", "create", "-c", config
    assert at_a_terminal(b"what\r\r", *command) == (
        1,
        "what\r\n\r\nError: invalid input\r\ncreate 2 topics? [y/N]: nothing was created\r\n",
    )
    assert at_a_terminal(b"\x04", *command) == (1, "\r\nnothing was created\r\n")
    status, shown = at_a_terminal(CTRL_C, *command)
    assert (status, shown.lstrip("^C")) == (130, "\r\nnothing was created\r\n")
    assert described(config, *names) == {}
    with deleted(config, *names):
        status, shown = at_a_terminal(b"y\r", *command)
        assert (status, shown) == (0, "y\r\n" + "".join(f"created topic {name}\r\n" for name in names))


def test_topics_of_a_source_that_is_missing(place: Place) -> None:
    """It gets as many partitions as it is told, or as the brokers think; the sink as many."""
    names = f"{place.raw}-new", f"{place.orders}-new"
    config = place.config(None, **{"topics": [names[0]], "output.topic": names[1]})
    for options, count in (((), 1), (("--partitions", 3, "--max-message-bytes", "2MB"), 3)):
        with deleted(config, *names):
            assert wideload("topics", "create", "-c", config, "--yes", *options).returncode == 0
            found = described(config, *names)
            assert [each.partitions for each in found.values()] == [count, count]
        assert found[names[0]].max_message_bytes == (2_065_536 if options else 104_000_000)


def test_topics_that_brokers_refuse(place: Place) -> None:
    """One that they refuse is told with their reason, and keeps the others from nothing."""
    config = place.config(None, **{"output.topic": f"{place.orders}-x", "topic.creation.default.replication.factor": 9})
    done = wideload("topics", "create", "-c", config, "--yes")
    assert done.returncode == 2
    assert done.stderr.startswith(f"wideload: output.topic: topic {place.orders}-x cannot be created: ")
    assert "eplication factor" in done.stderr
    wrong = wideload("topics", "create", "-c", config, "--max-message-bytes", "big")
    assert (wrong.returncode, wrong.stderr) == (
        2,
        (
            "wideload: --max-message-bytes: found 'big', allowed is a number of bytes, or a text such as \"1MB\" or "
            '"64KiB"\n'
        ),
    )


# --- consume ----------------------------------------------------------------------------------------------------------


def test_consume_shows_records_as_json_lines(place: Place) -> None:
    """Coordinates, key, size, headers and value of each record; a tombstone has no size."""
    headers = [("a", b"\xff"), ("a", None)]
    send(place.broker, place.raw, [(0, b"k", b"v", headers, 5), (1, None, b"\xff", [], 6), (1, b"k", None, [], 7)])
    found = lines(wideload("consume", place.raw, "--from-beginning", "-e", "--values", "-b", place.broker))
    by_place = {(line["partition"], line["offset"]): line for line in found}
    assert by_place[0, 0] == {
        "topic": place.raw, "partition": 0, "offset": 0, "timestamp": 5, "key": "k", "size": 1,
        "headers": [["a", {"base64": "/w=="}], ["a", None]], "reference": False, "inflated": False,
        "chunk": False, "assembled": False, "unwrapped": False, "wrapped": False, "value": "v",
    }  # fmt: skip
    assert by_place[1, 0]["value"] == {"base64": "/w=="}
    assert (by_place[1, 1]["size"], by_place[1, 1]["value"]) == (None, None)
    assert len(found) == 3


def test_consume_from_offsets_with_limits(place: Place) -> None:
    """An offset of one partition, the last N, at most N; by default only new records."""
    send(place.broker, place.raw, [(0, None, b"%d" % number, [], 1) for number in range(10)])

    def offsets(*arguments: object) -> list[int]:
        return [line["offset"] for line in lines(wideload("consume", place.raw, "-b", place.broker, *arguments))]

    assert offsets("-o", 7, "-p", 0, "-e") == [7, 8, 9]
    assert offsets("-o", -2, "-e") == [8, 9]
    assert offsets("--from-beginning", "-n", 3) == [0, 1, 2]
    assert offsets("-e") == []
    assert offsets("--timeout-ms", 300) == []
    done = wideload("consume", place.raw, "-o", 11, "-p", 0, "-b", place.broker)
    assert (done.returncode, done.stderr) == (
        2, f"wideload: --offset: found 11, partition 0 of {place.raw} has 0 to 10\n",
    )  # fmt: skip


def test_consume_group_goes_on_where_it_was(place: Place) -> None:
    """A group's offsets are committed for exactly the printed records; and for what is no record behind the last."""

    async def write() -> None:
        async with AIOKafkaProducer(bootstrap_servers=place.broker, transactional_id=place.raw) as producer:
            async with producer.transaction():
                await producer.send_and_wait(place.raw, b"5", partition=0)
            await producer.begin_transaction()
            await producer.send_and_wait(place.raw, b"aborted", partition=0)
            await producer.abort_transaction()

    send(place.broker, place.raw, [(0, None, b"%d" % number, [], 1) for number in range(5)])
    options = ("--group", place.group, "--from-beginning", "-b", place.broker)
    assert [line["offset"] for line in lines(wideload("consume", place.raw, *options, "-n", 2))] == [0, 1]
    assert committed(place.broker, place.group, place.raw)[0] == 2
    asyncio.run(write())
    assert [line["offset"] for line in lines(wideload("consume", place.raw, *options, "-e"))] == [2, 3, 4, 5]
    assert committed(place.broker, place.group, place.raw)[0] == end_offsets(place.broker, place.raw)[0] == 9


def test_consume_writes_hostile_keys_to_harmless_files(place: Place) -> None:
    """No key leads outside the folder or overwrites a file; tombstones write no file."""
    keys = [b"good.txt", b"../escape", b"/tmp/x", b"nul\0", b"x" * 900_000, None, b"good.txt", b""]
    records: list[Any] = [(0, key, b"%d" % number, [], 1) for number, key in enumerate(keys)]
    send(place.broker, place.raw, [*records, (0, b"gone", None, [], 1)])
    out = place.folder / "deep" / "out"
    found = lines(wideload("consume", place.raw, "--from-beginning", "-e", "--output", out, "-b", place.broker))
    names = {path.name: path.read_bytes() for path in out.iterdir()}
    fallbacks = {f"{place.raw}-0-{number}": b"%d" % number for number in range(1, 8)}
    assert names == {"good.txt": b"0", **fallbacks}
    assert [Path(line["file"]).name for line in found if "file" in line] == ["good.txt", *fallbacks]
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize(("by", "status"), [("head", 141), ("Ctrl-C", 130)])
def test_consume_ends_quietly(by: str, status: int, place: Place) -> None:
    """`| head` and Ctrl-C end an endless command with the status of shells, without a message."""
    send(place.broker, place.raw, [(0, None, b"x", [("pad", b"x" * 1_000)], 1) for _ in range(500)])
    with consuming(place) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"{")
        if by == "head":
            process.stdout.close()
        else:
            process.send_signal(signal.SIGINT)
            process.stdout.read()
        assert process.stderr.read() == b""
        assert process.wait(30) == status


# --- inspect, and consume --inflate -----------------------------------------------------------------------------------


@pytest.mark.matrix
def test_inspect_and_inflate_what_the_worker_wrote(place: Place) -> None:
    """References are listed with their payloads, and inflated exactly; then one is missing, one malformed."""
    values = {b"large": os.urandom(LARGE), b"second": os.urandom(THRESHOLD + 1), b"small": b"x" * THRESHOLD}
    send(place.broker, place.raw, [(0, key, value, [], 1) for key, value in values.items()])
    place.offload(len(values))
    config = place.config()

    *references, last = lines(wideload("inspect", place.orders, "-c", config, "--json"))
    assert [(line["key"], line["payload"], line["size"], line["stored"]) for line in references] == [
        ("large", "ok", LARGE, LARGE),
        ("second", "ok", THRESHOLD + 1, THRESHOLD + 1),
    ]
    assert (last["summary"]["records"], last["summary"]["payloads"]) == (3, {"ok": 2})

    out = place.folder / "out"
    shown = lines(
        wideload("consume", place.orders, "--from-beginning", "-e", "--inflate", "-c", config, "--output", out)
    )
    assert {path.name.encode(): path.read_bytes() for path in out.iterdir()} == values
    assert [line["inflated"] for line in shown] == [True, True, False]

    Path(references[0]["path"].removeprefix("file://")).unlink()
    Path(references[1]["path"].removeprefix("file://")).write_bytes(b"short")
    forged = [("large-message", b"true")]
    send(place.broker, place.orders, [(1, b"f", b"file:///etc/passwd", forged, 1), (1, b"m", b"\xff", forged, 1)])
    *bad, last = lines(wideload("inspect", place.orders, "-c", config, "--json", "--only-bad"), status=1)
    assert {line["key"]: line["payload"] for line in bad} == {
        "large": "missing", "second": "size", "f": "refused", "m": "malformed",
    }  # fmt: skip
    failed = wideload("consume", place.orders, "--from-beginning", "-e", "--inflate", "-c", config)
    assert {line["key"] for line in lines(failed, status=1) if "error" in line} == {"large", "second", "f", "m"}
    assert "4 of them could not be inflated" in failed.stderr


def test_consume_gives_whole_values_whatever_they_came_as(place: Place) -> None:
    """Plain, as a reference, as chunks between others: each is one value, and no piece of one becomes a file."""
    whole, torn = Record(b"whole", os.urandom(9_000), (("own", b"1"),), 1), Record(b"torn", os.urandom(5_000), (), 1)
    pieces = [(0, each.key, each.value, list(each.headers), 1) for each in Chunking(4_000).split(whole, "w")]
    begun = [(0, each.key, each.value, list(each.headers), 1) for each in Chunking(4_000).split(torn, "t")]
    path = place.folder / "store" / place.orders / "id"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"payload")
    reference = (0, b"reference", f"file://{path}".encode(), [("large-message", b"true")], 1)
    send(place.broker, place.orders, [*begun[1:], pieces[0], (0, b"plain", b"v", [], 1), *pieces[1:], reference])
    config, out, group = place.config(), place.folder / "out", place.group + "-c"
    options = ("--from-beginning", "-e", "--inflate", "-c", config, "--json")
    done = wideload("consume", place.orders, *options, "--group", group, "--output", out)
    broken, plain, made, inflated = lines(done, status=1)
    assert "missing-first" in broken["error"]
    assert (broken["chunk"], broken["assembled"], plain["chunk"], plain["assembled"]) == (True, False, False, False)
    assert (made["assembled"], made["offset"], made["size"], made["headers"]) == (True, 4, 9_000, [["own", "1"]])
    assert (inflated["inflated"], inflated["assembled"]) == (True, False)
    assert {each.name: each.read_bytes() for each in out.iterdir()} == {
        "plain": b"v", "whole": whole.value, "reference": b"payload",
    }  # fmt: skip

    # One that is begun waits for its rest, also beyond the end of the command.
    send(place.broker, place.orders, begun[:1])
    done = wideload("consume", place.orders, *options, "--group", group)
    assert lines(done, status=1) == []
    assert "1 more are incomplete: their last chunks were not read" in done.stderr
    send(place.broker, place.orders, begun[1:])
    (found,) = lines(wideload("consume", place.orders, *options, "--group", group))
    assert (found["key"], found["size"], found["assembled"]) == ("torn", 5_000, True)

    # Without --inflate a chunk is shown as what it is.
    shown = lines(wideload("consume", place.orders, "--from-beginning", "-e", "-b", place.broker))
    assert [line["chunk"] for line in shown] == [each["key"] in {"whole", "torn"} for each in shown]


def test_inspect_tells_what_chunks_make(place: Place) -> None:
    """A message is whole, broken, or waits for its rest; one that is broken is bad."""
    made = {name: Record(name.encode(), os.urandom(9_000), (), 1) for name in ("whole", "torn", "begun")}
    pieces = {
        name: [
            (0, each.key, each.value, list(each.headers), 1) for each in Chunking(4_000).split(record, f"uuid-{name}")
        ]
        for name, record in made.items()
    }
    count = len(pieces["whole"])
    plain: Sent = (0, b"plain", b"v", [], 1)
    send(place.broker, place.orders, [*pieces["torn"][1:], *pieces["begun"][:2], *pieces["whole"][:1], plain])
    malformed = [pieces["whole"][0][3][0], ("large-message.chunk.id", b"x")]
    send(place.broker, place.orders, [*pieces["whole"][1:], (0, b"m", b"x", malformed, 1)])
    *shown, last = lines(wideload("inspect", place.orders, "-b", place.broker, "--json"), status=1)
    found = {line["key"]: line for line in shown}
    assert {key: line["message"] for key, line in found.items()} == {
        "whole": "whole", "torn": "broken", "begun": "pending", "m": "broken",
    }  # fmt: skip
    assert (found["whole"]["chunks"], found["whole"]["size"], found["whole"]["read"]) == (count, 9_000, 9_000)
    assert (found["begun"]["uuid"], found["begun"]["detail"]) == ("uuid-begun", f"2 of {count} chunks were read")
    assert "missing-first" in found["torn"]["detail"]
    assert last["summary"]["messages"] == {"broken": 2, "pending": 1, "whole": 1}
    assert last["summary"]["chunks"] == (count - 1) + 2 + count + 1
    done = wideload("inspect", place.orders, "-b", place.broker, "--only-bad")
    assert done.returncode == 1
    assert "uuid-torn" in done.stdout
    assert "uuid-whole" not in done.stdout


def test_inspect_refuses_what_is_not_signed(place: Place) -> None:
    """With a signing key, a reference without a signature is bad, though its payload exists."""
    config = place.config(None, **{"large.message.signing.key": "s" * 32})
    signature = b"hmac-sha256:" + b"0" * 8 + b":" + b"0" * 64
    forged = [("large-message", b"true"), ("large-message.signature", signature)]
    path = f"file://{place.folder}/store/{place.orders}/id".encode()
    send(place.broker, place.orders, [(0, b"k", path, forged, 1), (0, b"u", path, forged[:1], 1)])
    *bad, _ = lines(wideload("inspect", place.orders, "-c", config, "--json"), status=1)
    assert [line["payload"] for line in bad] == ["refused", "refused"]
    assert "it was signed with key 00000000" in bad[0]["detail"]
    assert "it has no signature" in bad[1]["detail"]


def test_inspect_without_store_looks_at_records_only(place: Place) -> None:
    """Without a configuration a payload is `unchecked`, which is no error; the table ends with totals."""
    send(
        place.broker, place.orders, [(0, b"k", b"s3://b/t/id", [("large-message", b"true")], 1), (0, b"o", b"x", [], 1)]
    )
    done = wideload("inspect", place.orders, "-b", place.broker)
    assert done.returncode == 0
    *_, row, total = done.stdout.splitlines()
    assert row.split() == ["0", "0", "value", "unchecked", "-", "-", "-", "k", "s3://b/t/id"]
    assert total == f"{place.orders}: 2 records (12 B), 1 references to 0 B: 1 unchecked"


def test_references_of_keys(place: Place) -> None:
    """The reference of a key is listed beside that of its value, and consume gives the key, whatever the value is."""
    config = place.config()
    store = {
        "large.message.payload.store.class": "filesystem",
        "filesystem.root": str(place.folder / "store"),
        "large.message.threshold.bytes": THRESHOLD,
    }
    headers: list[Any] = []
    key = LargeMessageSerializer(store, is_key=True).serialize(place.orders, headers, b"k" * 2000)
    value = LargeMessageSerializer(store).serialize(place.orders, headers, b"v" * 3000)
    gone = (key or b"")[:-1] + b"~"
    sent = [(0, key, value, headers, 1), (0, gone, b"small", headers[:3], 1), (0, key, None, headers[:3], 1)]
    send(place.broker, place.orders, sent)
    *found, last = lines(wideload("inspect", place.orders, "-c", config, "--json"), status=1)
    assert [(line["offset"], line["of"], line["payload"], line["size"]) for line in found] == [
        (0, "key", "ok", 2000),
        (0, "value", "ok", 3000),
        (1, "key", "refused", 2000),
        (2, "key", "ok", 2000),
    ]
    assert last["summary"]["references"] == 4
    options = ("--from-beginning", "-e", "--inflate", "-c", config, "--values")
    whole, bad, tombstone = lines(wideload("consume", place.orders, *options), status=1)
    assert [(each["key"], each["value"], each["headers"]) for each in (whole, tombstone)] == [
        ("k" * 2000, "v" * 3000, []),
        ("k" * 2000, None, []),
    ]
    assert bad["reference"] is True
    assert "error" in bad


# --- check and worker -------------------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_check_good_configuration(place: Place) -> None:
    """A table of the pipelines, and OK; with --print the configuration, secrets hidden. No group is created."""
    config = place.config({"sasl.password": "hunter2", "client.id": "${env:WHO}"})
    done = wideload("check", "-c", config, "--print", environ={"WHO": "from-outside"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("OK\n")
    assert 'sasl.password = "***"' in done.stdout
    assert "hunter2" not in done.stdout
    assert "from-outside" not in done.stdout
    assert f'[pipeline.orders]\ntopics = ["{place.raw}"]' in done.stdout
    assert groups(place.broker).isdisjoint({place.group})


@pytest.mark.parametrize("wrong", ["port", "topic"])
def test_no_topic_is_created_while_anything_is_wrong(wrong: str, place: Place) -> None:
    """A worker whose port is taken, or that lacks a source, reports that, and creates nothing. A check does."""
    sink = f"{place.raw}-new"
    creating = {"topic.creation.enable": True}
    first = place.pipeline(**{"output.topic": sink, **creating})
    second = place.pipeline(
        **{"topics": [sink], "output.topic": f"{sink}-2", "group.id": sink, "transforms": ["inflate"], **creating}
    )
    third = {**second, "topics": ["no-such-topic"], "output.topic": f"{sink}-3", "group.id": f"{sink}-3"}
    path = place.folder / "wideload.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if wrong == "port" else free_port()
        pipelines = {"a": first, "b": second} if wrong == "port" else {"a": first, "b": second, "c": third}
        path.write_text(toml({"bootstrap.servers": place.broker, "web.port": port}, pipelines))
        done = wideload("worker", "-c", path)
    told = (
        f"wideload: web.port: 127.0.0.1:{port} cannot be used: Address already in use"
        if wrong == "port"
        else "wideload: [pipeline.c] topics: topic no-such-topic does not exist"
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith(told)
    assert described(path, sink, f"{sink}-2", f"{sink}-3") == {}
    if wrong == "port":
        with deleted(path, sink, f"{sink}-2"):
            checked = wideload("check", "-c", path)
            assert (checked.returncode, checked.stderr) == (0, "")
            assert checked.stdout.startswith(f"created topic {sink}\ncreated topic {sink}-2\n")
            again = wideload("check", "-c", path)
            assert (again.returncode, "created topic" in again.stdout) == (0, False)


UNREACHABLE = "127.0.0.1:1"

MISTAKES: Mapping[str, tuple[dict[str, object], dict[str, object], str]] = {
    "no S3 server": (
        {},
        {
            "large.message.payload.store.class": "s3", "filesystem.root": None, "s3.bucket": "nix",
            "s3.endpoint": f"http://{UNREACHABLE}", "s3.retry.attempts": 1, "s3.access.key": "a", "s3.secret.key": "b",
            "s3.region": "us-east-1",
        },
        ("[pipeline.orders] s3.endpoint: the store cannot be used: PutObject s3://nix/{orders}/~wideload-check failed: "
        f'EndpointConnectionError: Could not connect to the endpoint URL: "http://{UNREACHABLE}/nix/'),
    ),
    "store is a file": (
        {}, {"filesystem.root": __file__}, "[pipeline.orders] filesystem.root: the store cannot be used",
    ),
    "unreachable broker": (
        {"bootstrap.servers": UNREACHABLE}, {}, f"bootstrap.servers: no broker answers at {UNREACHABLE}",
    ),
    "threshold above the output topic's limit": (
        {}, {"large.message.threshold.bytes": 2_000_000, "producer.compression.type": "none"},
        "[pipeline.orders] large.message.threshold.bytes: found 2,000,000, which exceeds the limit of the output topic",
    ),
    "secret of the wrong kind": (
        {"sasl.password": 7_777_777}, {}, "sasl.password: found ***, allowed is a value of type string",
    ),
}  # fmt: skip


def test_worker_refuses(place: Place) -> None:
    """A wrong configuration: status 2, one line with the pipeline and the key, and nothing was consumed."""
    send(place.broker, place.raw, [(0, None, b"x", [], 1)])
    for mistake, (head, keys, message) in MISTAKES.items():
        done = wideload("worker", "-c", place.config(head, **keys))
        assert done.returncode == 2, mistake
        assert done.stderr.startswith("wideload: " + message.replace("{orders}", place.orders)), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert "7777777" not in done.stderr
        assert done.stdout == "", mistake
    assert groups(place.broker).isdisjoint({place.group})
    assert empty(place.broker, place.orders)


def test_check_beside_the_worker_of_the_file(place: Place) -> None:
    """The port is used by the worker that is checked: that is told, and no error."""
    with WorkerProcess(place.folder, {"bootstrap.servers": place.broker}, {"orders": place.pipeline()}) as worker:
        until(lambda: worker.get("/health/live")[0] == 200, "the pages are served")
        done = wideload("check", "-c", worker.config)
    assert (done.returncode, done.stderr) == (0, "")
    told = f"note: a worker with these pipelines runs already, at 127.0.0.1:{worker.port}"
    assert done.stdout.splitlines()[0] == told


def test_misspelt_topics_get_the_right_ones(place: Place) -> None:
    """Of a pipeline, all of them at once; and of a command. The names are those of the cluster."""
    keys: dict[str, object] = {"topics": [place.raw[:-1], "quite-another"], "output.topic": f"{place.orders}x"}
    config = place.config(None, **keys)
    done = wideload("check", "-c", config)
    assert (done.returncode, done.stdout) == (2, "")
    told = "wideload: [pipeline.orders]"
    hint = "create it (wideload topics create), correct the name, or grant Describe on it"
    created = "create it (wideload topics create), or set topic.creation.enable = true"
    assert done.stderr.splitlines() == [
        f"{told} topics: topic {place.raw[:-1]} does not exist; {hint}; did you mean {place.raw}?",
        f"{told} topics: topic quite-another does not exist; {hint}",
        f"{told} output.topic: topic {place.orders}x does not exist; {created}; did you mean {place.orders}?",
    ]
    sent = wideload("produce", place.raw[:-1], "-", "-b", place.broker)
    assert sent.stderr.endswith(f"create it first; did you mean {place.raw}?\n")


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    """--debug, before or after the command, shows the traceback; the one line comes last."""
    for arguments in (("--debug", "check"), ("check", "--debug")):
        done = wideload(*arguments, "-c", tmp_path / "nix.toml")
        assert done.returncode == 2
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("wideload: ")


def groups(broker: str) -> set[str]:
    """The consumer groups of the cluster."""
    client = AdminClient({"bootstrap.servers": broker})  # without a name it would end before its answer comes
    return {group.group_id for group in client.list_consumer_groups().result(30).valid}


def empty(broker: str, topic: str) -> bool:
    """Whether a topic has no record."""
    return not any(end_offsets(broker, topic).values())
