"""Chains, on the store for tests."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from typing import Any, cast

import pytest
from aiokafka.structs import ConsumerRecord
from hypothesis import given
from hypothesis import strategies as st

from app.config.parsing import parse
from app.config.pipeline import TRANSFORMS
from app.kafka.source_batch import ReadRecord
from app.pipeline.chain import Chain, build
from app.pipeline.stages import ChunkStage, ClaimStage, InflateStage, OffloadStage, SinkStage, WrapperStage
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Store, Thread
from stores.memory import MemoryStore
from stores.store import PayloadStore
from tests.app.pipeline.chains import ROOMY, apply, begun, chain_of, memory, offload_stage, settings_of, sink, taken
from tests.app.pipeline.plain_store import PlainStore
from transforms.batch_size import batch_of_one_bytes
from transforms.chunked_message import Assembled, ChunkMessageId, Limits
from transforms.compression import CODECS, Codec
from transforms.errors import (
    ChunkError,
    KeyMissingError,
    MalformedReferenceError,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadTooLargeError,
    RecordTooLargeError,
    ReferenceClaimedError,
    ReferenceRefusedError,
    SignatureError,
    ValueTooLargeError,
)
from transforms.formats import FORMATS, FormatName
from transforms.offload import Offload
from transforms.reassembly import Reassembly
from transforms.record import Header, Record, RecordLike
from transforms.record_batch import RecordBatch, pack
from transforms.reference import Reference
from transforms.wrapper import MessageWrapper, Unwrap

REFERENCE: Header = ("large-message", b"true")
LARGE_KEY: Header = ("large-message-key", b"true")
PIECE: Header = ("large-message.chunk.uuid", b"u")


def offload_chain(threshold: int, limit: int, codec: Codec | None = None) -> Chain:
    """A chain that offloads, with limits of the test's own."""
    stage = offload_stage(memory(), threshold, limit, compression=codec or "none")
    return Chain([stage], sink(limit))


def header(record: RecordLike, name: str) -> bytes | None:
    """The last header of that name."""
    return dict(record.headers)[name]


@pytest.mark.parametrize("name", [each for each in TRANSFORMS if each != "assemble"])
def test_each_transform_has_its_stage(name: str) -> None:
    """What a file may name is built; `assemble` goes before the chain, claims before `chunk`, and the limit behind."""
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": [name]}
    config = {
        "bootstrap.servers": "localhost:1",
        "large.message.payload.store.class": "memory",
        "pipeline": {"p": table},
    }
    (pipeline,) = parse(config, {}).pipelines
    expected: dict[str, list[type]] = {
        "offload": [OffloadStage],
        "inflate": [InflateStage],
        "wrap": [WrapperStage],
        "unwrap": [WrapperStage],
        "chunk": [ClaimStage, ChunkStage],
    }
    stages = build(pipeline, memory(), sink(), PipelineStats()).stages
    assert [type(stage) for stage in stages[:-1]] == expected[name]
    assert type(stages[-1]) is SinkStage


# --- which records pass ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "passes"), [(0, True), (99, True), (100, True), (101, False)])
def test_passes_up_to_the_threshold(length: int, passes: bool) -> None:  # noqa: FBT001
    """A value of the threshold's length passes, one byte more is offloaded."""
    record = Record(b"k", b"v" * length)
    assert chain_of(["offload"], memory()).passes(record) is passes


@pytest.mark.parametrize(
    "record",
    [
        Record(None, None),
        Record(b"k" * 500, None, (REFERENCE,)),
        Record(None, b""),
        Record(b"k", b"v", (("large-message", b"false"),)),
        Record(b"k", b"v", (("large-message", None),)),
    ],
)
@pytest.mark.parametrize("transforms", [["offload"], ["inflate"], ["inflate", "offload"]])
def test_passes_what_needs_nothing(record: Record, transforms: list[str]) -> None:
    """Tombstones, empty values and records that are no references go on as they are."""
    assert chain_of(transforms, memory()).passes(record)


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
    assert Chain([], sink(limit)).passes(record) == (size <= limit)
    offloads = bool(record.value) and size > limit
    assert Offload(10**9, limit).wants(record) == offloads
    assert offload_chain(10**9, limit).passes(record) == (size <= limit)


