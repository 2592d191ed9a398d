"""Chains, on the store for tests."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.pipeline import TRANSFORMS
from app.kafka.source_batch import ReadRecord
from app.kafka.topics import Topic
from app.pipeline.chain import Chain, build
from app.pipeline.stages import ChunkStage, ClaimStage, InflateStage, OffloadStage, SinkStage, UnfitStage, WrapperStage
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Store, Thread
from stores.memory import MemoryStore
from stores.registry import open_store
from tests.app.pipeline.chains import (
    ROOMY,
    Refusing,
    apply,
    begun,
    chain_of,
    memory,
    offload_stage,
    settings_of,
    sink,
    storeless,
    taken,
)
from tests.app.pipeline.plain_store import PlainStore
from tests.built_batches import built
from transforms.batch_size import batch_of_one_bytes
from transforms.chunked_message import Assembled, ChunkMessageId, Limits
from transforms.compression import CODECS, Codec
from transforms.errors import (
    ChunkError,
    KeyMissingError,
    MalformedReferenceError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadTooLargeError,
    RecordTooLargeError,
    RecordUnfitError,
    ReferenceClaimedError,
    ReferenceRefusedError,
    SignatureError,
    ValueTooLargeError,
)
from transforms.formats import FORMATS, FormatName
from transforms.reassembly import Reassembly
from transforms.record import Header, Record, RecordLike
from transforms.record_batch import RecordBatch, pack
from transforms.reference import Reference
from transforms.wrapper import MessageWrapper, Unwrap

REFERENCE: Header = ("large-message", b"true")
LARGE_KEY: Header = ("large-message-key", b"true")
PIECE: Header = ("large-message.chunk.uuid", b"u")
SIZE: Header = ("large-message.size", b"5000")
ELSEWHERE = b"file:///etc/passwd"
STORED = b"memory://x/orders/1"


def header(record: RecordLike, name: str) -> bytes | None:
    """The last header of that name."""
    return dict(record.headers)[name]


@pytest.mark.parametrize("name", [each for each in TRANSFORMS if each != "assemble"])
def test_each_transform_has_its_stage(name: str) -> None:
    """What a file may name is built; `assemble` goes before the chain, claims before `chunk`, and the limit behind."""
    expected: dict[str, list[type]] = {
        "offload": [OffloadStage],
        "inflate": [InflateStage],
        "wrap": [WrapperStage],
        "unwrap": [WrapperStage],
        "chunk": [ClaimStage, ChunkStage],
    }
    chain = chain_of([name], memory()) if name in ("offload", "inflate") else storeless([name], ROOMY)
    assert [type(stage) for stage in chain.stages] == [*expected[name], SinkStage]


# --- which records pass ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transforms", "record", "passes"),
    [
        *(("offload", Record(b"k", b"v" * length), length < 101) for length in (0, 99, 100, 101)),
        *(
            (transforms, record, True)
            for transforms in ("offload", "inflate", "inflate offload")
            for record in (
                Record(None, None),
                Record(b"k" * 500, None, (REFERENCE,)),
                Record(None, b""),
                Record(b"k", b"v", (("large-message", b"false"),)),
                Record(b"k", b"v", (("large-message", None),)),
            )
        ),
    ],
)
def test_passes(*, transforms: str, record: Record, passes: bool) -> None:
    """Values up to the threshold, tombstones, empty values and records that are no references go on as they are."""
    chain = chain_of(transforms.split(), memory())
    assert (chain.passes(record), chain.begin(record) is None) == (passes, passes)


headers: st.SearchStrategy[list[Header]] = st.just([]) | st.lists(
    st.tuples(st.sampled_from(["h", "ä" * 40]), st.none() | st.binary(max_size=200)), max_size=3
)
edges = st.sampled_from([0, 1, 62, 63, 64, 127, 128, 8_191, 8_192, 8_193, 20_000]) | st.integers(0, 300)


@given(st.none() | edges, st.none() | edges, headers, st.integers(-20, 20) | st.integers(-130, 130))
def test_passes_agrees_with_the_exact_size(
    key: int | None, value: int | None, own: list[Header], distance: int
) -> None:
    """The quick answer is never another one than the exact size gives, at any distance from the limit."""
    record = Record(None if key is None else b"k" * key, None if value is None else b"v" * value, tuple(own))
    size = batch_of_one_bytes(record)
    limit = max(1, size + distance)
    for stages in ([], [offload_stage(memory(), 10**9, limit)]):
        assert Chain(stages, sink(limit)).passes(record) == (size <= limit)


@pytest.mark.parametrize(
    ("transforms", "form", "length", "blocks"),
    [
        ("offload", "bakdata-flag", 100, False),
        ("offload", "bakdata-flag", 101, True),
        ("offload", "wideload", 100, False),
        ("inflate", "bakdata-flag", 100, False),
        ("inflate offload", "bakdata-flag", 101, False),
        ("inflate offload", "bakdata-flag", 102, True),
    ],
)
def test_chain_blocks_only_where_the_store_is_asked(
    *, transforms: str, form: FormatName, length: int, blocks: bool
) -> None:
    """What only marks a value needs no thread; a stage is asked of the record as it is behind those before it."""
    work = chain_of(transforms.split(), memory(), form=form).begin(Record(b"k", b"\0" * length))
    assert (work is not None and work.step is not None) is blocks


@pytest.mark.parametrize(
    ("transform", "record", "keys", "reserved"),
    [
        ("offload", Record(b"k", b"v" * 1_000), {}, 0),
        ("offload", Record(b"k", b"v" * 1_000), {"large_message_compression_type": "zstd"}, 1_000),
        ("inflate", Record(b"k", STORED, (REFERENCE,)), {}, 0),
        ("inflate", Record(b"k", STORED, (REFERENCE, SIZE)), {}, 5_000),
        ("inflate", Record(b"k", STORED, (REFERENCE, ("large-message.size", b"7000"))), {}, 7_000),
        (
            "inflate",
            Record(b"k", STORED, (REFERENCE, SIZE, ("large-message.compression", b"lz4"))),
            {},
            10_000,
        ),
    ],
)
def test_reserve(transform: str, record: Record, keys: dict[str, Any], reserved: int) -> None:
    """A copy of the value where it is compressed; what a reference promises, and nothing if it promises nothing."""
    chain = chain_of([transform], memory(memory_name="x"), large_message_max_bytes=7_000, **keys)
    assert begun(chain, record).reserve_bytes == reserved


# --- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", *CODECS])
@pytest.mark.parametrize("generator", ["sha256", "uuid"])
def test_offload_then_inflate_is_the_same_record(codec: str, generator: str) -> None:
    """The record comes back whole, headers in order with duplicates and nulls; the path names the sink topic."""
    store = memory(large_message_id_generator=generator)
    keys: dict[str, Any] = {"large_message_compression_type": codec, "large_message_id_generator": generator}
    own = (("h", b"1"), ("h", None), ("large-message.size", b"theirs"))
    record = Record(b"key", b"value " * 500, own, 1_700_000_000_123)
    offload = chain_of(["offload"], store, **keys)
    (reference,), offloaded = apply(offload, record)
    (restored,), inflated = apply(chain_of(["inflate"], store), reference)
    assert (offloaded, inflated, restored) == (("offload",), ("inflate",), record)
    *_, topic, name = (reference.value or b"").decode().split("/")
    assert topic == "orders"
    again = (apply(offload, record)[0][0].value or b"").decode().rpartition("/")[2]
    if generator == "uuid":
        assert (uuid.UUID(name).version, again != name) == (4, True)
    else:
        assert again == name


def test_chain_inflates_then_offloads_again() -> None:
    """A reference may become a value and a reference again, here with another compression; a small value stays one."""
    store = memory()
    again = chain_of(["inflate", "offload"], store, large_message_compression_type="zstd")
    record = Record(b"k", b"value " * 500, (("h", b"1"),))
    (plain,), _ = apply(chain_of(["offload"], store), record)
    (packed,), applied = apply(again, plain)
    assert (applied, header(packed, "large-message.compression")) == (("inflate", "offload"), b"zstd")
    assert apply(chain_of(["inflate"], store), packed)[0] == (record,)
    (small,) = taken(offload_stage(store, 0), Record(b"k", b"small"))
    assert apply(again, small) == ((Record(b"k", b"small"),), ("inflate",))


def test_latencies_are_counted() -> None:
    """Every call of the store is counted, the one that fails too."""
    stats = PipelineStats()
    chain = chain_of(["inflate", "offload"], memory(), stats=stats)
    (reference,), _ = apply(chain, Record(None, b"v" * 200))
    apply(chain, reference)
    with pytest.raises(PayloadNotFoundError):
        apply(chain, dataclasses.replace(cast(Record, reference), value=(reference.value or b"")[:-1]))
    assert (sum(stats.publish.counts), sum(stats.download.counts)) == (2, 2)
    assert stats.publish.total_seconds > 0


# --- what can never succeed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [
        Record(b"k" * 500, None),
        Record(b"k" * 500, b""),
        Record(b"k" * 500, b"v" * 200),
        Record(b"k", b"v" * 200, (("h", b"x" * 500),)),
    ],
)
def test_record_that_offload_cannot_make_fit(record: Record) -> None:
    """A key or headers over the sink's limit stay so; the error has the numbers."""
    chain = chain_of(["offload"], memory(), 400)
    assert not chain.passes(record)
    with pytest.raises(RecordTooLargeError) as caught:
        apply(chain, record)
    assert (caught.value.topic, caught.value.limit) == ("orders", 400)
    assert caught.value.size > 400


