"""The message wrapper: its bytes, what is refused, and that nothing is lost on the way through it."""

from __future__ import annotations

import itertools
import re
import struct
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import header_names, header_values, optional_bytes, records, values
from tests.vectors.wrapper import RecordCase, WrapperCase, record_cases, table, wrapper_cases
from transforms.batch_size import batch_of_one_bytes
from transforms.errors import MalformedWrapperError, TransformError, WrapError
from transforms.record import Record
from transforms.reference import Reference
from transforms.wrapper import MAX_HEADERS, OWN_KEYS, HeaderTable, KeyRange, MessageWrapper, Unwrap, Wrap

TABLE = HeaderTable({3_000_001: "trace-id", 7: "user"})
INT32 = st.integers(-(2**31), 2**31 - 1)
KEYS = INT32 | st.sampled_from((0, 7, -1, 3_000_001, *OWN_KEYS))


def wrappers() -> st.SearchStrategy[MessageWrapper]:
    """Any wrapper."""
    return st.builds(MessageWrapper, st.dictionaries(KEYS, st.binary(max_size=40), max_size=6), optional_bytes())


# --- bytes -----------------------------------------------------------------------------------------------------------

EXAMPLE = (
    b"\x00"  # MagicByte
    b"\x00\x00\x00\x14"  # HeadersLength: 20
    b"\x00\x00\x00\x01" b"\x00\x00\x00\x02" b"ab"  # Key, ValueLength, Value
    b"\xff\xff\xff\xff" b"\x00\x00\x00\x02" b"cd"
    b"\x00\x00\x00\x05" b"hello"  # ValueLength, Value
)  # fmt: skip


def test_bytes_are_those_of_the_document() -> None:
    """Each field has its size and place, big-endian, in both directions."""
    wrapper = MessageWrapper({1: b"ab", -1: b"cd"}, b"hello")
    assert (wrapper.serialize(), MessageWrapper.parse(EXAMPLE)) == (EXAMPLE, wrapper)


@pytest.mark.parametrize(
    ("value", "tail"), [(None, b"\xff\xff\xff\xff"), (b"", b"\x00\x00\x00\x00"), (b"\xff", b"\x00\x00\x00\x01\xff")]
)
def test_null_is_the_tombstone_marker(value: bytes | None, tail: bytes) -> None:
    """A null value is a length of −1, and an empty one is another."""
    data = b"\x00\x00\x00\x00\x00" + tail
    assert MessageWrapper({}, value).serialize() == data
    assert MessageWrapper.parse(data).value == value


@pytest.mark.parametrize("case", wrapper_cases(), ids=lambda case: case.name)
def test_vector(case: WrapperCase) -> None:
    """What another implementation wrote is read and written; what it refuses is refused."""
    assert MessageWrapper.check(case.bytes) is (case.error is None)
    if case.content is None:
        assert case.error == MalformedWrapperError.__name__
        with pytest.raises(MalformedWrapperError):
            MessageWrapper.parse(case.bytes)
        return
    found = MessageWrapper.parse(case.bytes)
    assert found == case.content
    assert list(found.headers) == list(case.content.headers)
    assert case.content.serialize() == case.bytes


@given(wrappers())
def test_parse_is_the_inverse_of_serialize(wrapper: MessageWrapper) -> None:
    """Any wrapper comes back, with its headers in order."""
    data = wrapper.serialize()
    assert MessageWrapper.check(data)
    assert MessageWrapper.parse(data) == wrapper
    assert list(MessageWrapper.parse(data).headers.items()) == list(wrapper.headers.items())


@given(wrappers(), st.data())
def test_a_prefix_is_refused(wrapper: MessageWrapper, data: st.DataObject) -> None:
    """What was cut short is malformed, wherever it was cut; and so is what has a byte more."""
    whole = wrapper.serialize()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for changed in (cut, whole + b"\0"):
        with pytest.raises(MalformedWrapperError):
            MessageWrapper.parse(changed)


