"""Stages, each by itself, on the store for tests."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import pytest

from app.kafka.source_batch import ReadRecord
from app.kafka.topics import Topic
from app.pipeline.stages import InflateStage, UnfitStage
from app.pipeline.stats import PipelineStats
from stores.registry import open_store
from tests.app.pipeline.chains import begun, chain_of, memory, offload_stage, settings_of, taken
from tests.app.pipeline.plain_store import PlainStore
from tests.built_batches import built
from transforms.compression import CODECS, Codec
from transforms.errors import PayloadTooLargeError, RecordUnfitError
from transforms.record import Record
from transforms.record_batch import RecordBatch

NOISE = hashlib.sha256(b"").digest()


@pytest.mark.parametrize(
    ("codec", "value", "packed"),
    [(None, b"value " * 500, False), ("zstd", NOISE, False), *((codec, b"value " * 500, True) for codec in CODECS)],
)
def test_digest_names_the_stored_bytes(*, codec: Codec | None, value: bytes, packed: bool) -> None:
    """So that a replay rewrites the object; a value that does not shrink is stored as it is."""
    store = memory()
    stage = offload_stage(store, 0, compression=codec or "none")
    (reference,), (again,) = (taken(stage, Record(None, value)) for _ in range(2))
    path = (reference.value or b"").decode()
    stored = store.download(path)
    assert (again.value, path.rpartition("/")[2]) == (reference.value, hashlib.sha256(stored).hexdigest())
    assert (stored != value, "large-message.compression" in dict(reference.headers)) == (packed, packed)


def test_own_store_names_its_payloads_itself() -> None:
    """A store that offers no more than the seed's interface is used through it."""
    store = open_store({"large.message.payload.store.class": f"{PlainStore.__module__}:PlainStore"})
    record = Record(b"k", b"v" * 200)
    (reference,) = taken(offload_stage(store), record)
    assert reference.value == b"plain://orders/0"
    assert taken(InflateStage(settings_of(["inflate"]), store, PipelineStats()), reference) == (record,)


def test_a_reference_without_a_size_is_measured() -> None:
    """The store says how long a payload is; the record then reserves that much, and no more of it is read."""
    store = memory(large_message_max_bytes=10_000)
    path = store.publish("orders", bytes(600))
    chain = chain_of(["inflate"], store, large_message_max_bytes=1_000)
    work = begun(chain, Record(b"k", path.encode(), (("large-message", b"true"),)))
    assert (work.lacks_size, work.reserve_bytes) == (True, 0)
    measured = chain.go_on(work)
    assert (measured.lacks_size, measured.reserve_bytes) == (False, 600)
    assert chain.go_on(measured).records[0].value == bytes(600)
    put = cast(Any, store).put
    put("orders", path.rpartition("/")[2], bytes(700))
    again = chain.go_on(measured)
    assert (again.step is None, again.reserve_bytes, chain.go_on(again).records[0].value) == (False, 700, bytes(700))
    put("orders", path.rpartition("/")[2], bytes(1_001))
    with pytest.raises(PayloadTooLargeError, match="1,001 bytes, the limit is 1,000"):  # before anything is reserved
        chain.go_on(work)


def test_timestamps_are_judged_by_the_clock_that_is_given() -> None:
    """A record that the sink will take later is refused now, alone as in a batch."""
    now_s = 1_700_000_000.0
    sink = Topic("orders", 1, 1_000_000, "delete", newest_ms=3_600_000)
    stage = UnfitStage({}, sink, lambda: now_s)
    record = ReadRecord("raw", 0, 7, 1_700_000_000_000 + 7_200_000, b"k", b"v")
    batch = RecordBatch.read(memoryview(built(0, [record])))
    with pytest.raises(RecordUnfitError):
        stage.plan(record, record, 0)
    assert stage.wants_any(batch, whole=True)
    now_s += 7_200.0
    assert stage.plan(record, record, 0) is None
    assert not stage.wants_any(batch, whole=True)