def test_offload_refuses_what_readers_would_refuse() -> None:
    """A value over `large.message.max.bytes` never reaches the store; one of that length does."""
    store = PlainStore()
    chain = chain_of(["offload"], store, large_message_max_bytes=200)
    with pytest.raises(ValueTooLargeError, match="201 bytes"):
        apply(chain, Record(b"k", b"v" * 201))
    assert store.payloads == {}
    assert apply(chain, Record(b"k", b"v" * 200))[1] == ("offload",)


@pytest.mark.parametrize("value", [None, b"v", b"v" * 200])
def test_record_without_a_key_for_a_compacted_topic(value: bytes | None) -> None:
    """Brokers refuse it, so it is an error of the record, and nothing is published for it; others go their way."""
    store = memory()
    chain = build(settings_of(["offload"]), store, sink(cleanup_policy="compact"), PipelineStats())
    assert not chain.passes(Record(None, value))
    with pytest.raises(KeyMissingError, match=r"the record has no key, and topic orders is compacted"):
        apply(chain, Record(None, value))
    assert not list(cast(MemoryStore, store).list())
    assert chain.passes(Record(b"k", value)) is (value is None or len(value) <= 100)
    batch = RecordBatch.read(memoryview(pack([Record(b"k", b"v", (), 1)])))
    assert (chain.passes_whole(batch), chain_of(["offload"], store).passes_whole(batch)) == (False, True)