@pytest.mark.parametrize(
    ("headers", "value", "error", "message"),
    [
        ({"1": b""}, b"", TypeError, "header '1': the key is of type str, allowed is int"),
        ({True: b""}, b"", TypeError, "header True: the key is of type bool, allowed is int"),
        ({2**31: b""}, b"", ValueError, "header 2147483648: the key is not an int32"),
        ({-(2**31) - 1: b""}, b"", ValueError, "header -2147483649: the key is not an int32"),
        ({1: None}, b"", TypeError, "header 1: the value is of type NoneType, allowed are bytes"),
        ({1: b""}, "v", TypeError, "the value is of type str, allowed are bytes and None"),
    ],
)
def test_serialize_refuses_what_is_no_wrapper(
    headers: dict[int, bytes], value: bytes, error: type[Exception], message: str
) -> None:
    """What the format cannot hold is told by name, before anything is written."""
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        MessageWrapper(headers, value).serialize()


# --- what is malformed -----------------------------------------------------------------------------------------------


def head(length: int, magic: int = 0) -> bytes:
    """Magic byte and length of the headers."""
    return struct.pack(">bi", magic, length)


def entry(key: int, length: int, data: bytes = b"") -> bytes:
    """One header, of a length that may be a lie."""
    return struct.pack(">ii", key, length) + data


def tail(length: int, data: bytes = b"") -> bytes:
    """The value likewise."""
    return struct.pack(">i", length) + data


MALFORMED: list[tuple[bytes, str]] = [
    (b"", "the whole is '0 bytes'; allowed: 9 bytes or more"),
    (b"\0" * 8, "the whole is '8 bytes'; allowed: 9 bytes or more"),
    (head(0, magic=1) + tail(0), "MagicByte is '1'; allowed: 0"),
    (head(0, magic=-1) + tail(0), "MagicByte is '-1'; allowed: 0"),
    (head(-1) + tail(0), "HeadersLength is '-1'; allowed: 0 to 0, the bytes that follow"),
    (head(1) + tail(0), "HeadersLength is '1'; allowed: 0 to 0, the bytes that follow"),
    (head(2**31 - 1) + tail(0), "HeadersLength is '2,147,483,647'; allowed: 0 to 0, the bytes that follow"),
    (head(7) + b"1234567" + tail(0), "Headers is '7 bytes after header 0'; allowed: 8 or more: a key and a length"),
    (
        head(9) + entry(1, 0) + b"1" + tail(0),
        "Headers is '1 bytes after header 1'; allowed: 8 or more: a key and a length",
    ),
    (head(8) + entry(1, -1) + tail(0), "ValueLength of header 1 is '-1'; allowed: 0 to 0, the bytes that follow"),
    (head(9) + entry(-9, 2, b"a") + tail(0), "ValueLength of header -9 is '2'; allowed: 0 to 1, the bytes that follow"),
    (
        head(8) + entry(1, 2**31 - 1) + tail(0),
        "ValueLength of header 1 is '2,147,483,647'; allowed: 0 to 0, the bytes that follow",
    ),
    (head(16) + entry(1, 0) + entry(1, 0) + tail(0), "Headers is 'key 1 twice'; allowed: each key once"),
    (head(0) + tail(-2), "ValueLength is '-2'; allowed: 0, or -1 for null"),
    (head(0) + tail(1), "ValueLength is '1'; allowed: 0, or -1 for null"),
    (head(0) + tail(2, b"a"), "ValueLength is '2'; allowed: 1, what follows it"),
    (head(0) + tail(0, b"a"), "ValueLength is '0'; allowed: 1, what follows it"),
    (head(0) + tail(-1, b"a"), "ValueLength is '-1'; allowed: 1, what follows it"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), MALFORMED)
def test_malformed_is_one_error(data: bytes, message: str) -> None:
    """Each way of being malformed says which field, what was found, and what is allowed; and `check` agrees."""
    assert not MessageWrapper.check(data)
    with pytest.raises(MalformedWrapperError, match=f"^malformed wrapper: {re.escape(message)}$") as caught:
        MessageWrapper.parse(data)
    assert isinstance(caught.value, TransformError)


