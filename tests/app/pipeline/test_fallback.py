"""The fallback: who asks a store that has failed, and what goes on without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from app.pipeline.chain import Chain
from app.pipeline.fallback import Fallback
from app.pipeline.stages import ChunkStage
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Work
from tests.app.pipeline.chains import Refusing, begun, chain_of, offload_stage, sink
from transforms.chunk import Chunking
from transforms.errors import PayloadStoreError, PayloadUnfitError, ReferenceClaimedError
from transforms.record import Record, RecordLike
from transforms.reference import KEY, VALUE, is_reference

LARGE = Record(b"k", b"v" * 5_000)


class Bench:
    """A fallback with a store, a clock, and what it has told; `calls` is asked before each call of the store."""

    def __init__(self, threshold: int = 100, limit: int = 1_000, **fields: Any) -> None:
        self.now_s = 0.0
        self.told: list[PayloadStoreError] = []
        self.calls: Callable[[bytes], object] = lambda _: None
        self.store = _Asked(self)
        stage = offload_stage(self.store, threshold, limit, falls_back=True, **fields)
        self.chain = Chain([stage, ChunkStage(Chunking(1_000), 9_000, "g")], sink(limit))
        self.fallback = Fallback(self.chain, self.told.append, clock=lambda: self.now_s)

    def done(self, record: RecordLike | Work) -> tuple[Sequence[RecordLike], tuple[str, ...]]:
        """All the work on a record, and what it counts."""
        work = record if isinstance(record, Work) else begun(self.chain, record)
        while work.step is not None:
            work = self.fallback.go_on(work)
        return work.records, work.applied

    def way(self, record: RecordLike = LARGE) -> str:
        """As what a record goes."""
        ((way),) = self.done(record)[1]
        return way


class _Asked(Refusing):
    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self._bench = bench

    def publish(self, topic: str, data: bytes) -> str:
        """See `Refusing`."""
        self._bench.calls(data)
        return super().publish(topic, data)


def test_fallback_asks_the_store_now_and_then() -> None:
    """While the store is down one record every five seconds asks it; what only the store can take always does."""
    bench, larger = Bench(), Record(b"k", b"v" * 9_001)
    assert bench.way() == "offload"
    bench.store.down = True
    for bench.now_s, tried in ((0.0, 1), (0.1, 1), (4.9, 1), (5.0, 2), (5.1, 2), (10.1, 3)):
        assert bench.way() == "chunk"
        assert (bench.store.tried, len(bench.told)) == (tried, tried)
    with pytest.raises(PayloadStoreError, match="down"):
        bench.done(larger)
    assert (bench.store.tried, len(bench.told)) == (4, 3)
    bench.store.down, bench.now_s = False, 10.2
    assert [bench.way(record) for record in (LARGE, larger, LARGE)] == ["chunk", "offload", "offload"]


@pytest.mark.parametrize("codec", [0, 4])
def test_fallback_lets_no_reference_of_a_producer_go_on(codec: int) -> None:
    """A small record that claims to be a reference needs the store: to go on without it would be to follow it."""
    bench = Bench(on_reference="offload")
    forged = Record(b"k", b"s3://b/t/i", ((VALUE.flag, b"true"),))
    work = begun(bench.chain, forged, codec)
    (referring,), applied = bench.done(work)
    assert (applied, is_reference(referring.headers), referring.value != forged.value) == (("offload",), True, True)
    bench.store.down = True
    for _ in range(3):
        with pytest.raises(PayloadStoreError, match="down"):
            bench.done(work)
    keyed = Record(b"s3://b/t/i", b"v", ((KEY.flag, b"true"),))  # is refused now, and does not wait for the store
    with pytest.raises(ReferenceClaimedError, match="key"):
        bench.chain.begin(keyed, codec)
    (plain,), applied = bench.done(Record(b"k", b"v" * 200))
    assert (applied, plain.value) == ((), b"v" * 200)


@pytest.mark.parametrize("hangs_s", [0.0, 55.0])
def test_fallback_lets_one_ask_however_long_that_takes(hangs_s: float) -> None:
    """While one record asks a store that hangs, none goes to hang beside it; what is split in any case says nothing."""
    bench, beside = Bench(2_000, 10_000), list[str]()

    def hang(_: bytes) -> None:
        if bench.now_s == 5.0 and not beside:
            bench.now_s += hangs_s
            beside.append("")
            beside[0] = bench.way()

    bench.calls, bench.store.down = hang, True
    assert bench.way() == "chunk"
    bench.now_s = 5.0
    assert bench.way(Record(b"k", b"v" * 1_500)) == bench.way() == "chunk"
    assert (beside, bench.store.tried) == (["chunk"], 2)
    bench.store.down, bench.now_s = False, bench.now_s + 5.0
    assert bench.way() == "offload", "the next one may ask"


def test_fallback_takes_what_the_store_does_not_take() -> None:
    """A payload that is too large for the store goes as chunks, and the store is asked for the next one."""
    bench = Bench(limit=10_000)

    def refuse(data: bytes) -> None:
        if len(data) > 4_000:
            raise PayloadUnfitError("413")

    bench.calls = refuse
    assert [bench.way(Record(b"k", b"v" * size)) for size in (5_000, 3_000)] == ["chunk", "offload"]
    assert bench.told == [], "it is not down"
    with pytest.raises(PayloadUnfitError, match="413"):
        bench.done(Record(b"k", b"v" * 9_001))


def test_fallback_is_none_for_what_is_final() -> None:
    """A store that refuses for good stops the pipeline; who has had access waits for it, and goes without meanwhile."""
    bench = Bench()

    def refuse(_: bytes) -> None:
        raise PayloadStoreError("no access")

    bench.calls = refuse
    with pytest.raises(PayloadStoreError, match="no access"):
        bench.done(LARGE)
    bench.fallback = Fallback(
        bench.chain, bench.told.append, clock=lambda: 0.0, may_pass=lambda error: str(error) == "no access"
    )
    assert bench.way() == "chunk"


@pytest.mark.parametrize("down", [False, True])
def test_fallback_takes_what_readers_would_refuse_as_a_payload(*, down: bool) -> None:
    """A value over `large.message.max.bytes` goes as chunks, whether the store is up or down."""
    bench = Bench(max_bytes=5_000)
    bench.store.down = down
    assert bench.way(Record(b"k", b"v" * 8_000)) == "chunk"


def test_fallback_goes_without_a_store_that_only_gives() -> None:
    """A value that comes from the store, and cannot go back to it, goes as chunks; it is downloaded once."""
    bench, stats = Bench(), PipelineStats()
    keys: dict[str, Any] = {"large_message_strategy": "auto", "large_message_max_bytes": 9_000}
    bench.chain = chain_of(["inflate", "offload"], bench.store, 1_000, stats=stats, **keys)
    bench.fallback = Fallback(bench.chain, bench.told.append, clock=lambda: 0.0)
    path = bench.store.publish("raw", b"v" * 5_000)
    bench.store.down = True
    reference = Record(b"k", path.encode(), ((VALUE.flag, b"true"), (f"{VALUE.flag}.size", b"5000")))
    assert (bench.done(reference)[1], sum(stats.download.counts)) == (("inflate", "chunk"), 1)
