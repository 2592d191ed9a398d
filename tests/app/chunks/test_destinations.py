"""What topics take of a producer: when the cluster is asked, and what is done with larger records, without a broker."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chunks.destinations import Destinations, is_plain
from app.config.chunking import Strategy
from app.kafka.topics import Topic
from tests.strategies import records
from transforms.errors import ChunkError, ConfigurationError
from transforms.offload import Offload
from transforms.outgoing import Plan, plan
from transforms.record import Header, Record
from transforms.reference import Reference

KEYS: dict[str, Any] = {"chunk.max.bytes": None, "chunk.max.message.bytes": 50_000}
SMALL, LARGE, HUGE = (Record(b"k", bytes(size)) for size in (9_000, 20_000, 50_000))


class Cluster:
    """Describes one topic, or raises an error."""

    def __init__(self, *answers: Topic | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, name: str) -> Topic:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await asyncio.sleep(0.01)
        if isinstance(answer, Exception):
            raise answer
        assert answer.name == name
        return answer


def topic(limit: int = 10_000, policy: str = "delete") -> Topic:
    return Topic("orders", 1, limit, policy)


def made(cluster: Cluster, strategy: Strategy = "chunk", *, batch: int = 0, **keys: object) -> Destinations:
    values = {**KEYS, **{name.replace("_", "."): value for name, value in keys.items()}}
    return Destinations(values, strategy, cluster, 40_000, batch, stores=strategy != "chunk")


async def test_a_topic_is_asked_once_and_after_a_refusal() -> None:
    """Its limit is known until a record is refused; then the new limit holds."""
    cluster = Cluster(topic(), topic(30_000))
    destinations = made(cluster)
    assert destinations.known("orders") is None
    first = await destinations.of("orders")
    assert (await destinations.of("orders"), destinations.known("orders"), cluster.asked) == (first, first, 1)
    assert first.pieces(SMALL) is None
    assert len(list(first.pieces(LARGE) or ())) == 3
    destinations.forget("orders")
    assert (await destinations.of("orders")).pieces(LARGE) is None


def test_threads_ask_one_question() -> None:
    """Threads that wait for a topic wait for one answer."""
    cluster = Cluster(topic())
    destinations = made(cluster)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(destinations.wait_for, ["orders"] * 8))
    assert (found, cluster.asked) == ([found[0]] * 8, 1)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyError("orders"), "topic orders does not exist"),
        (OSError("cut"), "cut"),
        (TimeoutError(), "TimeoutError"),
    ],
)
async def test_nobody_splits_for_an_unknown_limit(error: Exception, reason: str) -> None:
    """With `chunk`, a topic that does not say what it takes is an error, each time, unless the length is set."""
    cluster = Cluster(error)
    destinations = made(cluster)
    for asked in (1, 2):
        with pytest.raises(ConfigurationError, match=f"^chunk.max.bytes: is not set, and topic orders .*: {reason}$"):
            await destinations.of("orders")
        assert cluster.asked == asked
    assert len(list((await made(cluster, chunk_max_bytes=5_000).of("orders")).pieces(SMALL) or ())) == 2


async def test_a_cluster_without_an_answer_is_asked_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute later, and warned of once; until then only the limit of the client counts, and `auto` splits nothing."""
    clock: Any = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr("app.chunks.destinations.time", clock)  # that of the event loop goes on
    cluster = Cluster(OSError("cut"), OSError("cut"), topic())
    destinations = made(cluster, "auto")
    with caplog.at_level(logging.WARNING):
        for clock.now_s, asked, stores in ((100.0, 1, False), (159.0, 1, False), (160.0, 2, False), (220.0, 3, True)):
            found = await destinations.of("orders")
            assert (cluster.asked, found.stores(LARGE), found.stores(HUGE)) == (asked, stores, True)
            assert ((found.pieces(LARGE) is not None), (found.pieces(HUGE) is not None)) == (stores, stores)
            assert found.plain_bytes == (10_000 - 80 if stores else 1_024)
    assert caplog.text.count("max.message.bytes of topic orders is unknown") == 1


@pytest.mark.parametrize("answer", [topic(), OSError("cut")])
async def test_a_short_limit_of_chunks_is_kept(answer: Topic | Exception) -> None:
    """`chunk.max.bytes` may be less than what each topic takes, known or not: nothing longer bypasses it."""
    found = await made(Cluster(answer), chunk_max_bytes=500).of("orders")
    assert found.plain_bytes == 420
    assert found.pieces(Record(None, bytes(500))) is not None


async def test_what_is_stored() -> None:
    """With a store, what the topic would refuse, but no reference; what stays too large is split with `auto` alone."""
    offload, auto = [await made(Cluster(topic()), strategy).of("orders") for strategy in ("offload", "auto")]
    reference = Record(b"k", bytes(20_000), Reference("p").headers())
    for each in (offload, auto):
        assert [each.stores(record) for record in (SMALL, LARGE, reference)] == [False, True, False]
    assert offload.pieces(LARGE) is None
    assert auto.pieces(LARGE) is not None


async def test_what_cannot_be_split() -> None:
    """Too long a value, a compacted topic, and one that takes less than a batch; what has no value goes as it is."""
    cluster = Cluster(topic())
    found = await made(cluster).of("orders")
    with pytest.raises(ChunkError, match=r"chunk\.max\.message\.bytes is 50,000"):
        found.pieces(Record(b"k", bytes(50_001)))
    assert found.pieces(Record(bytes(20_000), None)) is found.pieces(Record(bytes(20_000), b"")) is None
    with pytest.raises(ChunkError, match="compacted away"):
        (await made(Cluster(topic(policy="compact,delete"))).of("orders")).pieces(LARGE)
    with pytest.raises(ConfigurationError, match=r"^batch\.size: found 10,001"):
        (await made(cluster, batch=10_001).of("orders")).pieces(LARGE)
    assert (await made(cluster, batch=10_000).of("orders")).pieces(LARGE) is not None


@pytest.mark.parametrize(
    ("key", "value", "headers", "least"),
    [
        (None, b"v" * 5, None, 5),
        (b"k" * 3, b"v" * 5, [], 8),
        (b"", b"", None, 0),
        (None, b"v" * 5, [("n" * 4, b"d" * 3)], 5 + 14 + 16 + 3),
        (b"k", b"v", [("", b""), ("", b"")], 2 + 28),
    ],
)
def test_plain(key: bytes | None, value: bytes, headers: list[Header] | None, least: int) -> None:
    """A record that may bypass everything has bytes alone, and no more than that with its headers."""
    assert [is_plain(most, key, value, headers) for most in (-1, least - 1, least)] == [False, False, True]


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (None, None, None),
        (None, "text", None),
        (None, bytearray(b"v"), None),
        ("text", b"v", None),
        (None, b"v", {"n": b"d"}),
        (None, b"v", (("n", b"d"),)),
        (None, b"v", [("n", b"d"), ("n", None)]),
        (None, b"v", [("n", "text")]),
    ],
)
def test_not_plain(key: object, value: object, headers: object) -> None:
    """What somebody may have to look at does not bypass it."""
    assert not is_plain(1_000, key, value, headers)


@given(records(), st.integers(0, 400))
def test_plain_records_fit(record: Record, most: int) -> None:
    """Whatever bypasses everything is within the limit of which the bound is known."""
    if is_plain(most, record.key, record.value, list(record.headers)):
        assert plan(record, most + 80) is Plan.WHOLE
        assert not Offload(most, most + 80).wants(record)