@pytest.mark.parametrize("read", [MessageWrapper.parse, MessageWrapper.check])
def test_lengths_that_lie_allocate_nothing(read: Callable[[bytes], object]) -> None:
    """No length of 2 GiB is believed: what is refused has taken next to no memory."""
    lies = [data for data, _ in MALFORMED if b"\x7f\xff\xff\xff" in data]
    assert len(lies) == 2
    tracemalloc.start()
    try:
        for data in lies:
            try:
                read(data)
            except MalformedWrapperError:
                continue
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Bytes are a wrapper, and then just these bytes are written of it, or they are malformed."""
    for whole in (data, b"\0" + data, head(0) + tail(len(data), data)):
        try:
            found = MessageWrapper.parse(whole)
        except MalformedWrapperError:
            assert not MessageWrapper.check(whole)
        else:
            assert MessageWrapper.check(whole)
            assert found.serialize() == whole


# --- keys and names --------------------------------------------------------------------------------------------------


def test_ranges_are_those_of_the_documentation() -> None:
    """The four ranges lie end to end from 0 to the greatest int32, and no negative key is in any."""
    ranges = list(KeyRange)
    assert [each.name for each in ranges] == ["OPEN_SOURCE_CLIENTS", "OPEN_SOURCE_BROKERS", "VENDORS", "IN_HOUSE"]
    assert [each.first for each in ranges] == [0, 1_000_000, 2_000_000, 3_000_000]
    assert [each.last + 1 for each in ranges] == [1_000_000, 2_000_000, 3_000_000, 2**31]
    for each in ranges:
        assert (KeyRange.of(each.first), KeyRange.of(each.last)) == (each, each)
    assert (KeyRange.of(-1), KeyRange.of(2**31)) == (None, None)


def test_own_keys_are_of_vendors() -> None:
    """The keys that every table has lie in the range of vendors, and name all headers of references and chunks."""
    assert {KeyRange.of(key) for key in OWN_KEYS} == {KeyRange.VENDORS}
    assert len(set(OWN_KEYS.values())) == len(OWN_KEYS)
    whole = Reference("p", 1, "0" * 64, "zstd").headers()
    assert {name for name, _ in whole} <= set(OWN_KEYS.values())


@given(KEYS)
def test_each_key_has_one_name(key: int) -> None:
    """The name of a key leads back to it, whether the table has it or not."""
    assert TABLE.key(TABLE.name(key)) == key


@given(header_names() | st.builds("wrapper.header.{}".format, INT32 | st.text("0123456789-", max_size=11)))
def test_each_name_has_one_key(name: str) -> None:
    """The key of a name leads back to it, or the name has none."""
    key = TABLE.key(name)
    assert key is None or TABLE.name(key) == name


@pytest.mark.parametrize(
    ("names", "key", "reason"),
    [
        ({-1: "a"}, -1, "found -1, allowed are 0 to 2,147,483,647"),
        ({2**31: "a"}, 2**31, "found 2147483648, allowed are 0 to 2,147,483,647"),
        ({2_082_000: "a"}, 2_082_000, "keys 2082000 to 2082099 are reserved for references and chunks; use another"),
        ({2_082_099: "a"}, 2_082_099, "keys 2082000 to 2082099 are reserved for references and chunks; use another"),
        ({1: ""}, 1, "found '', allowed is a name that does not begin with wrapper.header."),
        (
            {1: "wrapper.header.2"},
            1,
            "found 'wrapper.header.2', allowed is a name that does not begin with wrapper.header.",
        ),
        ({1: "\ud800"}, 1, "found '\\ud800', allowed is a name that can be encoded as UTF-8"),
        ({1: "a", 2: "a"}, 2, "found 'a', which is already the name of key 1"),
        ({1: "large-message"}, 1, "found 'large-message', which is already the name of key 2082000"),
    ],
)  # fmt: skip
def test_table_has_one_way_in_each_direction(names: dict[int, str], key: int, reason: str) -> None:
    """What would be another header on the way back is refused."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # what it says is compared below
        HeaderTable(names)
    assert caught.value.args == (key, reason)


# --- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", record_cases(), ids=lambda case: case.name)
def test_record_vector(case: RecordCase) -> None:
    """A record and its wrapper, as another implementation has them, in both directions."""
    wrap, unwrap = Wrap(table()), Unwrap(table())
    if case.wrapped is None:
        assert case.error == WrapError.__name__
        with pytest.raises(WrapError):
            wrap.wrap(case.record)
        return
    wrapped = wrap.wrap(case.record)
    assert wrapped == Record(b"k", case.wrapped, (), 7)
    assert unwrap.unwrap(wrapped) == case.record