@pytest.mark.parametrize(("spare", "passes"), [(-1, False), (0, True), (1, True)])
def test_passes_at_the_limit_of_the_sink(spare: int, passes: bool) -> None:  # noqa: FBT001
    """A record that the sink would refuse is offloaded whatever the threshold says; one that it just takes is not."""
    record = Record(b"key", b"v" * 200, (("h", b"x"),))
    limit = batch_of_one_bytes(record) + spare
    chain = offload_chain(10_000, limit)
    assert chain.passes(record) is passes


def test_offload_refuses_what_readers_would_refuse() -> None:
    """A value over `large.message.max.bytes` never reaches the store; one of that length does."""
    store = PlainStore()
    chain = chain_of(["offload"], cast(PayloadStore, store), large_message_max_bytes=200)
    with pytest.raises(ValueTooLargeError, match="201 bytes"):
        apply(chain, Record(b"k", b"v" * 201))
    assert store.payloads == {}
    assert apply(chain, Record(b"k", b"v" * 200))[1] == ("offload",)


# --- bytes beside the record -----------------------------------------------------------------------------------------


def test_reserve_for_offload() -> None:
    """A second copy of the value is held where it is compressed, and none else."""
    record = Record(b"k", b"v" * 1_000)
    assert begun(chain_of(["offload"], memory()), record).reserve_bytes == 0
    packing = chain_of(["offload"], memory(), large_message_compression_type="zstd")
    assert begun(packing, record).reserve_bytes == 1_000


@pytest.mark.parametrize(
    ("more", "reserved"),
    [
        ((("large-message.size", b"5000"),), 5_000),
        ((("large-message.size", b"5000"), ("large-message.compression", b"lz4")), 10_000),
        ((), 0),
        ((("large-message.size", b"7000"),), 7_000),
    ],
)
def test_reserve_for_inflate(more: tuple[Header, ...], reserved: int) -> None:
    """What the reference promises, twice where it is compressed.

    Nothing for one that promises nothing, as the store is asked first.
    """
    record = Record(b"k", b"memory://x/orders/1", (REFERENCE, *more))
    chain = chain_of(["inflate"], memory(memory_name="x"), large_message_max_bytes=7_000)
    assert begun(chain, record).reserve_bytes == reserved


def test_reserve_is_nothing_for_what_passes() -> None:
    """A record that no stage wants needs no more than itself."""
    chain = chain_of(["inflate", "offload"], memory(), large_message_compression_type="zstd")
    assert chain.begin(Record(b"k", b"v")) is None


# --- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", *CODECS])
@pytest.mark.parametrize("generator", ["sha256", "uuid"])
def test_offload_then_inflate_is_the_same_record(codec: str, generator: str) -> None:
    """The record comes back whole: key, value, timestamp, headers in order with duplicates and nulls."""
    store = memory(large_message_id_generator=generator)
    keys: dict[str, Any] = {"large_message_compression_type": codec, "large_message_id_generator": generator}
    own = (("h", b"1"), ("h", None), ("large-message.size", b"theirs"))
    record = Record(b"key", b"value " * 500, own, 1_700_000_000_123)
    (reference,), offloaded = apply(chain_of(["offload"], store, **keys), record)
    (restored,), inflated = apply(chain_of(["inflate"], store), reference)
    assert (offloaded, inflated) == (("offload",), ("inflate",))
    assert restored == record
    assert reference.value is not None
    assert len(reference.value) < 200


def test_uuid_names_differ() -> None:
    """With `uuid` each publish has a name of its own."""
    chain = chain_of(["offload"], memory(large_message_id_generator="uuid"), large_message_id_generator="uuid")
    record = Record(None, b"v" * 200)
    names = {bytes(apply(chain, record)[0][0].value or b"").decode().rpartition("/")[2] for _ in range(3)}
    assert len(names) == 3
    assert all(uuid.UUID(name).version == 4 for name in names)


