"""Which records are offloaded, and what takes the value's place."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import codecs, headers, records, values
from transforms.chunk import Chunk
from transforms.claims import claim
from transforms.compression import CODECS, Codec, compress, decompress
from transforms.errors import MalformedReferenceError, ReferenceClaimedError
from transforms.formats import FORMATS, FormatName
from transforms.inflate import Inflate
from transforms.offload import DEFAULT_THRESHOLD_BYTES, Offload, Payload
from transforms.record import Header, Record
from transforms.record_batch import RecordBatch, pack
from transforms.reference import KEY, VALUE, Reference

FOO = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"  # sha256 of b"foo"


def built_bytes(record: Record) -> int:
    """The size of the batch of one that aiokafka sends for `record`."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    builder.append(0, timestamp=record.timestamp, key=record.key, value=record.value, headers=list(record.headers))
    return len(builder.build())


def test_offload_default_threshold() -> None:
    """The default threshold is the seed's, 1 MB, and there is no other limit."""
    assert DEFAULT_THRESHOLD_BYTES == 1_048_576
    assert Offload() == Offload(threshold_bytes=1_048_576, sink_limit_bytes=None, codec=None)


@pytest.mark.parametrize(("length", "wanted"), [(1_048_575, False), (1_048_576, False), (1_048_577, True)])
def test_offload_wants_threshold(length: int, *, wanted: bool) -> None:
    """A value is large when it is longer than the threshold; one of just that length is not."""
    assert Offload().wants(Record(b"k", bytes(length))) is wanted


@pytest.mark.parametrize("threshold", [0, 1, 99, 100])
def test_offload_wants_small_threshold(threshold: int) -> None:
    """The threshold is of the value alone; key and headers do not count."""
    offload = Offload(threshold_bytes=threshold)
    own: tuple[Header, ...] = (("h", b"x" * 500),)
    assert not offload.wants(Record(b"k" * 500, b"v" * threshold, own))
    assert offload.wants(Record(None, b"v" * (threshold + 1)))


@pytest.mark.parametrize("value", [None, b""])
@pytest.mark.parametrize("own", [(), (("h", b"x" * 500),)])
def test_offload_wants_neither_tombstone_nor_empty(value: bytes | None, own: tuple[Header, ...]) -> None:
    """A tombstone and an empty value stay, even where nothing fits: there is nothing to take out of them."""
    assert not Offload(threshold_bytes=0, sink_limit_bytes=0).wants(Record(b"k" * 500, value, own))


@pytest.mark.parametrize("key", [None, b"", b"k", b"k" * 63, b"k" * 64, b"k" * 8_191, b"k" * 8_192])
@pytest.mark.parametrize("length", [1, 63, 64, 8_191, 8_192])
@pytest.mark.parametrize(
    "own",
    [
        (),
        (("h", None),),
        (("h", b""), ("h", b"")),
        (("größe", b"x" * 64), ("名前", None)),
        (("n", b"1"),) * 64,
    ],
    ids=["none", "null", "duplicate", "non-ascii", "64"],
)
def test_offload_wants_sink_limit(key: bytes | None, length: int, own: tuple[Header, ...]) -> None:
    """A record that is one byte over the sink's limit as a batch of one is large; one of just that size is not."""
    record = Record(key, b"v" * length, own)
    size = built_bytes(record)
    assert not Offload(sink_limit_bytes=size + 1).wants(record)
    assert not Offload(sink_limit_bytes=size).wants(record)
    assert Offload(sink_limit_bytes=size - 1).wants(record)


@given(records(), st.integers(0, 400), st.none() | st.integers(0, 9_000))
def test_offload_wants_any_record(record: Record, threshold: int, limit: int | None) -> None:
    """A record is wanted if it has a value that is over the threshold, or makes the batch exceed the limit."""
    large = bool(record.value) and (
        len(record.value or b"") > threshold or (limit is not None and built_bytes(record) > limit)
    )
    assert Offload(threshold, limit).wants(record) is large


@given(records(value=st.binary(min_size=1, max_size=100)), st.integers(-3, 100))
def test_offload_wants_near_the_limit(record: Record, slack: int) -> None:
    """The short cut for records that surely fit never lets one pass that does not."""
    bare = Record(record.key, record.value)
    assert Offload(sink_limit_bytes=built_bytes(bare) + slack).wants(bare) is (slack < 0)