@given(records(value=wrappers().map(MessageWrapper.serialize)))
def test_wrap_reverses_unwrap(record: Record) -> None:
    """What was in a wrapper is in the same wrapper again, to the byte, whichever keys the table has."""
    bare = Record(record.key, record.value, (), record.timestamp)
    assert Unwrap(TABLE).wants(bare)
    assert Wrap(TABLE).wrap(Unwrap(TABLE).unwrap(bare)) == bare


@given(records(value=optional_bytes()), st.lists(st.tuples(KEYS, st.binary(max_size=20)), unique_by=lambda it: it[0]))
def test_unwrap_reverses_wrap(record: Record, held: list[tuple[int, bytes]]) -> None:
    """A record whose headers have int keys is the same again, and one with others is an error, not another record."""
    headers = tuple((TABLE.name(key), data) for key, data in held)
    fit = Record(record.key, record.value, headers, record.timestamp)
    assert Unwrap(TABLE).unwrap(Wrap(TABLE).wrap(fit)) == fit
    try:
        wrapped = Wrap(TABLE).wrap(record)
    except WrapError:
        assert record.headers
    else:
        assert Unwrap(TABLE).unwrap(wrapped) == record


@given(records(value=optional_bytes()), st.sampled_from(("fail", "drop")))
def test_size_is_that_of_the_wrapped_record(record: Record, unmapped: str) -> None:
    """The size is known before the record is wrapped, and is never too low where it cannot be."""
    wrap = Wrap(TABLE, "drop" if unmapped == "drop" else "fail")
    size = wrap.batch_of_one_bytes(record)
    try:
        assert batch_of_one_bytes(wrap.wrap(record)) == size
    except WrapError:
        assert size >= batch_of_one_bytes(Wrap(TABLE).wrap(Record(record.key, record.value)))


def test_size_counts_a_header_that_will_be_refused() -> None:
    """It is dropped only if that was asked for: a key and a length of four bytes each, and the value."""
    record = Record(None, b"v", (("unknown", b"12"),))
    assert Wrap(TABLE).batch_of_one_bytes(record) - Wrap(TABLE, "drop").batch_of_one_bytes(record) == 10


def test_unwrap_puts_headers_behind_the_records_own() -> None:
    """What the record has beside its wrapper stays, in front; key and timestamp too."""
    value = MessageWrapper({3_000_001: b"t", 9: b"n"}, b"v").serialize()
    found = Unwrap(TABLE).unwrap(Record(b"k", value, (("trace-id", b"own"), ("a", None)), 5))
    headers = (("trace-id", b"own"), ("a", None), ("trace-id", b"t"), ("wrapper.header.9", b"n"))
    assert found == Record(b"k", b"v", headers, 5)


def test_unwrap_makes_true_tombstones() -> None:
    """A wrapped null is a null value, and its headers are still there."""
    value = MessageWrapper({3_000_001: b"t"}, None).serialize()
    assert Unwrap(TABLE).unwrap(Record(b"k", value)) == Record(b"k", None, (("trace-id", b"t"),))


@pytest.mark.parametrize("plain", ["fail", "pass"])
def test_a_plain_tombstone_passes(plain: str) -> None:
    """A null is no wrapper, and no error."""
    unwrap = Unwrap(TABLE, "pass" if plain == "pass" else "fail")
    record = Record(b"k", None, (("a", b"1"),), 3)
    assert not unwrap.wants(record)
    assert unwrap.unwrap(record) == record


@pytest.mark.parametrize("value", [b"", b"plain", b"\0plain", EXAMPLE[:-1], EXAMPLE + b"\0"])
def test_plain_values_pass_where_they_may(value: bytes) -> None:
    """What is not a wrapper to the last byte is plain: it passes where that is allowed, and else is an error."""
    assert not Unwrap(plain="pass").wants(Record(None, value))
    assert Unwrap(plain="pass").wants(Record(None, EXAMPLE))
    assert Unwrap().wants(Record(None, value))
    with pytest.raises(MalformedWrapperError):
        Unwrap().unwrap(Record(None, value))


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ((("other", b"1"),), "'other': no int key has this name; add one (wrapper.header.NUMBER), or drop"),
        ((("user", None),), "'user': its value is null"),
        ((("user", b"1"), ("user", b"1")), "'user': it occurs twice"),
        ((("wrapper.header.7", b"1"),), "'wrapper.header.7': no int key has this name"),
    ],
)
def test_wrap_refuses_what_a_wrapper_cannot_hold(headers: tuple[tuple[str, bytes | None], ...], message: str) -> None:
    """Nothing is left out in silence."""
    with pytest.raises(WrapError, match=re.escape(f"a message wrapper cannot hold the header {message}")):
        Wrap(TABLE).wrap(Record(b"k", b"v", headers))