def test_payload_is_stored_under_the_sink_topic() -> None:
    """The topic of the path is that of the references."""
    (reference,), _ = apply(chain_of(["offload"], memory()), Record(None, b"v" * 200))
    assert (reference.value or b"").split(b"/")[-2] == b"orders"


def test_chain_inflates_then_offloads_again() -> None:
    """A reference may become a value and a reference again, here with another compression."""
    store = memory()
    record = Record(b"k", b"value " * 500, (("h", b"1"),))
    (plain,), _ = apply(chain_of(["offload"], store), record)
    (packed,), applied = apply(chain_of(["inflate", "offload"], store, large_message_compression_type="zstd"), plain)
    assert applied == ("inflate", "offload")
    assert header(packed, "large-message.compression") == b"zstd"
    assert apply(chain_of(["inflate"], store), packed)[0] == (record,)


@pytest.mark.parametrize(
    ("transforms", "form", "length", "blocks"),
    [
        (["offload"], "bakdata-flag", 100, False),
        (["offload"], "bakdata-flag", 101, True),
        (["offload"], "wideload", 100, False),
        (["inflate"], "bakdata-flag", 100, False),
        (["inflate", "offload"], "bakdata-flag", 101, False),
        (["inflate", "offload"], "bakdata-flag", 102, True),
    ],
)
def test_chain_blocks_only_where_the_store_is_asked(
    transforms: list[str],
    form: str,
    length: int,
    blocks: bool,  # noqa: FBT001
) -> None:
    """What only marks a value needs no thread; a stage is asked of the record as it is behind those before it."""
    where = {"large.message.payload.store.class": "s3", "s3.bucket": "payloads"}
    settings = settings_of(transforms, **{**where, "reference.format": form})
    chain = build(settings, memory(), sink(ROOMY), PipelineStats())
    work = chain.begin(Record(b"k", b"\0" * length))
    assert (work is not None and work.step is not None) is blocks


def test_chain_applies_only_what_is_wanted() -> None:
    """A small reference behind inflate is a small value, which offload lets pass."""
    store = memory()
    stage = offload_stage(store, 0)
    record = Record(b"k", b"small")
    (reference,) = taken(stage, record)
    (restored,), applied = apply(chain_of(["inflate", "offload"], store), reference)
    assert (restored.value, applied) == (b"small", ("inflate",))


def test_latencies_are_counted() -> None:
    """Every call of the store is counted, the one that fails too."""
    stats, store = PipelineStats(), memory()
    chain = build(settings_of(["inflate", "offload"]), store, sink(ROOMY), stats)
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


@pytest.mark.parametrize("value", [None, b"v", b"v" * 200])
def test_record_without_a_key_for_a_compacted_topic(value: bytes | None) -> None:
    """Brokers refuse it, so it is an error of the record, and nothing is published for it; others go their way."""
    store = memory()
    chain = build(settings_of(["offload"]), store, sink(cleanup_policy="compact"), PipelineStats())
    assert not chain.passes(Record(None, value))
    with pytest.raises(KeyMissingError, match=r"the record has no key, and topic orders is compacted"):
        apply(chain, Record(None, value))
    assert not list(cast(MemoryStore, store).list())
    assert chain.passes(Record(b"k", value)) is chain_of(["offload"], store).passes(Record(None, value))


@pytest.mark.parametrize(("spare", "fits"), [(-1, False), (0, True)])
def test_restored_record_against_the_limit_of_the_sink(spare: int, fits: bool) -> None:  # noqa: FBT001
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


def reference_to(store: PayloadStore, value: bytes, *more: Header) -> Record:
    """A reference to `value`, with headers as a careless or hostile writer may set them."""
    return Record(b"k", store.publish("orders", value).encode(), (REFERENCE, *more))


