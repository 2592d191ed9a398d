"""The fallback: who asks a store that has failed, and what goes on without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from app.pipeline.chain import Chain, build
from app.pipeline.fallback import Fallback
from app.pipeline.runtime import monotonic
from app.pipeline.stages import ChunkStage
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Work
from stores.store import PayloadStore
from tests.app.pipeline.chains import begun, offload_stage, settings_of, sink
from tests.app.pipeline.plain_store import PlainStore
from transforms.chunk import Chunking
from transforms.errors import (
    PayloadStoreError,
    PayloadUnfitError,
    ReferenceClaimedError,
)
from transforms.record import Record, RecordLike
from transforms.reference import KEY, VALUE, is_reference


class Refusing(PlainStore):
    """A store that is down while `down` is true."""

    down: bool = False

    def publish(self, topic: str, data: bytes) -> str:
        """Counts calls in vain in `tried`."""
        if self.down:
            self.tried = getattr(self, "tried", 0) + 1
            raise PayloadStoreError("down", retriable=True)
        return super().publish(topic, data)


def gone_on(fallback: Fallback, work: Work) -> tuple[Sequence[RecordLike], tuple[str, ...]]:
    """All the steps of work that are left, and what it counts."""
    while work.step is not None:
        work = fallback.go_on(work)
    return work.records, work.applied


def test_fallback_asks_the_store_now_and_then() -> None:
    """While the store is down one record every five seconds asks it; what only the store can take always does."""
    store = Refusing()
    stage = offload_stage(store, 100, falls_back=True)
    chain = Chain([stage, ChunkStage(Chunking(1_000), 9_000, "g")], sink(1_000))
    now_s, told = [0.0], list[PayloadStoreError]()
    fallback = Fallback(chain, told.append, clock=lambda: now_s[0])
    record, larger = Record(b"k", b"v" * 5_000), Record(b"k", b"v" * 9_001)
    assert gone_on(fallback, begun(chain, record))[1] == ("offload",)
    store.down = True
    for now_s[0], tried in ((0.0, 1), (0.1, 1), (4.9, 1), (5.0, 2), (5.1, 2), (10.1, 3)):
        assert gone_on(fallback, begun(chain, record))[1] == ("chunk",)
        assert (store.tried, len(told)) == (tried, tried)
    with pytest.raises(PayloadStoreError, match="down"):
        gone_on(fallback, begun(chain, larger))
    assert (store.tried, len(told)) == (4, 3)
    store.down, now_s[0] = False, 10.2
    assert gone_on(fallback, begun(chain, record))[1] == ("chunk",)
    assert gone_on(fallback, begun(chain, larger))[1] == ("offload",)
    assert gone_on(fallback, begun(chain, record))[1] == ("offload",)


@pytest.mark.parametrize("codec", [0, 4])
def test_fallback_lets_no_reference_of_a_producer_go_on(codec: int) -> None:
    """A small record that claims to be a reference needs the store: to go on without it would be to follow it."""
    store = Refusing()
    stage = offload_stage(store, 100, 1_000, falls_back=True, on_reference="offload")
    chain = Chain([stage, ChunkStage(Chunking(1_000), 9_000, "g")], sink(1_000))
    fallback = Fallback(chain, lambda error: None, clock=monotonic)
    forged = Record(b"k", b"s3://b/t/i", ((VALUE.flag, b"true"),))
    work = chain.begin(forged, codec)
    assert work is not None
    (referring,), applied = gone_on(fallback, work)
    assert (applied, is_reference(referring.headers), referring.value != forged.value) == (("offload",), True, True)
    store.down = True
    for _ in range(3):
        with pytest.raises(PayloadStoreError, match="down"):
            gone_on(fallback, work)
    keyed = Record(b"s3://b/t/i", b"v", ((KEY.flag, b"true"),))  # is refused now, and does not wait for the store
    with pytest.raises(ReferenceClaimedError, match="key"):
        chain.begin(keyed, codec)
    (plain,), applied = gone_on(fallback, begun(chain, Record(b"k", b"v" * 200)))
    assert (applied, plain.value) == ((), b"v" * 200)


def test_fallback_learns_only_from_records_that_ask_the_store() -> None:
    """What is split in any case does not say that the store is back: one record asks it, those beside it do not."""

    class Slow(Refusing):
        def publish(self, topic: str, data: bytes) -> str:
            """While it hangs, another record comes."""
            if now_s[0] and not beside:
                beside.append(())
                beside[0] = gone_on(fallback, begun(chain, large))[1]
            return super().publish(topic, data)

    store = Slow()
    stage = offload_stage(store, 2_000, falls_back=True)
    chain = Chain([stage, ChunkStage(Chunking(1_000), 9_000, "g")], sink(10_000))
    now_s, beside = [0.0], list[tuple[str, ...]]()
    fallback = Fallback(chain, lambda error: None, clock=lambda: now_s[0])
    medium, large = Record(b"k", b"v" * 1_500), Record(b"k", b"v" * 5_000)
    store.down = True
    assert gone_on(fallback, begun(chain, large))[1] == ("chunk",)
    now_s[0] = 5.0
    assert [gone_on(fallback, begun(chain, record))[1] for record in (medium, large)] == [("chunk",)] * 2
    assert (beside, store.tried) == ([("chunk",)], 2)


def test_fallback_lets_one_ask_however_long_that_takes() -> None:
    """While one record asks a store that hangs, none goes to hang beside it: threads would run out."""

    class Hanging(Refusing):
        def publish(self, topic: str, data: bytes) -> str:
            """While it hangs, time goes by and another record comes."""
            if now_s[0] == 5.0:
                now_s[0] = 60.0
                beside.append(gone_on(fallback, begun(chain, large))[1])
            return super().publish(topic, data)

    store = Hanging()
    stage = offload_stage(store, 2_000, falls_back=True)
    chain = Chain([stage, ChunkStage(Chunking(1_000), 9_000, "g")], sink(10_000))
    now_s, beside = [0.0], list[tuple[str, ...]]()
    fallback = Fallback(chain, lambda error: None, clock=lambda: now_s[0])
    large = Record(b"k", b"v" * 5_000)
    store.down = True
    for now_s[0] in (0.0, 5.0):
        assert gone_on(fallback, begun(chain, large))[1] == ("chunk",)
    assert (beside, store.tried) == ([("chunk",)], 2)
    store.down, now_s[0] = False, 65.0
    assert gone_on(fallback, begun(chain, large))[1] == ("offload",), "the next one may ask"


def test_fallback_takes_what_the_store_does_not_take() -> None:
    """A payload that is too large for the store goes as chunks, and the store is asked for the next one."""

    class Small(PlainStore):
        def publish(self, topic: str, data: bytes) -> str:
            if len(data) > 4_000:
                raise PayloadUnfitError("413")
            return super().publish(topic, data)

    stage = offload_stage(Small(), 100, falls_back=True)
    chain = Chain([stage, ChunkStage(Chunking(1_000), 9_000, "g")], sink(10_000))
    told: list[PayloadStoreError] = []
    fallback = Fallback(chain, told.append, clock=monotonic)
    assert [gone_on(fallback, begun(chain, Record(b"k", b"v" * size)))[1] for size in (5_000, 3_000)] == [
        ("chunk",),
        ("offload",),
    ]
    assert told == [], "it is not down"
    with pytest.raises(PayloadUnfitError, match="413"):
        gone_on(fallback, begun(chain, Record(b"k", b"v" * 9_001)))


def test_fallback_is_none_for_what_is_final() -> None:
    """A store that refuses for good stops the pipeline, whatever else could be done."""

    class Closed(PlainStore):
        def publish(self, topic: str, data: bytes) -> str:
            raise PayloadStoreError("no access")

    stage = offload_stage(Closed(), 100, falls_back=True)
    chain = Chain([stage, ChunkStage(Chunking(1_000), 9_000, "g")], sink(1_000))
    record = Record(b"k", b"v" * 5_000)
    with pytest.raises(PayloadStoreError, match="no access"):
        gone_on(Fallback(chain, lambda error: None, clock=monotonic), begun(chain, record))
    withdrawn = Fallback(chain, lambda error: None, clock=monotonic, may_pass=lambda error: str(error) == "no access")
    assert gone_on(withdrawn, begun(chain, record))[1] == ("chunk",), (
        "who has had access waits for it, and goes without meanwhile"
    )


def test_fallback_takes_what_readers_would_refuse_as_a_payload() -> None:
    """A value over `large.message.max.bytes` goes as chunks, whether the store is up or down."""
    store = Refusing()
    stage = offload_stage(store, falls_back=True, max_bytes=5_000)
    chain = Chain([stage, ChunkStage(Chunking(1_000), 9_000, "g")], sink(1_000))
    for store.down in (False, True):
        fallback = Fallback(chain, lambda error: None, clock=monotonic)
        assert gone_on(fallback, begun(chain, Record(b"k", b"v" * 8_000)))[1] == ("chunk",)


def test_fallback_goes_without_a_store_that_only_gives() -> None:
    """A value that comes from the store, and cannot go back to it, goes as chunks; it is downloaded once."""
    store = Refusing()
    settings = settings_of(["inflate", "offload"], large_message_strategy="auto")
    settings = replace(settings, max_bytes=9_000)
    stats = PipelineStats()
    chain = build(settings, cast(PayloadStore, store), sink(1_000), stats)
    path = store.publish("raw", b"v" * 5_000)
    reference = Record(b"k", path.encode(), ((VALUE.flag, b"true"), (f"{VALUE.flag}.size", b"5000")))
    store.down = True
    _, applied = gone_on(Fallback(chain, lambda error: None, clock=monotonic), begun(chain, reference))
    assert (applied, sum(stats.download.counts)) == (("inflate", "chunk"), 1)