@pytest.mark.parametrize(("spare", "fits"), [(-1, False), (0, True)])
def test_restored_record_against_the_limit_of_the_sink(*, spare: int, fits: bool) -> None:
    """A value that comes back is refused where the sink would refuse it, by the byte."""
    store = memory()
    record = Record(b"k", b"v" * 5_000)
    (reference,), _ = apply(chain_of(["offload"], store), record)
    chain = chain_of(["inflate"], store, batch_of_one_bytes(record) + spare)
    if fits:
        assert apply(chain, reference)[0] == (record,)
    else:
        with pytest.raises(RecordTooLargeError):
            apply(chain, reference)


@pytest.mark.parametrize(
    ("record", "keys", "error"),
    [
        (Record(b"k", b"", (REFERENCE, SIZE)), {}, MalformedReferenceError),
        (Record(None, b"", (REFERENCE,)), {}, MalformedReferenceError),
        (Record(b"k", STORED, (REFERENCE, ("large-message.size", b"-1"))), {}, MalformedReferenceError),
        (Record(b"k", STORED, (REFERENCE, SIZE)), {"large_message_signing_key": "s" * 32}, SignatureError),
        (Record(b"k", STORED, (REFERENCE, ("large-message.size", b"7001"))), {}, PayloadTooLargeError),
        (Record(b"k", ELSEWHERE, (REFERENCE, SIZE)), {}, ReferenceRefusedError),
        (Record(b"k", ELSEWHERE, (REFERENCE,)), {}, ReferenceRefusedError),
        (
            Record(b"k", b"memory://x/salaries/1", (REFERENCE, SIZE)),
            {"large_message_root": "topic"},
            ReferenceRefusedError,
        ),
        (Record(ELSEWHERE, b"v", (LARGE_KEY,)), {}, ReferenceRefusedError),
        (Record(STORED, ELSEWHERE, (LARGE_KEY, REFERENCE)), {}, ReferenceRefusedError),
        *(
            (
                FORMATS[form].write_reference(Record(b"key", b"v"), Reference("s3://other/base/orders/values/id")),
                {"form": form},
                ReferenceRefusedError,
            )
            for form in ("bakdata-headers", "bakdata-flag")
        ),
    ],
)
def test_reference_that_is_refused_waits_for_nothing(
    record: Record, keys: dict[str, Any], error: type[Exception]
) -> None:
    """It needs no thread, no store and no room: nothing is asked for it, not even for the half of it that is right."""
    stats = PipelineStats()
    chain = chain_of(["inflate"], memory(memory_name="x"), large_message_max_bytes=7_000, stats=stats, **keys)
    with pytest.raises(error):
        chain.begin(record)
    assert sum(stats.download.counts) == 0


