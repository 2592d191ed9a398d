"""kafka-python's consumer of whole records, over polls that a test gives, without a broker."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

import pytest

kafka = pytest.importorskip("kafka")
from kafka import KafkaConsumer, TopicPartition  # noqa: E402
from kafka.consumer.fetcher import ConsumerRecord  # noqa: E402
from kafka.structs import OffsetAndMetadata  # noqa: E402

from app.serializers.kafka_python import DeserializingConsumer  # noqa: E402
from transforms.chunk import Chunk  # noqa: E402
from transforms.commit_metadata import note  # noqa: E402
from transforms.record import Header  # noqa: E402

P0 = TopicPartition("t", 0)


def polled(offsets: Iterable[int], headers: Iterable[Header] = ()) -> list[ConsumerRecord]:
    """Records as kafka-python gives them."""
    return [ConsumerRecord(*P0, -1, offset, 1, 0, b"k", b"v", [*headers], None, 1, 1, 0) for offset in offsets]


def called(call: Coroutine[Any, Any, None]) -> None:
    """Runs what waits for nothing."""
    with pytest.raises(StopIteration):
        call.send(None)


class Client:
    """What kafka-python's class does: its positions, which say too what is assigned, and what its polls give."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.positions = {P0: 0}
        self.commits: list[dict[TopicPartition, Any]] = []
        self.left: list[dict[TopicPartition, Any]] = []
        self.listener: Any = None
        self.given: list[ConsumerRecord] = []
        config = {**KafkaConsumer.DEFAULT_CONFIG, "group_id": "g"}
        for name, method in {
            "__init__": lambda consumer, **_: setattr(consumer, "config", config),
            "subscribe": lambda _, topics, pattern, listener: setattr(self, "listener", listener),
            "assignment": lambda _: {*self.positions},
            "paused": lambda _: set(),
            "position": lambda _, tp, timeout_ms=None: self.positions[tp],
            "poll": lambda *_: self.poll(),
            "seek": lambda _, tp, offset: self.positions.update({tp: offset}),
            "commit": lambda _, offsets, timeout_ms: self.commits.append(offsets),
            "commit_async": lambda _, offsets: self.commit(offsets),
            "committed": lambda *_, **__: None,
        }.items():
            monkeypatch.setattr(KafkaConsumer, name, method)
        self.consumer = DeserializingConsumer({"group.id": "g"}, "t")

    async def commit(self, offsets: dict[TopicPartition, Any]) -> None:
        self.left.append(offsets)

    def poll(self) -> dict[TopicPartition, list[ConsumerRecord]]:
        given, self.given = self.given, []
        if given:
            self.positions[P0] = given[-1].offset + 1
        return {P0: given} if given else {}


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """A consumer with its client."""
    return Client(monkeypatch)


def test_partition_that_goes_and_comes_back_within_a_poll(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins at its commit, and what was known of it is forgotten: no commit goes back to a chunk of before."""
    client.given = polled([2], Chunk("u", 0, 2, 2).headers())
    assert client.consumer.poll(0) == {}
    client.consumer.commit()
    poll = client.poll

    def rebalanced() -> dict[TopicPartition, list[ConsumerRecord]]:
        called(client.listener.on_partitions_revoked([P0]))
        del client.positions[P0]
        called(client.listener.on_partitions_assigned([]))
        client.positions[P0] = 10
        called(client.listener.on_partitions_assigned([P0]))
        return poll()

    monkeypatch.setattr(client, "poll", rebalanced)
    client.given = polled([10, 11])
    assert client.consumer.poll(0) == {P0: polled([10, 11])}
    client.consumer.commit()
    assert [each[P0].offset for each in client.commits] == [2, 12]


def test_partition_that_an_eager_assignor_gives_back(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python keeps its position, so nothing of it is forgotten: the commit waits for its message."""
    headers = [Chunk("u", number, 2, 2).headers() for number in (0, 1)]
    client.given = polled([2], headers[0])
    assert client.consumer.poll(0) == {}
    poll = client.poll

    def rebalanced() -> dict[TopicPartition, list[ConsumerRecord]]:
        called(client.listener.on_partitions_revoked([P0]))
        called(client.listener.on_partitions_assigned([P0]))
        return poll()

    monkeypatch.setattr(client, "poll", rebalanced)
    client.given = polled([3, 4])
    assert client.consumer.poll(0) == {P0: polled([3, 4])}
    client.consumer.commit()
    client.given = polled([5], headers[1])
    ((record,),) = client.consumer.poll(0).values()
    assert (record.offset, record.value) == (5, b"vv")
    client.consumer.commit()
    assert [each[P0].offset for each in client.commits] == [2, 6]


def test_partition_that_a_cooperative_assignor_has_taken(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was given of it is committed, though it is not assigned any more, and nothing of it is given."""
    client.given = polled([0, 1, 2])
    assert client.consumer.poll(0, 2) == {P0: polled([0, 1])}

    def rebalanced() -> dict[TopicPartition, list[ConsumerRecord]]:
        del client.positions[P0]
        called(client.listener.on_partitions_revoked([P0]))
        return {}

    monkeypatch.setattr(client, "poll", rebalanced)
    monkeypatch.setattr(KafkaConsumer, "paused", lambda _: {*client.positions})
    assert client.consumer.poll(0) == {}
    assert [each[P0].offset for each in client.left] == [2]
    client.positions[P0] = 2
    assert client.consumer.poll(0) == {}


def test_interrupt_within_a_poll(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call begins behind what was given, as kafka-python's position may be behind records that are lost."""
    client.given = polled([0, 1])
    assert client.consumer.poll(0) == {P0: polled([0, 1])}
    poll = client.poll

    def interrupted() -> dict[TopicPartition, list[ConsumerRecord]]:
        monkeypatch.setattr(client, "poll", poll)
        poll()
        client.consumer.commit()  # as a signal handler may
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "poll", interrupted)
    client.given = polled([2, 3])
    with pytest.raises(KeyboardInterrupt):
        client.consumer.poll(0)
    assert client.positions == {P0: 2}
    assert [each[P0].offset for each in client.commits] == [2]


def test_partition_that_was_elsewhere(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes from before the position begins at the commit, and what its note says was given does not come."""
    client.given = polled([5, 6])
    assert client.consumer.poll(0) == {P0: polled([5, 6])}
    commit = OffsetAndMetadata(1, note(1, 3, ()), -1)
    monkeypatch.setattr(KafkaConsumer, "committed", lambda *_, **__: commit)
    client.given = polled([1, 2, 3])
    assert client.consumer.poll(0) == {P0: polled([3])}


def test_poll_for_the_group(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """While records wait, what such a poll brings of their partition is put back, and read when they are given."""
    monkeypatch.setattr("app.serializers.kafka_python_reads._LOOK_S", -1.0)
    client.given = polled(range(3))
    assert client.consumer.poll(0, 1) == {P0: polled([0])}
    client.given = polled([3, 4])
    assert client.consumer.poll(0, 2) == {P0: polled([1, 2])}
    assert (client.given, client.positions) == ([], {P0: 3})


def test_poll_gives_what_the_client_gave(client: Client) -> None:
    """Plain records are kafka-python's own; a poll gives no more than it may, and the rest comes next, in order."""
    records = client.given = polled(range(5))
    assert client.consumer.poll(0, 3) == {P0: records[:3]}
    assert client.consumer.position(P0) == 3
    assert next(client.consumer) is records[3]
    assert client.consumer.position(P0) == 4
    assert client.consumer.poll(0) == {P0: records[4:]}
    assert client.consumer.position(P0) == 5