@pytest.mark.parametrize(("said", "found"), [(b"9", "10 bytes"), (b"0", "10 bytes"), (b"11", "10 bytes")])
def test_size_that_lies_is_corruption(said: bytes, found: str) -> None:
    """A size header that is not the payload's is the reference's fault, not the limit's."""
    store = memory()
    with pytest.raises(PayloadCorruptError) as caught:
        apply(chain_of(["inflate"], store), reference_to(store, b"0123456789", ("large-message.size", said)))
    assert (caught.value.what, caught.value.found) == ("size", found)


def test_checksum_that_differs_is_corruption() -> None:
    """Bytes that were changed in the store are noticed."""
    store = memory()
    checksum = b"sha256:" + hashlib.sha256(b"other").hexdigest().encode()
    with pytest.raises(PayloadCorruptError) as caught:
        apply(chain_of(["inflate"], store), reference_to(store, b"value", ("large-message.checksum", checksum)))
    assert caught.value.what == "checksum"


def test_compression_that_is_none_is_corruption() -> None:
    """Bytes that do not decompress are noticed, and no more memory is taken than the size says."""
    store = memory()
    record = reference_to(store, b"value", ("large-message.size", b"90"), ("large-message.compression", b"zstd"))
    with pytest.raises(PayloadCorruptError) as caught:
        apply(chain_of(["inflate"], store), record)
    assert caught.value.what == "compression"


def test_payload_over_the_limit_is_refused_unread() -> None:
    """The limit holds for what is there, and for what the reference says; the seed's own references say nothing."""
    store = memory()
    chain = build(settings_of(["inflate"], large_message_max_bytes=9), store, sink(ROOMY), PipelineStats())
    for more in ((), (("large-message.size", b"9"),), (("large-message.size", b"10"),)):
        with pytest.raises(PayloadTooLargeError) as caught:
            apply(chain, reference_to(store, b"0123456789", *more))
        assert caught.value.limit == 9


def test_reference_that_leads_elsewhere() -> None:
    """A path outside the store's root, or none at all, is refused."""
    chain = chain_of(["inflate"], memory())
    with pytest.raises(ReferenceRefusedError):
        apply(chain, Record(None, b"file:///etc/passwd", (REFERENCE,)))
    with pytest.raises(MalformedReferenceError):
        apply(chain, Record(None, b"", (REFERENCE,)))


ELSEWHERE = b"file:///etc/passwd"
SIZE: Header = ("large-message.size", b"5000")


@pytest.mark.parametrize(
    ("record", "keys", "error"),
    [
        (Record(b"k", b"", (REFERENCE, SIZE)), {}, MalformedReferenceError),
        (Record(b"k", b"memory://x/orders/1", (REFERENCE, ("large-message.size", b"-1"))), {}, MalformedReferenceError),
        (
            Record(b"k", b"memory://x/orders/1", (REFERENCE, SIZE)),
            {"large_message_signing_key": "s" * 32},
            SignatureError,
        ),
        (Record(b"k", b"memory://x/orders/1", (REFERENCE, ("large-message.size", b"7001"))), {}, PayloadTooLargeError),
        (Record(b"k", ELSEWHERE, (REFERENCE, SIZE)), {}, ReferenceRefusedError),
        (Record(b"k", ELSEWHERE, (REFERENCE,)), {}, ReferenceRefusedError),
        (
            Record(b"k", b"memory://x/salaries/1", (REFERENCE, SIZE)),
            {"large_message_root": "topic"},
            ReferenceRefusedError,
        ),
        (Record(ELSEWHERE, b"v", (LARGE_KEY,)), {}, ReferenceRefusedError),
        (Record(b"memory://x/orders/1", ELSEWHERE, (LARGE_KEY, REFERENCE)), {}, ReferenceRefusedError),
    ],
)
def test_reference_that_is_refused_waits_for_nothing(
    record: Record, keys: dict[str, Any], error: type[Exception]
) -> None:
    """It needs no thread, no store and no room: nothing is asked for it, not even for the half of it that is right."""
    stats = PipelineStats()
    settings = settings_of(["inflate"], large_message_max_bytes=7_000, **keys)
    chain = build(settings, memory(memory_name="x"), sink(ROOMY), stats)
    with pytest.raises(error):
        chain.begin(record)
    assert sum(stats.download.counts) == 0


