"""Chains and records that compress: what is over the limit of the sink, and is within it as it is sent."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from app.kafka.batches.batch import sent_bytes
from app.pipeline import stages as stages_module
from app.pipeline.chain import Chain, build
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Store, Thread
from tests.app.pipeline.chains import (
    apply,
    begun,
    chain_of,
    finished,
    memory,
    offload_stage,
    settings_of,
    sink,
    storeless,
    without_store,
)
from tests.app.pipeline.plain_store import PlainStore
from transforms.batch_size import batch_of_one_bytes
from transforms.errors import RecordTooLargeError
from transforms.formats import FORMATS, FormatName
from transforms.offload import Offload
from transforms.record import Record, RecordLike
from transforms.record_batch import RecordBatch, pack
from transforms.wrapper import MessageWrapper

ZSTD = 4
TEXT = Record(
    b"k", random.Random(2).randbytes(500) + b'{"id": 1, "name": "a name"}' * 1_982, (("h", b"x"),), 1_700_000_000_000
)  # 54,014 bytes
NOISE = Record(b"k", random.Random(1).randbytes(54_000), (), 1_700_000_000_000)


def roomy_chain(transforms: list[str], store: object, limit: int, **keys: Any) -> Chain:
    """A chain with a threshold that no record of the test reaches."""
    if "offload" in transforms:
        return chain_of(transforms, store, limit, large_message_threshold_bytes=1_000_000, **keys)
    return storeless(transforms, limit, **keys) if transforms else Chain([], sink(limit))


@pytest.mark.parametrize("transforms", [["offload"], ["chunk"], []])
def test_record_that_compresses_stays(transforms: list[str]) -> None:
    """A record over the limit goes on as it is if its compressed batch is within the limit, and only then."""
    store = PlainStore()
    size = sent_bytes(TEXT, ZSTD)
    assert size < 1_000
    for limit in (size, 20_000):
        chain = roomy_chain(transforms, store, limit)
        work = begun(chain, TEXT, ZSTD)
        assert isinstance(work.step, Thread)
        assert work.reserve_bytes >= 2 * 54_000
        assert apply(chain, TEXT, ZSTD) == ((TEXT,), ())
    assert not store.payloads


@pytest.mark.parametrize(("record", "codec"), [(TEXT, 0), (NOISE, ZSTD)])
def test_record_that_does_not_compress_is_moved(record: Record, codec: int) -> None:
    """Compression that does not help changes nothing, nor does a codec that the record does not leave with."""
    store = memory()
    (made,), applied = apply(roomy_chain(["offload"], store, 20_000), record, codec)
    assert applied == ("offload",)
    assert dict(made.headers)["large-message.size"] == b"%d" % len(record.value or b"")
    chunks, applied = apply(roomy_chain(["chunk"], store, 20_000), record, codec)
    assert (len(chunks), applied) == (3, ("chunk",))
    with pytest.raises(RecordTooLargeError) as caught:
        apply(Chain([], sink(20_000)), record, codec)
    assert caught.value.size > 54_000


def test_compression_is_tried_before_the_store_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried once: what was found too large is offloaded, or split while the store is down."""
    chain = roomy_chain(["offload"], memory(), 20_000, large_message_strategy="auto")
    tried = chain.go_on(begun(chain, NOISE, ZSTD))
    assert isinstance(tried.step, Store)
    monkeypatch.setattr(stages_module, "sent_bytes", lambda *_: pytest.fail("it is tried once"))
    assert finished(chain, tried)[1] == ("offload",)
    assert finished(chain, without_store(tried, tried.step))[1] == ("chunk",)
    monkeypatch.undo()
    tried = chain.go_on(begun(chain, TEXT, ZSTD))
    assert tried.step is None
    assert finished(chain, tried) == ((TEXT,), ())


