"""A real Faust worker whose topic has chunks: its agents get whole values, and no commit passes what is not done."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.chunk_records import interleaved, pieces, plain, value_of
from tests.integration.client_config import LARGE, Config, on_s3
from tests.integration.faust_process import NO_STORE, STARTS_S, FaustProcess, arrived, digest, produce, write
from tests.integration.topics import committed, read_all
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until
from tests.s3_server import S3Server


def commits(broker: str, topic: str, offset: int) -> None:
    """Waits until all below an offset is committed, and nothing else is."""
    until(lambda: committed(broker, f"{topic}-faust", topic).get(0) == offset, f"{offset} is committed", STARTS_S)


def values(worker: FaustProcess) -> list[Any]:
    """The values that its first agent has written down."""
    return [line["value"] for line in worker.lines() if "value" in line]


@pytest.mark.parametrize("streams", ["cython", "python"])
def test_plain_references_and_chunks(
    broker: str, versitygw: S3Server, make_topic: MakeTopic, tmp_path: Path, streams: str
) -> None:
    """Both agents of a topic get each value whole and in order, with its own headers; all is committed."""
    topic = make_topic()
    produce(broker, on_s3(versitygw), topic, [LARGE])
    chunks = list(interleaved([pieces(f"u{n}", 3_000, n) for n in range(8)], 3))
    write(broker, topic, [plain(b"small"), *chunks, plain(None)])
    tight = {**on_s3(versitygw), "max.pending.chunked.message": 1}
    worker = FaustProcess(tmp_path, broker, topic, tight, twice=True, on_discarded="write")
    worker.environ |= {"NO_CYTHON": "1"} if streams == "python" else {}
    with worker:
        lines = worker.events(22)
        commits(broker, topic, 3 + len(chunks))
        found = values(worker)
        assert found[:2] + found[-1:] == [digest(LARGE), digest(b"small"), None]
        assert sorted(found[2:-1]) == sorted(digest(value_of(3_000, n)) or "" for n in range(8))
        assert [line["too"] for line in lines if "too" in line] == found
        events = [line for line in lines if "value" in line]
        assert [event["offset"] for event in events] == sorted(event["offset"] for event in events)
        last = {"offset": 1 + len(chunks), "key": "k", "value": found[-2], "headers": {}, "raw": []}
        assert events[-2] == last
        worker.process.send_signal(signal.SIGTERM)
        assert worker.ends() == 0


def test_forward(broker: str, versitygw: S3Server, make_topic: MakeTopic, tmp_path: Path) -> None:
    """`event.forward` sends a record as it stands in Kafka, with the same payload; one that came in chunks, whole."""
    topic, sent = make_topic(), make_topic()
    produce(broker, on_s3(versitygw), topic, [LARGE, b"small"])
    write(broker, topic, pieces("u", 3_000, 1))
    store = {**on_s3(versitygw), "large.message.threshold.bytes": 100_000}
    with FaustProcess(tmp_path, broker, topic, store, to=sent, forward=True):
        *forwarded, message = arrived(broker, sent, 3)
    assert [(each.value, each.headers) for each in forwarded] == [
        (each.value, each.headers) for each in read_all(broker, topic)[0][:2]
    ]
    assert (message.key, message.value, message.headers) == (b"k", value_of(3_000, 1), ())


def test_commit_holds(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """No commit passes the first chunk of an incomplete message, and a worker that holds one can be stopped."""
    topic, slow = make_topic(), pieces("slow", 3_000, 1)
    write(broker, topic, [plain(b"0"), slow[0], plain(b"a"), slow[1], plain(b"b"), plain(b"c")])
    with FaustProcess(tmp_path, broker, topic, NO_STORE) as worker:
        worker.events(4)
        write(broker, topic, [plain(b"d")])
        worker.events(5)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.ends() == 0
    assert committed(broker, f"{topic}-faust", topic).get(0, 0) <= 1
    write(broker, topic, slow[2:])
    with FaustProcess(tmp_path / "after", broker, topic, NO_STORE) as worker:
        until(lambda: digest(value_of(3_000, 1)) in values(worker), "the message is whole", STARTS_S)
        commits(broker, topic, 5 + len(slow))


def test_discarded(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """What waits too long goes to `on_discarded` and is committed; an error there stops the worker, before it."""
    topic = make_topic()
    records = [plain(b"a"), *pieces("slow", 3_000, 1)[:2], plain(b"b")]
    write(broker, topic, records)
    expires: Config = {**NO_STORE, "expire.time.of.incomplete.chunked.message.ms": 500}
    with FaustProcess(tmp_path / "raises", broker, topic, expires, on_discarded="raise") as worker:
        assert worker.ends() != 0
    assert "a message that is not whole: expired" in worker.log.read_text()
    assert committed(broker, f"{topic}-faust", topic).get(0, 0) <= 1
    with FaustProcess(tmp_path, broker, topic, expires, on_discarded="write") as worker:
        commits(broker, topic, len(records))
    assert {"discarded": "expired", "offsets": [1, 2]} in values(worker)


def test_a_slow_agent_expires_nothing(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """While Faust waits for its agent, what it has not read yet is no reason to give a message up."""
    topic = make_topic()
    chunks = pieces("slow", 3_000, 1)
    write(broker, topic, [chunks[0], *[plain(b"p")] * 8, *chunks[1:]])
    more: Config = {**NO_STORE, "expire.time.of.incomplete.chunked.message.ms": 1_000}
    with FaustProcess(tmp_path, broker, topic, more, slow_s=0.4, on_discarded="write") as worker:
        events = worker.events(9)
    assert [event["value"] for event in events] == [*[digest(b"p")] * 8, digest(value_of(3_000, 1))]


def test_rebalance(broker: str, make_topic: MakeTopic, tmp_path: Path, least_session_ms: int) -> None:
    """A worker joins and another is killed while messages are incomplete: between them, each value comes whole."""
    topic = make_topic(2)
    chunks = {partition: pieces(f"u{partition}", 3_000, partition) for partition in (0, 1)}
    for partition, each in chunks.items():
        write(broker, topic, [each[0], plain(b"%d" % partition)], partition)
    with FaustProcess(tmp_path / "one", broker, topic, NO_STORE, session_s=least_session_ms / 1000) as one:
        one.events(2)
        with FaustProcess(tmp_path / "two", broker, topic, NO_STORE, session_s=least_session_ms / 1000) as two:
            two.events(1)
            write(broker, topic, [chunks[0][1], plain(b"more")], 0)
            write(broker, topic, [chunks[1][1], plain(b"more")], 1)
            until(lambda: digest(b"more") in values(one) and digest(b"more") in values(two), "both read on", STARTS_S)
            pending = (tmp_path / "one" / "pending").read_text().split()
            assert (len(pending) > 1, pending[-1]) == (True, "0")  # what it had is the other's, or comes again
        for partition, each in chunks.items():
            write(broker, topic, each[2:], partition)
        expected = {digest(value_of(3_000, partition)) for partition in chunks}
        until(lambda: expected <= set(values(one)), "the messages are whole", STARTS_S)
        ends = {partition: len(each) + 2 for partition, each in chunks.items()}
        until(lambda: committed(broker, f"{topic}-faust", topic) == ends, "all is committed", STARTS_S)