VALUE_CLAIM: tuple[Header, ...] = Reference("s3://b/p/t/id", 3, FOO).headers()
KEY_CLAIM: tuple[Header, ...] = Reference("s3://b/p/t/id", 3, FOO).headers(KEY)
CHUNK_CLAIM: tuple[Header, ...] = Chunk("u", 0, 2, 9).headers()
OWN: Header = ("own", b"1")
CLAIMS: list[tuple[Record, str | None]] = [
    (Record(b"k", b"v", (OWN, *VALUE_CLAIM)), "value"),
    (Record(b"k", b"", ((VALUE.flag, b"true"), OWN)), "value"),
    (Record(b"k", b"v", (*VALUE_CLAIM, *KEY_CLAIM)), "key"),
    (Record(b"k", None, KEY_CLAIM), "key"),
    (Record(b"k", b"v", (*CHUNK_CLAIM, *VALUE_CLAIM)), "chunk"),
    (Record(None, None, CHUNK_CLAIM), "chunk"),
    (Record(b"k", None, VALUE_CLAIM), None),  # a tombstone, which nobody follows
    (Record(None, b"v", KEY_CLAIM), None),
    (Record(b"k", b"v", ((VALUE.flag, b"false"), OWN)), None),
    (Record(b"k", b"v", ((VALUE.flag, b"true"), (VALUE.flag, None))), None),
    (Record(b"k", b"v", (("large-message.size", b"3"), OWN)), None),
    (Record(b"k", b"v", (OWN,)), None),
    (Record(b"k", b"v"), None),
]


@pytest.mark.parametrize(("record", "claimed"), CLAIMS)
def test_offload_of_records_that_claim_to_be_ours(record: Record, claimed: str | None) -> None:
    """What readers would follow or assemble is wanted however small it is; only a value's can be offloaded."""
    assert claim(record) == claimed
    assert not Offload().wants(record)
    Offload().check(record)
    for on_reference in ("offload", "fail"):
        offload = Offload(sink_limit_bytes=1_000, on_reference=on_reference)
        assert offload.wants(record) is offload.changes(record) is (claimed is not None)
        assert offload.wants_any(RecordBatch.read(memoryview(pack([record])))) or claimed is None
        if claimed is None or (on_reference == "offload" and claimed == "value"):
            offload.check(record)
        else:
            with pytest.raises(ReferenceClaimedError, match=f"of a.* {claimed}.* offload.on.reference") as refused:
                offload.check(record)
            assert ("assemble" in str(refused.value)) == (claimed == "chunk")
        if claimed is not None:  # a wrapper behind `offload` has no header twice
            with pytest.raises(ReferenceClaimedError):
                replace(offload, measure=lambda _: 0).check(record)


THEIR_KEY: Header = ("__large.message.backed.key", b"\1")


@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
@pytest.mark.parametrize(
    ("record", "claimed"),
    [
        *((record, None if claimed == "value" else claimed) for record, claimed in CLAIMS),
        (Record(b"s3://b/keys/id", b"v", (THEIR_KEY, OWN)), "key"),
        (Record(b"s3://b/keys/id", None, (THEIR_KEY,)), "key"),
        (Record(b"k", b"v", (("__large.message.backed.key", b"\0"),)), None),
        (Record(b"k", b"v", (THEIR_KEY, ("__large.message.backed.key", b"\0"))), None),
        (Record(None, b"v", (THEIR_KEY,)), None),
    ],
)
def test_offload_of_claims_in_bakdatas_formats(name: FormatName, record: Record, claimed: str | None) -> None:
    """Readers take the mark of a value for what it is; but chunks and keys they would take as in every topic."""
    for on_reference in ("offload", "fail", "pass"):
        offload = Offload(sink_limit_bytes=1_000, format=FORMATS[name], on_reference=on_reference)
        refuses = claimed is not None and on_reference != "pass"
        assert offload.wants(record) is refuses
        assert offload.changes(record) is (refuses or record.value is not None)
        assert not offload.changes(record) or offload.wants_any(RecordBatch.read(memoryview(pack([record]))))
        if not refuses:
            offload.check(record)
            continue
        with pytest.raises(ReferenceClaimedError, match=f"of a.* {claimed}.* offload.on.reference"):
            offload.check(record)