# --- formats of others -----------------------------------------------------------------------------------------------

FORMS: tuple[FormatName, ...] = ("bakdata-headers", "bakdata-flag")


def foreign_chain(name: FormatName, transform: str, store: PayloadStore, limit: int = ROOMY, **keys: Any) -> Chain:
    """A chain in a format of others; the settings refuse to write one to a store that is not S3."""
    settings = dataclasses.replace(settings_of([transform], **keys), reference_format=name)
    return build(settings, store, sink(limit), PipelineStats())


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_foreign_format_there_and_back(name: FormatName, codec: str) -> None:
    """Large and small values, empty ones too, come back whole; only the large one's stages count as applied."""
    store = memory()
    offload = foreign_chain(name, "offload", store, large_message_compression_type=codec)
    inflate = foreign_chain(name, "inflate", store)
    for value, large in ((b"value " * 500, True), (b"v" * 101, True), (b"v" * 100, False), (b"", False)):
        record = Record(b"key", value, (("h", b"1"), ("h", None)), 1_700_000_000_123)
        assert not offload.passes(record)
        (written,), offloaded = apply(offload, record)
        assert not inflate.passes(written)
        (restored,), inflated = apply(inflate, written)
        assert restored == record
        assert (offloaded, inflated) == ((("offload",), ("inflate",)) if large else ((), ()))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("transform", ["offload", "inflate"])
def test_foreign_format_lets_tombstones_pass(name: FormatName, transform: str) -> None:
    """A tombstone is in no format."""
    assert foreign_chain(name, transform, memory()).passes(Record(b"key", None, (("h", b"1"),)))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("claimed", "own"), [("key", LARGE_KEY), ("chunk", PIECE)])
def test_foreign_format_lets_no_claim_pass(name: FormatName, claimed: str, own: Header) -> None:
    """Behind it, `inflate` would follow the key and put the piece together, as in each format."""
    chain = foreign_chain(name, "offload", memory())
    for value in (b"v", None):
        forged = Record(b"memory://x/salaries/1", value, (own,))
        assert not chain.passes(forged)
        with pytest.raises(ReferenceClaimedError, match=claimed):
            chain.begin(forged)
    passing = foreign_chain(name, "offload", memory(), offload_on_reference="pass")
    assert passing.passes(forged)


@pytest.mark.parametrize("name", FORMS)
def test_foreign_format_reserves_what_it_may_hold(name: FormatName) -> None:
    """A mark makes a copy of the value; a reference without a size is measured, and may grow as far as is allowed."""
    store = memory()
    keys: dict[str, Any] = {"large_message_max_bytes": 7_000}
    inflate = foreign_chain(name, "inflate", store, **keys)
    for codec, reserved in (("none", 6_000), ("zstd", 7_000)):
        offload = foreign_chain(name, "offload", store, large_message_compression_type=codec)
        assert begun(offload, Record(b"key", b"v" * 100)).reserve_bytes == 100
        (small,), _ = apply(offload, Record(b"key", b"v" * 100))
        assert begun(inflate, small).reserve_bytes == len(small.value or b"")
        (large,), _ = apply(offload, Record(b"key", b"v" * 6_000))
        work = begun(inflate, large)
        assert work.lacks_size
        assert reserved <= inflate.go_on(work).reserve_bytes < reserved + 100


@pytest.mark.parametrize("name", FORMS)
def test_foreign_reference_that_leads_elsewhere(name: FormatName) -> None:
    """A URI outside the store's root is refused, as one of ours is."""
    record = FORMATS[name].write_reference(Record(b"key", b"v"), Reference("s3://other/base/orders/values/id"))
    with pytest.raises(ReferenceRefusedError):
        apply(foreign_chain(name, "inflate", memory()), record)