def test_wrap_drops_only_what_has_no_key() -> None:
    """Headers without a key may be left out; nulls and duplicates are errors all the same."""
    wrap = Wrap(TABLE, "drop")
    record = Record(b"k", b"v", (("other", None), ("user", b"1"), ("other", b"2")))
    assert wrap.wrap(record) == Record(b"k", MessageWrapper({7: b"1"}, b"v").serialize())
    for header in (("user", None), ("user", b"2")):
        with pytest.raises(WrapError):
            wrap.wrap(Record(b"k", b"v", (*record.headers, header)))


def test_wrap_lets_tombstones_pass_where_they_are_to() -> None:
    """A tombstone is wrapped by the marker, or stays one."""
    assert Wrap().wants(Record(b"k", None))
    assert Wrap().wrap(Record(b"k", None)).value == b"\0\0\0\0\0\xff\xff\xff\xff"
    assert not Wrap(null="pass").wants(Record(b"k", None))
    assert Wrap(null="pass").wants(Record(b"k", b""))


def many(count: int, size: int = 0) -> bytes:
    """A wrapper with so many headers, written by hand."""
    headers = b"".join(entry(key, size, b"x" * size) for key in range(count))
    return head(len(headers)) + headers + tail(0)


def test_headers_are_bounded() -> None:
    """As many headers as are allowed are read and written; one more is refused by all, and is a plain value."""
    most, over = many(MAX_HEADERS), many(MAX_HEADERS + 1)
    assert MessageWrapper.parse(most).serialize() == most
    record = Unwrap().unwrap(Record(b"k", most))
    assert Wrap().wrap(record).value == most
    with pytest.raises(
        MalformedWrapperError, match=r"^malformed wrapper: Headers is 'more than 65,536'; allowed: 65,536"
    ):
        MessageWrapper.parse(over)
    assert not Unwrap(plain="pass").wants(Record(b"k", over))
    with pytest.raises(ValueError, match=r"^65,537 headers; allowed are 65,536$"):
        MessageWrapper(dict.fromkeys(range(MAX_HEADERS + 1), b""), None).serialize()
    with pytest.raises(WrapError, match=r"'wrapper.header.-1': a wrapper has 65,536 headers at most"):
        Wrap().wrap(Record(b"k", b"", (*record.headers, ("wrapper.header.-1", b""))))


def test_many_headers_take_no_more_memory_than_is_allowed() -> None:
    """300,000 headers of eight bytes, which would take 87 MB, are refused for a fraction of that."""
    record = Record(b"k", many(300_000))
    tracemalloc.start()
    try:
        with pytest.raises(MalformedWrapperError):
            Unwrap().unwrap(record)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= Unwrap().reserve_bytes(record) < 25_000_000


@pytest.mark.parametrize(("count", "size"), [*itertools.product([1, 10_000], [0, 1, 10]), (MAX_HEADERS, 0)])
def test_reserve_covers_what_headers_take(count: int, size: int) -> None:
    """Many small headers take far more memory than their bytes; what is reserved is enough."""
    value = MessageWrapper(dict.fromkeys(range(2**30, 2**30 + count), b"x" * size), b"v" * 100_000).serialize()
    record = Record(b"k", value)
    tracemalloc.start()
    try:
        found = Unwrap().unwrap(record)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.headers) == count
    assert peak <= Unwrap().reserve_bytes(record) + 10_000


@given(values() | header_values().filter(lambda it: it is not None))
def test_reserve_never_fails(value: bytes) -> None:
    """What is malformed takes no more than its bytes could."""
    for data in (value, b"\0" + value):
        assert 0 <= Unwrap().reserve_bytes(Record(None, data)) <= 41 * len(data)
