"""bakdata's formats: what their serializer wrote is read, and what is written is what they would have written."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transforms.reserved import reserved_bytes
from tests.vectors.bakdata import MAX_BYTE_SIZE, BakdataCase, bakdata_cases
from transforms.bakdata import COMPRESSION, COMPRESSION_ONE_DOT, FLAG, BakdataFlag, BakdataHeaders
from transforms.batch_size import batch_of_one_bytes
from transforms.compression import CODECS, Codec
from transforms.errors import (
    MalformedReferenceError,
    PayloadCorruptError,
    PayloadTooLargeError,
    TransformError,
)
from transforms.formats import FORMATS, Format, FormatName
from transforms.inflate import Inflate
from transforms.offload import Offload
from transforms.record import Header, Record
from transforms.reference import Reference

CASES = bakdata_cases()
NAMES: tuple[FormatName, ...] = ("bakdata-headers", "bakdata-flag")
PATH = "s3://payloads/base/orders/values/an-id"
URI = PATH.encode()


def inflated(form: Format, record: Record, stored: bytes | None = None, max_bytes: int = 10_000_000) -> Record:
    """The record as a reader gives it, whose store has just these bytes."""
    inflate = Inflate(max_bytes, form)
    if not inflate.wants(record):
        return record
    if not form.refers(record):
        return form.read_inline(record)
    inflation = inflate.begin(record)
    assert stored is not None
    return inflate.finish(record, inflation, stored)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_vector_is_read(case: BakdataCase) -> None:
    """Each record of theirs comes out as the one that they were given, with the headers that are not theirs."""
    form = FORMATS[case.format]
    assert form.refers(case.wire) is (case.stored is not None)
    path, stored = case.stored or (None, None)
    if path is not None:
        assert form.read_reference(case.wire)[0] == Reference(path, codec=case.codec)
    assert inflated(form, case.wire, stored) == case.plain


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_vector_is_written(case: BakdataCase) -> None:
    """Of the same record, a record just like theirs is made, and of the same value an object without their zeros."""
    offload = Offload(MAX_BYTE_SIZE - 1, None, case.codec, FORMATS[case.format])
    if case.plain.value is None:
        assert not offload.changes(case.plain)
        return
    assert offload.changes(case.plain)
    if case.stored is None:
        assert not offload.wants(case.plain)
        assert offload.keep(case.plain) == case.wire
        return
    path, stored = case.stored
    assert offload.wants(case.plain)
    payload = offload.payload(case.plain.value)
    assert offload.refer(case.plain, payload.reference(path)) == case.wire
    if case.codec is None:
        assert payload.data == stored
    else:
        assert len(payload.data) < len(case.plain.value) <= len(stored)


def test_vectors_cover_the_formats() -> None:
    """Each format has each codec, a key that is backed, and a value that is inline, empty and null."""
    for name in NAMES:
        found = [case for case in CASES if case.format == name]
        assert {case.codec for case in found if case.stored} == {None, *CODECS}
        assert any(len(case.plain.key or b"") > 60 for case in found)
        assert {None, b"", b"s"} <= {case.plain.value for case in found}


_bytes = st.binary(max_size=40) | st.just(b"")
_names = st.sampled_from([FLAG, COMPRESSION, COMPRESSION_ONE_DOT, "__large.message.backed.key", "trace"])
_headers: st.SearchStrategy[list[Header]] = st.lists(
    st.tuples(_names, st.none() | st.sampled_from([b"\0", b"\1", b"\2", b"\4", b"\5"]) | _bytes), max_size=5
)


@given(
    name=st.sampled_from(NAMES),
    key=st.none() | _bytes,
    value=_bytes,
    headers=_headers,
    codec=st.none() | st.sampled_from(CODECS),
    large=st.booleans(),
)
def test_read_undoes_write(
    name: FormatName,
    key: bytes | None,
    value: bytes,
    headers: list[Header],
    codec: Codec | None,
    large: bool,  # noqa: FBT001
) -> None:
    """Any record comes back whole, also one with headers of theirs that it had before."""
    form = FORMATS[name]
    record = Record(key, value, tuple(headers), 1_700_000_000_123)
    offload = Offload(0 if large else 1000, None, codec, form)
    assert offload.changes(record)
    if not offload.wants(record):
        written, stored = offload.keep(record), None
    else:
        payload = offload.payload(value)
        written, stored = offload.refer(record, payload.reference(PATH)), payload.data
    assert isinstance(written, Record)
    assert inflated(form, written, stored) == record


@given(name=st.sampled_from(NAMES), value=st.none() | st.binary(max_size=60), headers=_headers, stored=st.binary())
def test_any_record_is_read_or_refused(
    name: FormatName, value: bytes | None, headers: list[Header], stored: bytes
) -> None:
    """Whatever stands in a record, it is read, or refused with an error of the project; a tombstone passes."""
    form = FORMATS[name]
    record = Record(None, value, tuple(headers))
    assert reserved_bytes(Inflate(1000, form), record) <= 2000
    try:
        found = inflated(form, record, stored, 1000)
    except TransformError:
        assert value is not None
    else:
        assert (found.value is None) is (value is None)


@pytest.mark.parametrize("form", [BakdataHeaders(), BakdataFlag()])
@pytest.mark.parametrize(
    ("flag", "found"), [(b"\2", "0x02"), (b"", "0 bytes"), (b"\1\0", "2 bytes"), (None, "null"), (b"\0", "0x00")]
)
def test_flag_header_that_is_none(form: Format, flag: bytes | None, found: str) -> None:
    """A flag header that is not one byte, 0 or 1, is an error that says so."""
    record = Record(None, URI, ((FLAG, flag),))
    assert form.refers(record) is (flag != b"\0")
    with pytest.raises(MalformedReferenceError) as raised:
        form.read_reference(record)
    assert vars(raised.value) == {"field": FLAG, "found": found, "allowed": "one byte, 0 or 1"}


def test_record_without_its_flag_is_no_reference() -> None:
    """Who reads it all the same is told what is missing, and where."""
    for form, field, value, found in (
        (BakdataHeaders(), FLAG, URI, "absent"),
        (BakdataFlag(), "the value's flag", None, "null"),
        (BakdataFlag(), "the value's flag", URI, "0x73"),
    ):
        with pytest.raises(MalformedReferenceError) as raised:
            form.read_reference(Record(None, value))
        assert (raised.value.field, raised.value.found) == (field, found)


def test_record_of_the_other_format_is_written_in_it() -> None:
    """A record with the header of the format with headers, in the format with flags."""
    marked = Record(b"k", b"v", (("own", b"1"), (FLAG, b"\0"), ("last", b"2")), 5)
    reference = Reference(PATH)
    headers, flag = BakdataHeaders(), BakdataFlag()
    assert flag.write_inline(marked) == headers.write_inline(marked)
    assert flag.write_reference(marked, reference) == headers.write_reference(marked, reference)
    assert (
        flag.read_inline(marked)
        == headers.read_inline(marked)
        == Record(b"k", b"v", (("own", b"1"), ("last", b"2")), 5)
    )


@pytest.mark.parametrize(("value", "found"), [(b"", "0 bytes"), (b"\2x", "0x02"), (b"{}", "0x7b")])
def test_flag_byte_that_is_none(value: bytes, found: str) -> None:
    """A value without a flag is an error that says what stands in its place."""
    record = Record(None, value)
    assert BakdataFlag().refers(record)
    with pytest.raises(MalformedReferenceError, match=f"the value's flag is '{found}'; allowed: one byte, 0 or 1"):
        BakdataFlag().read_reference(record)


@pytest.mark.parametrize("name", [COMPRESSION, COMPRESSION_ONE_DOT])
@pytest.mark.parametrize("number", [b"\5", b"", b"\1\1", None])
def test_compression_that_is_none(name: str, number: bytes | None) -> None:
    """A compression that is not one byte, 0 to 4, is an error that names the header as it stands there."""
    record = Record(None, b"\1" + URI, ((name, number),))
    with pytest.raises(MalformedReferenceError, match=re.escape(name) + " is .*; allowed: one byte, 0 to 4"):
        BakdataFlag().read_reference(record)


@pytest.mark.parametrize("name", [COMPRESSION, COMPRESSION_ONE_DOT])
def test_compression_with_either_name(name: str) -> None:
    """Both names of the header are read, the last of them counts, and 0 is no compression."""
    headers = ((COMPRESSION, b"\4"), (name, b"\2"), (FLAG, b"\1"))
    assert BakdataHeaders().read_reference(Record(None, URI, headers)) == (
        Reference(PATH, codec="snappy"),
        ((COMPRESSION, b"\4"),),
    )
    headers = ((COMPRESSION, b"\4"), (name, b"\0"), (FLAG, b"\1"))
    assert BakdataHeaders().read_reference(Record(None, URI, headers))[0].codec is None


@pytest.mark.parametrize(("flag", "path"), [(b"\1", b""), (b"\1", b"\xff\xfe"), (b"\1", b"s" * 16_385)])
def test_path_that_is_none(flag: bytes, path: bytes) -> None:
    """What cannot be a path is refused before any store sees it."""
    with pytest.raises(MalformedReferenceError, match="a path in UTF-8"):
        BakdataFlag().read_reference(Record(None, flag + path))
    with pytest.raises(MalformedReferenceError, match="a path in UTF-8"):
        BakdataHeaders().read_reference(Record(None, path, ((FLAG, flag),)))


def test_header_decides_over_flags() -> None:
    """A record with the header is read by the header where flags are expected, as their reader does it."""
    form = BakdataFlag()
    assert inflated(form, Record(None, b"\1value", (("trace", b"1"), (FLAG, b"\0")))) == Record(
        None, b"\1value", (("trace", b"1"),)
    )
    assert form.read_reference(Record(None, URI, ((FLAG, b"\1"),)))[0] == Reference(PATH)


def test_record_without_header_is_a_value() -> None:
    """Where headers are expected, a record without one passes untouched, whatever byte it begins with."""
    assert not BakdataHeaders().wants(Record(None, b"\1" + URI, (("trace", b"1"),)))
    assert not BakdataHeaders().wants(Record(None, None, ((FLAG, b"\1"),)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("spare", "large"), [(-1, True), (0, False)])
def test_mark_counts_against_the_limit_of_the_sink(name: FormatName, spare: int, large: bool) -> None:  # noqa: FBT001
    """A value that fits the sink alone but not with its mark is offloaded, by the byte."""
    record = Record(b"key", b"v" * 500, (("h", b"x"),))
    limit = batch_of_one_bytes(FORMATS[name].write_inline(record)) + spare
    assert Offload(10_000, limit, None, FORMATS[name]).wants(record) is large


@pytest.mark.parametrize("codec", CODECS)
def test_bomb_ends_as_an_error(codec: Codec) -> None:
    """An object that decompresses to more than is allowed is too large; the error has the path and the limit."""
    form = BakdataFlag()
    stored = form.compress(codec, bytes(1_000_001))
    record = Record(None, b"\1" + URI, ((COMPRESSION, bytes([1 + CODECS.index(codec)])),))
    assert inflated(form, record, stored, 1_000_001).value == bytes(1_000_001)
    with pytest.raises(PayloadTooLargeError) as caught:
        inflated(form, record, stored, 1_000_000)
    assert (caught.value.path, caught.value.size, caught.value.limit) == (PATH, None, 1_000_000)


def test_object_that_is_no_frame_is_corrupt() -> None:
    """An object that does not decompress is corrupt; the error says how it should be compressed."""
    record = Record(None, b"\1" + URI, ((COMPRESSION, b"\3"),))
    with pytest.raises(PayloadCorruptError, match=r"not an LZ4 frame.*the reference says lz4"):
        inflated(BakdataFlag(), record, b"no frame at all")