def test_our_own_format_leaves_a_record_that_stays_as_it_is() -> None:
    """Key, value, headers and timestamp: no mark says that it is no reference."""
    record = Record(b"k", b"v", (OWN,), 7)
    assert FORMATS["wideload"].write_inline(record) == FORMATS["wideload"].read_inline(record) == record


@pytest.mark.parametrize("value", [b"s3://b/p/t/secret", b""])
def test_offloaded_reference_is_read_as_it_was(value: bytes) -> None:
    """A reference that was offloaded comes back with its headers, and is not followed."""
    record = Record(b"k", value, (OWN, *VALUE_CLAIM), 5)
    offload = Offload(on_reference="offload")
    reference = offload.payload(value).reference("s3://b/p/t/other")
    inflate = Inflate()
    referring = offload.refer(record, reference)
    begun = inflate.begin(referring)
    assert begun.reference == reference
    assert inflate.finish(referring, begun, value) == record


def test_offload_payload_literal() -> None:
    """Without a codec the stored bytes are the value itself."""
    assert Offload().payload(b"foo") == Payload(b"foo", 3, FOO, None)


@pytest.mark.parametrize("codec", CODECS)
def test_offload_payload_compressed(codec: Codec) -> None:
    """Size and checksum are the value's, not those of the stored bytes."""
    value = b"foo" * 1_000
    payload = Offload(codec=codec).payload(value)
    assert (payload.size, payload.codec) == (3_000, codec)
    assert payload.checksum == hashlib.sha256(value).hexdigest()
    assert len(payload.data) < 3_000
    assert decompress(codec, payload.data, 3_000) == value


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", [b"\0", b"foo", bytes(range(256))])
def test_offload_payload_incompressible(codec: Codec, value: bytes) -> None:
    """A value that compression would not shorten is stored as it is, and the reference names no codec."""
    payload = Offload(codec=codec).payload(value)
    assert payload == Payload(value, len(value), hashlib.sha256(value).hexdigest(), None)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_offload_payload_same_length_is_not_used(codec: Codec) -> None:
    """Compressed bytes of just the value's length are not used; those of one byte less are."""
    saved = {len(value) - len(compress(codec, value)): value for value in (b"a" * count for count in range(1, 80))}
    assert Offload(codec=codec).payload(saved[0]).codec is None
    assert Offload(codec=codec).payload(saved[1]).codec == codec


@given(values(), codecs())
def test_offload_payload_never_longer(value: bytes, codec: Codec | None) -> None:
    """No payload is longer than its value: a reader bounds the download by the size in the reference."""
    payload = Offload(codec=codec).payload(value)
    assert len(payload.data) <= payload.size == len(value)


def test_offload_refer_literal() -> None:
    """The path takes the value's place and the headers go behind the record's own; key and timestamp stay."""
    own: tuple[Header, ...] = (("trace", b"1"), ("trace", b"1"), ("none", None))
    record = Record(b"k", b"foo", own, 1_700_000_000_000)
    payload = Offload().payload(b"foo")
    assert Offload().refer(record, payload.reference("s3://bucket/prefix/orders/id")) == Record(
        b"k",
        b"s3://bucket/prefix/orders/id",
        (
            ("trace", b"1"),
            ("trace", b"1"),
            ("none", None),
            ("large-message", b"true"),
            ("large-message.size", b"3"),
            ("large-message.checksum", b"sha256:" + FOO.encode()),
        ),
        1_700_000_000_000,
    )


def test_offload_refer_null_key() -> None:
    """A null key stays null, so that the partitioner still sees none."""
    assert Offload().refer(Record(None, b"foo"), Reference("p")).key is None
    assert Offload().refer(Record(b"", b"foo"), Reference("p")).key == b""


@given(records(), headers())
def test_offload_refer_keeps_headers(record: Record, own: list[Header]) -> None:
    """Headers are carried as a list too, and the record that came is not changed."""
    came = Record(record.key, record.value, own, record.timestamp)
    before = list(own)
    referred = Offload().refer(came, Reference("p"))
    assert tuple(referred.headers) == (*before, ("large-message", b"true"))
    assert own == before


@pytest.mark.parametrize("path", ["", "p" * 16_385, "\udc80"])
def test_offload_refer_bad_path(path: str) -> None:
    """A path that could not be read again is refused, whatever store made it; the value is not lost."""
    with pytest.raises(MalformedReferenceError, match="malformed reference: value is "):
        Offload().refer(Record(b"k", b"foo"), Reference(path, 3, FOO))