# --- formats of others -----------------------------------------------------------------------------------------------

FORMS: tuple[FormatName, ...] = ("bakdata-headers", "bakdata-flag")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_foreign_format_there_and_back(form: FormatName, codec: str) -> None:
    """Large and small values, empty ones too, come back whole; only stages of the large count; a tombstone passes."""
    store = memory()
    offload = chain_of(["offload"], store, form=form, large_message_compression_type=codec)
    inflate = chain_of(["inflate"], store, form=form)
    for value, large in ((b"value " * 500, True), (b"v" * 101, True), (b"v" * 100, False), (b"", False)):
        record = Record(b"key", value, (("h", b"1"), ("h", None)), 1_700_000_000_123)
        assert not offload.passes(record)
        (written,), offloaded = apply(offload, record)
        assert not inflate.passes(written)
        (restored,), inflated = apply(inflate, written)
        assert restored == record
        assert (offloaded, inflated) == ((("offload",), ("inflate",)) if large else ((), ()))
    tombstone = Record(b"key", None, (("h", b"1"),))
    assert offload.passes(tombstone)
    assert inflate.passes(tombstone)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("claimed", "own"), [("key", LARGE_KEY), ("chunk", PIECE)])
def test_foreign_format_lets_no_claim_pass(form: FormatName, claimed: str, own: Header) -> None:
    """Behind it, `inflate` would follow the key and put the piece together, as in each format."""
    chain = chain_of(["offload"], memory(), form=form)
    for value in (b"v", None):
        forged = Record(b"memory://x/salaries/1", value, (own,))
        assert not chain.passes(forged)
        with pytest.raises(ReferenceClaimedError, match=claimed):
            chain.begin(forged)
    assert chain_of(["offload"], memory(), form=form, offload_on_reference="pass").passes(forged)


@pytest.mark.parametrize("form", FORMS)
def test_foreign_format_reserves_what_it_may_hold(form: FormatName) -> None:
    """A mark makes a copy of the value; a reference without a size is measured, and may grow as far as is allowed."""
    store = memory()
    inflate = chain_of(["inflate"], store, form=form, large_message_max_bytes=7_000)
    for codec, reserved in (("none", 6_000), ("zstd", 7_000)):
        offload = chain_of(["offload"], store, form=form, large_message_compression_type=codec)
        small = Record(b"key", b"v" * 100)
        assert begun(offload, small).reserve_bytes == 100
        (marked,), _ = apply(offload, small)
        assert begun(inflate, marked).reserve_bytes == len(marked.value or b"")
        (large,), _ = apply(offload, Record(b"key", b"v" * 6_000))
        work = begun(inflate, large)
        assert work.lacks_size
        assert reserved <= inflate.go_on(work).reserve_bytes < reserved + 100


@pytest.mark.parametrize("form", FORMS)
def test_foreign_mark_that_does_not_fit(form: FormatName) -> None:
    """A record whose mark is over the sink's limit is offloaded, and nothing is sent that the sink would refuse."""
    store, record = memory(), Record(b"key", b"v" * 300)
    keys: dict[str, Any] = {"large_message_threshold_bytes": 10_000}
    (written,), applied = apply(chain_of(["offload"], store, batch_of_one_bytes(record), form=form, **keys), record)
    assert applied == ("offload",)
    assert apply(chain_of(["inflate"], store, form=form), written)[0] == (record,)


# --- chunks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{"transforms": ["chunk"]}, {"transforms": ["offload"], "strategy": "chunk"}])
def test_chunk_makes_several_of_one(keys: dict[str, Any]) -> None:
    """No chunk is over the sink's limit, and together they are the value; what fits passes."""
    chain = chunking(**keys)
    record = Record(b"k", bytes(range(256)) * 20, (("own", None),), 7)
    assert chain.passes(Record(b"k", b"v" * 800))
    assert chain.passes(Record(b"k", None, record.headers))
    work = begun(chain, record)
    assert (type(work.step), work.reserve_bytes) == (Thread, 5_120)
    records, applied = apply(chain, record)
    assert (applied, len(records) > 5) == (("chunk",), True)
    assert all(batch_of_one_bytes(each) <= 1_000 for each in records)
    assert b"".join(each.value or b"" for each in records) == record.value
    again, _ = apply(chain, record)
    assert header(again[0], "large-message.chunk.uuid") != header(records[0], "large-message.chunk.uuid")
    with pytest.raises(RecordTooLargeError):
        apply(chain, Record(b"k" * 1_000, None))
    own, _ = apply(chunking(**keys, limit=ROOMY, chunk_max_bytes=1_000), Record(None, b"v" * 2_000))
    assert (len(own), max(map(batch_of_one_bytes, own)) <= 1_000) == (3, True), "`chunk.max.bytes` counts as the sink's"