@pytest.mark.parametrize("name", FORMS)
def test_foreign_mark_that_does_not_fit(name: FormatName) -> None:
    """A record whose mark is over the sink's limit is offloaded, and nothing is sent that the sink would refuse."""
    store = memory()
    record = Record(b"key", b"v" * 300)
    limit = batch_of_one_bytes(record)
    (written,), applied = apply(
        foreign_chain(name, "offload", store, limit, large_message_threshold_bytes=10_000), record
    )
    assert applied == ("offload",)
    assert apply(foreign_chain(name, "inflate", store), written)[0] == (record,)


# --- chunks ----------------------------------------------------------------------------------------------------------


def storeless(transforms: list[str], limit: int, **keys: Any) -> Chain:
    """A chain that has no store."""
    dotted = {name.replace("_", "."): value for name, value in keys.items()}
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": transforms, **dotted}
    settings = parse({"bootstrap.servers": "localhost:1", "pipeline": {"p": table}}, {}).pipelines[0]
    return build(settings, None, sink(limit), PipelineStats())


@pytest.mark.parametrize(
    "keys", [{"transforms": ["chunk"]}, {"transforms": ["offload"], "large_message_strategy": "chunk"}]
)
def test_chunk_makes_several_of_one(keys: dict[str, Any]) -> None:
    """No chunk is over the sink's limit, and together they are the value; what fits passes."""
    chain = storeless(limit=1_000, **keys)
    record = Record(b"k", bytes(range(256)) * 20, (("own", None),), 7)
    assert chain.passes(Record(b"k", b"v" * 800))
    assert chain.passes(Record(b"k", None, record.headers))
    assert not chain.passes(record)
    assert isinstance(begun(chain, record).step, Thread)
    assert begun(chain, record).reserve_bytes == 5_120
    records, applied = apply(chain, record)
    assert applied == ("chunk",)
    assert len(records) > 5
    assert all(batch_of_one_bytes(each) <= 1_000 for each in records)
    assert b"".join(each.value or b"" for each in records) == record.value
    again, _ = apply(chain, record)
    assert header(again[0], "large-message.chunk.uuid") != header(records[0], "large-message.chunk.uuid")


def test_chunks_of_a_source_record_are_the_same_each_time() -> None:
    """What is read again makes equal chunks, uuid included; another offset, group or limit makes another message."""

    def source(offset: int) -> ConsumerRecord[bytes, bytes]:
        value = b"v" * 5_000
        return ConsumerRecord("raw", 0, offset, 7, 0, b"k", value, None, 1, len(value), (("own", None),))

    chain = storeless(["chunk"], 1_000)
    once, _ = apply(chain, source(5))
    assert apply(chain, source(5))[0] == once
    uuids = {header(once[0], "large-message.chunk.uuid")}
    for other, offset in (
        (chain, 6),
        (storeless(["chunk"], 1_001), 5),
        (storeless(["chunk"], 1_000, group_id="another"), 5),
    ):
        uuids.add(header(apply(other, source(offset))[0][0], "large-message.chunk.uuid"))
    assert len(uuids) == 4


def test_chunk_by_its_own_limit() -> None:
    """`chunk.max.bytes` splits what the sink would take."""
    chain = storeless(["chunk"], ROOMY, chunk_max_bytes=1_000)
    records, _ = apply(chain, Record(None, b"v" * 2_000))
    assert len(records) == 3
    assert max(batch_of_one_bytes(each) for each in records) <= 1_000


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(b"k", b"v" * 3_001), "chunk.max.message.bytes is 3,000"),
        (Record(b"k" * 990, b"v" * 100), "key and headers alone take"),
    ],
)
def test_chunk_that_can_never_be(record: Record, reason: str) -> None:
    """What readers would not assemble, or what has no room for a piece, is an error of the record."""
    with pytest.raises(ChunkError, match=reason):
        apply(storeless(["chunk"], 1_000, chunk_max_message_bytes=3_000), record)