def test_reference_with_headers_that_compress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that was tried in vain is offloaded; what comes of it is judged compressed, too."""
    noise = dataclasses.replace(NOISE, headers=(("h", b"a" * 60_000),))
    (made,), applied = apply(roomy_chain(["offload"], memory(), 20_000), noise, ZSTD)
    assert applied == ("offload",)
    assert batch_of_one_bytes(made) > 60_000
    tried: list[RecordLike] = []

    def noted(record: RecordLike, _: int) -> int:
        tried.append(record)
        return 1

    monkeypatch.setattr(stages_module, "sent_bytes", noted)
    for transforms in (["offload", "wrap"], ["offload"], ["chunk"], ["wrap", "chunk"]):
        tried.clear()
        apply(roomy_chain(transforms, memory(), 20_000), dataclasses.replace(TEXT, headers=()), ZSTD)
        assert len(tried) == 1, transforms


def test_what_may_be_compressed_is_not_on_the_event_loop() -> None:
    """Also if it is a key or a header that is long, and the stage itself takes no time."""
    long = Record(b"k" * 50_000, b"v", (), 1)
    for transforms in (["wrap"], ["offload", "wrap"]):
        chain = roomy_chain(transforms, memory(), 20_000)
        assert isinstance(begun(chain, long, ZSTD).step, Thread)
        assert begun(chain, dataclasses.replace(long, key=b"k"), ZSTD).step is None


def test_reserve_is_for_what_may_be_compressed() -> None:
    """A value over the threshold goes to the store as it is: the budget holds it once, and four of the others."""
    for codec in (0, ZSTD):
        assert begun(chain_of(["offload"], memory(), 20_000), NOISE, codec).reserve_bytes == 0
    assert begun(roomy_chain(["offload"], memory(), 20_000), NOISE, ZSTD).reserve_bytes == 3 * 54_000
    falls_back = chain_of(["offload"], memory(), 20_000, large_message_strategy="auto")
    assert begun(falls_back, NOISE, ZSTD).reserve_bytes == 4 * 54_000, "while the store is down it is tried, or split"


def test_threshold_counts_before_compression() -> None:
    """A value over the threshold is offloaded however well it compresses; without the store it need not be split."""
    chain = chain_of(["offload"], memory(), 20_000, large_message_strategy="auto")
    assert isinstance(begun(chain, TEXT, ZSTD).step, Store)
    assert apply(chain, TEXT, ZSTD)[1] == ("offload",)
    assert apply(chain, TEXT, ZSTD, offloading=False) == ((TEXT,), ())


def test_brokers_that_compress_anew_get_the_uncompressed_size() -> None:
    """Nobody here knows what they compare with the limit."""
    settings = settings_of(["offload"], large_message_threshold_bytes=1_000_000)
    chain = build(settings, memory(), sink(20_000, recompressed=True), PipelineStats())
    assert isinstance(begun(chain, TEXT, ZSTD).step, Store)
    assert apply(chain, TEXT, ZSTD)[1] == ("offload",)
    batch = RecordBatch.read(memoryview(pack([TEXT]))).compressed(ZSTD)
    assert not chain.passes_whole(batch, whole=True)


def test_batch_that_is_forwarded_is_judged_by_its_length() -> None:
    """A batch within the limit goes as it is, whatever its records are before compression; the threshold holds."""
    batch = RecordBatch.read(memoryview(pack([TEXT] * 3))).compressed(ZSTD)
    size = len(batch.data)
    for transforms in (["offload"], ["chunk"], []):
        for limit, passes in ((size, True), (size - 1, False)):
            chain = roomy_chain(transforms, memory(), limit)
            assert chain.passes_whole(batch, whole=True) == passes
            assert not chain.passes_whole(batch)
    assert not chain_of(["offload"], memory(), size).passes_whole(batch, whole=True)
    assert not roomy_chain(["chunk"], memory(), size, chunk_max_bytes=size - 1).passes_whole(batch, whole=True)


def test_compressed_size_is_that_behind_the_wrapper() -> None:
    """What `wrap` makes of the record is what the sink takes."""
    wrapping = [("chunk", ["wrap", "chunk"]), ("offload", ["offload", "wrap"])]
    for mover, transforms in wrapping:
        plain = dataclasses.replace(TEXT, headers=())
        size = sent_bytes(Record(b"k", MessageWrapper({}, TEXT.value).serialize(), (), TEXT.timestamp), ZSTD)
        (made,), applied = apply(roomy_chain(transforms, memory(), size), plain, ZSTD)
        assert applied == ("wrap",)
        assert made.value == MessageWrapper({}, TEXT.value).serialize()
        if mover == "offload":
            assert apply(roomy_chain(transforms, memory(), size - 1), plain, ZSTD)[1] == ("offload", "wrap")


@pytest.mark.parametrize("form", ["bakdata-flag", "bakdata-headers"])
def test_record_that_compresses_keeps_the_mark(form: FormatName) -> None:
    """A format that marks values marks those that stay, too."""
    offload = Offload(1_000_000, 20_000, format=FORMATS[form])
    stage = offload_stage(memory(), 1_000_000, 20_000, reference_format=form)
    chain = Chain([stage], sink(20_000))
    assert not chain.passes(TEXT)
    (made,), applied = apply(chain, TEXT, ZSTD)
    assert (made, applied) == (offload.keep(TEXT), ())