def chunking(transforms: list[str], strategy: str | None = None, limit: int = 1_000, **keys: Any) -> Chain:
    """A chain that stores nothing."""
    return storeless(transforms, limit, **keys, **({} if strategy is None else {"large_message_strategy": strategy}))


def test_chunks_of_a_source_record_are_the_same_each_time() -> None:
    """What is read again makes equal chunks, uuid included; another offset, group or limit makes another message."""
    chain = storeless(["chunk"], 1_000)
    source = ReadRecord("raw", 0, 5, 7, b"k", b"v" * 5_000, [("own", None)])
    once, _ = apply(chain, source)
    assert apply(chain, source)[0] == once
    others = [
        (chain, ReadRecord("raw", 0, 6, 7, b"k", b"v" * 5_000, [("own", None)])),
        (storeless(["chunk"], 1_001), source),
        (storeless(["chunk"], 1_000, group_id="another"), source),
    ]
    firsts = [once[0], *(apply(other, each)[0][0] for other, each in others)]
    assert len({header(first, "large-message.chunk.uuid") for first in firsts}) == 4


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(b"k", b"v" * 3_001), "chunk.max.message.bytes is 3,000"),
        (Record(b"k" * 990, b"v" * 100), "key and headers alone take"),
    ],
)
def test_chunk_that_can_never_be(record: Record, reason: str) -> None:
    """What readers would not assemble, or what has no room for a piece, is an error of the record."""
    chain = storeless(["chunk"], 1_000, chunk_max_message_bytes=3_000)
    with pytest.raises(ChunkError, match=reason):
        apply(chain, record)
    assert apply(chain, Record(b"k", b"v" * 3_000))[1] == ("chunk",)


@pytest.mark.parametrize(
    "keys",
    [
        {"transforms": ["chunk"]},
        {"transforms": ["wrap", "chunk"]},
        {"transforms": ["offload"], "strategy": "chunk"},
        {"transforms": ["offload", "wrap"], "strategy": "chunk"},
    ],
)
@pytest.mark.parametrize(
    ("claimed", "own"),
    [
        ("value", (REFERENCE,)),
        ("key", (LARGE_KEY,)),
        ("chunk", (PIECE,)),
        ("(value|chunk)", (PIECE, REFERENCE)),
        ("(key|chunk)", (LARGE_KEY, PIECE)),
    ],
)
def test_chunk_lets_no_claim_pass(keys: dict[str, Any], claimed: str, own: tuple[Header, ...]) -> None:
    """A pipeline that stores nothing can only refuse what readers would follow, small or large, wrapped or not."""
    for size in (1, 5_000):
        forged = Record(b"memory://x/salaries/1", b"v" * size, own)
        for how in ("offload", "fail"):
            chain = chunking(offload_on_reference=how, **keys)
            assert not chain.passes(forged)
            assert not chain.passes_whole(RecordBatch.read(memoryview(pack([forged]))), whole=True)
            if own == (PIECE,) and size > 1_000 and "wrap" not in keys["transforms"]:
                continue
            with pytest.raises(ReferenceClaimedError, match=claimed):
                apply(chain, forged, 4)
    passing = chunking(offload_on_reference="pass", **keys)
    assert len(apply(passing, forged)[0]) > 5
    plain = Record(b"k", b"v", (("h", b"1"),))
    assert passing.passes(plain) is chain.passes(plain) is ("wrap" not in keys["transforms"])