@pytest.mark.parametrize(
    "keys",
    [
        {"transforms": ["chunk"]},
        {"transforms": ["wrap", "chunk"]},
        {"transforms": ["offload"], "large_message_strategy": "chunk"},
        {"transforms": ["offload", "wrap"], "large_message_strategy": "chunk"},
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
            chain = storeless(limit=1_000, offload_on_reference=how, **keys)
            assert not chain.passes(forged)
            assert not chain.passes_whole(RecordBatch.read(memoryview(pack([forged]))), whole=True)
            if own == (PIECE,) and size > 1_000 and "wrap" not in keys["transforms"]:
                continue
            with pytest.raises(ReferenceClaimedError, match=claimed):
                apply(chain, forged, 4)
    passing = storeless(limit=1_000, offload_on_reference="pass", **keys)
    assert len(apply(passing, forged)[0]) > 5
    plain = Record(b"k", b"v", (("h", b"1"),))
    assert passing.passes(plain) is chain.passes(plain) is ("wrap" not in keys["transforms"])


def test_chunk_looks_at_what_comes_out() -> None:
    """A claim may come out of a wrapper, or be that of a reference which was offloaded as it is."""
    forged = Record(b"k", b"memory://x/salaries/1", (REFERENCE,))
    wrapped = Record(b"k", MessageWrapper({2_082_000: b"true"}, forged.value).serialize())
    store = memory()
    (stored,), _ = apply(chain_of(["offload"], store), forged)
    keys: dict[str, Any] = {"large_message_strategy": "chunk"}
    inflating = dataclasses.replace(settings_of(["inflate"]), transforms=("inflate", "chunk"))
    inflating = dataclasses.replace(inflating, chunks=dataclasses.replace(inflating.chunks, splits=True))
    for chain, record in (
        (storeless(["unwrap", "chunk"], 1_000), wrapped),
        (storeless(["unwrap", "offload"], 1_000, **keys), wrapped),
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


def test_chunk_does_not_help_tombstones() -> None:
    """A tombstone with a key over the limit is refused as before."""
    with pytest.raises(RecordTooLargeError):
        apply(storeless(["chunk"], 1_000), Record(b"k" * 1_000, None))


def test_auto_offloads_or_does_without() -> None:
    """With a store large values are references; without it chunks, or as they are where the sink takes them."""
    chain = chain_of(["offload"], memory(), 1_000, large_message_strategy="auto")
    record = Record(b"k", b"v" * 5_000)
    references, applied = apply(chain, record)
    assert (len(references), applied) == (1, ("offload",))
    chunks, applied = apply(chain, record, offloading=False)
    assert (len(chunks), applied) == (8, ("chunk",))
    between = Record(b"k", b"v" * 500)
    assert not chain.passes(between)
    assert apply(chain, between, offloading=False) == ((between,), ())


def test_only_auto_does_without_a_store() -> None:
    """No other strategy falls back."""
    step = begun(chain_of(["offload"], memory()), Record(b"k", b"v" * 5_000)).step
    assert isinstance(step, Store)
    assert step.kept is None


# --- step by step ----------------------------------------------------------------------------------------------------


class Refusing(PlainStore):
    """A store that is down at first."""

    down = True

    def publish(self, topic: str, data: bytes) -> str:
        """Fails while `down`."""
        if self.down:
            raise PayloadStoreError("down", retriable=True)
        return super().publish(topic, data)


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
    store = Refusing()
    offload = offload_stage(store)
    chain = Chain([WrapperStage(Counted()), offload], sink(ROOMY))
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

    offload = offload_stage(memory())
    chain = Chain([WrapperStage(Defect()), offload], sink(ROOMY))
    assert not chain.passes(Record(b"k", b"v"))
    with pytest.raises(KeyError, match="defect"):
        chain.begin(Record(b"k", b"v"))