def test_chunk_looks_at_what_comes_out() -> None:
    """A claim may come out of a wrapper, or be that of a reference which was offloaded as it is."""
    forged = Record(b"k", b"memory://x/salaries/1", (REFERENCE,))
    wrapped = Record(b"k", MessageWrapper({2_082_000: b"true"}, forged.value).serialize())
    store = memory()
    (stored,), _ = apply(chain_of(["offload"], store), forged)
    inflating = dataclasses.replace(settings_of(["inflate"]), transforms=("inflate", "chunk"))
    inflating = dataclasses.replace(inflating, chunks=dataclasses.replace(inflating.chunks, splits=True))
    for chain, record in (
        (chunking(["unwrap", "chunk"]), wrapped),
        (chunking(["unwrap", "offload"], "chunk"), wrapped),
        (build(inflating, store, sink(1_000), PipelineStats()), stored),
    ):
        with pytest.raises(ReferenceClaimedError, match="value"):
            apply(chain, record)


@pytest.mark.parametrize("codec", [0, 4])
def test_chunk_splits_what_looks_like_a_piece(codec: int) -> None:
    """A large record with the headers of a chunk comes back as it was, and goes whole even if it compresses well."""
    record = Record(b"k", b"v" * 5_000, (PIECE, ("h", b"1")), 7)
    chunks, applied = apply(storeless(["chunk"], 1_000), record, codec)
    assert (len(chunks) > 5, applied) == (True, ("chunk",))
    assembler = Reassembly(Limits())
    read = [ReadRecord("t", 0, at, 7, each.key, each.value, list(each.headers)) for at, each in enumerate(chunks)]
    (event,) = [event for each in read for event in assembler.receive(0, each)]
    assert event == Assembled(record, ChunkMessageId(0, len(chunks) - 1))


def test_auto_offloads_or_does_without() -> None:
    """With a store large values are references; without it chunks, or as they are; no other strategy falls back."""
    chain = chain_of(["offload"], memory(), 1_000, large_message_strategy="auto")
    record = Record(b"k", b"v" * 5_000)
    references, applied = apply(chain, record)
    assert (len(references), applied) == (1, ("offload",))
    chunks, applied = apply(chain, record, offloading=False)
    assert (len(chunks), applied) == (8, ("chunk",))
    between = Record(b"k", b"v" * 500)
    assert not chain.passes(between)
    assert apply(chain, between, offloading=False) == ((between,), ())
    step = begun(chain_of(["offload"], memory()), record).step
    assert isinstance(step, Store)
    assert step.kept is None


# --- step by step ----------------------------------------------------------------------------------------------------


class Counted(Unwrap):
    """Counts the wrappers that come off."""

    times = 0

    def unwrap(self, record: RecordLike) -> Record:
        """See `Unwrap.unwrap`."""
        Counted.times += 1
        return super().unwrap(record)


@pytest.mark.parametrize(("size", "begun_times"), [(500, 1), (100_000, 0)])
def test_work_of_a_stage_is_done_once(monkeypatch: pytest.MonkeyPatch, size: int, begun_times: int) -> None:
    """A wrapper comes off once, though it is looked at for bytes, threads and the store, and the store fails once."""
    monkeypatch.setattr(Counted, "times", 0)
    store = Refusing(down=True)
    chain = Chain([WrapperStage(Counted()), offload_stage(store)], sink(ROOMY))
    work = begun(chain, Record(b"k", MessageWrapper({}, b"v" * size).serialize()))
    assert (work.step is not None, work.reserve_bytes >= size, Counted.times) == (True, True, begun_times)
    if isinstance(work.step, Thread):
        work = chain.go_on(work)
    assert (isinstance(work.step, Store), Counted.times) == (True, 1)
    with pytest.raises(PayloadStoreError, match="down"):
        chain.go_on(work)
    store.down = False
    assert chain.go_on(work).applied == ("unwrap", "offload")
    assert Counted.times == 1


def test_a_defect_is_raised_when_the_work_begins() -> None:
    """To look whether a record passes raises nothing: the caller of `begin` can say of which record."""

    class Defect(Unwrap):
        def unwrap(self, record: RecordLike) -> Record:
            raise KeyError("defect")

    chain = Chain([WrapperStage(Defect())], sink(ROOMY))
    assert not chain.passes(Record(b"k", b"v"))
    with pytest.raises(KeyError, match="defect"):
        chain.begin(Record(b"k", b"v"))


# --- stages, each by itself ------------------------------------------------------------------------------------------

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
    with pytest.raises(PayloadTooLargeError):  # what its writer says of its size is not measured again
        apply(chain, Record(b"k", path.encode(), (REFERENCE, ("large-message.size", b"1000"))))
    with pytest.raises(PayloadNotFoundError):
        chain.go_on(begun(chain, Record(b"k", path[:-1].encode(), (REFERENCE,))))


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
