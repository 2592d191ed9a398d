"""The message wrapper: headers and value of a record as one value, for clients that cannot write headers.

    MessageWrapper => MagicByte HeadersLength Headers ValueLength Value
      MagicByte     => int8    0
      HeadersLength => int32   bytes of Headers
      Headers       => [Key ValueLength Value]
        Key         => int32   each key once
        ValueLength => int32   0 or more: a header's value is never null
        Value       => bytes
      ValueLength   => int32   bytes of Value; -1 for a null value, the tombstone marker
      Value         => bytes

Numbers are big-endian, and nothing follows the value. Source: the wrapper alternative of KIP-82, "Wire protocol of the
Message wrapper"; design, "Wrapper" (−1, and that any bytes have one reading only). A table in the configuration
maps int keys to header names; see `HeaderTable`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from transforms.bakdata import COMPRESSION, COMPRESSION_ONE_DOT, FLAG, KEY_FLAG
from transforms.batch_size import headerless_batch_bytes
from transforms.chunk import Chunk
from transforms.errors import ConfigurationError, MalformedWrapperError, WrapError
from transforms.record import Header, Record, RecordLike
from transforms.record_format import MAX_HEADERS
from transforms.reference import KEY, VALUE
from transforms.text import is_utf8

__all__ = ["MAX_HEADERS", "OWN_KEYS", "UNMAPPED_PREFIX", "HeaderTable", "KeyRange", "MessageWrapper", "Unwrap", "Wrap"]

UNMAPPED_PREFIX = "wrapper.header."
"""The prefix of the name of a header that is not in the table; the int key follows it."""

_MAGIC = 0
_NULL = -1
_LEAST_KEY, _MOST = -(2**31), 2**31 - 1
_START = struct.Struct(">bi")
_ENTRY = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_BARE_BYTES = _START.size + _LENGTH.size
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_UNMAPPED = re.compile(r"wrapper\.header\.(0|-?[1-9][0-9]{0,9})", re.ASCII)
_NO_KEY = "no int key has this name; add one (wrapper.header.NUMBER), or drop the header (wrap.on.unmapped.header)"
_HEADER_COST = 320  # bytes of memory of a header in addition to its value, at most (CPython 3.11, measured: 290)


class KeyRange(Enum):
    """The four ranges of int keys in KIP-82, by owner; the bounds are ours. Negative keys have no range.

    Attributes:
        first: the least key.
        last: the greatest.
    """

    OPEN_SOURCE_CLIENTS = (0, 999_999)
    OPEN_SOURCE_BROKERS = (1_000_000, 1_999_999)
    VENDORS = (2_000_000, 2_999_999)
    IN_HOUSE = (3_000_000, _MOST)

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last

    @classmethod
    def of(cls, key: int) -> KeyRange | None:
        """The range of a key; None for a negative one."""
        return next((each for each in cls if each.first <= key <= each.last), None)


@dataclass(frozen=True, slots=True)
class MessageWrapper:
    """The content of a wrapper.

    Attributes:
        headers: values by int key, in order.
        value: the value; None is the tombstone marker, b"" is not.
    """

    headers: Mapping[int, bytes]
    value: bytes | None

    def serialize(self) -> bytes:
        """The wrapper as bytes, headers in the order of the mapping.

        Raises:
            TypeError: a key is not an int, or a value is not bytes.
            ValueError: a key or a length is not an int32, or there are more than `MAX_HEADERS`.
        """
        if len(self.headers) > MAX_HEADERS:
            raise ValueError(f"{len(self.headers):,} headers; allowed are {MAX_HEADERS:,}")
        parts: list[bytes] = []
        size = 0
        for key, data in self.headers.items():
            _check_header(key, data)
            parts += (_ENTRY.pack(key, len(data)), data)
            size += _ENTRY.size + len(data)
        value = b"" if self.value is None else self.value
        if not isinstance(value, bytes):
            raise TypeError(f"the value is of type {type(value).__name__}, allowed are bytes and None")
        if max(size, len(value)) > _MOST:
            raise ValueError(f"headers of {size:,} bytes and a value of {len(value):,}; allowed are {_MOST:,} each")
        length = _NULL if self.value is None else len(value)
        return b"".join((_START.pack(_MAGIC, size), *parts, _LENGTH.pack(length), value))

    @classmethod
    def parse(cls, data: bytes) -> MessageWrapper:
        """The wrapper in the bytes. `parse(data).serialize()` is `data` again.

        No length is used before it is checked against the bytes that exist.

        Raises:
            MalformedWrapperError: the bytes violate the format.
        """
        entries, end = _layout(data)
        length = _LENGTH.unpack_from(data, end)[0]
        value = None if length == _NULL else bytes(data[end + _LENGTH.size :])
        return cls({key: bytes(data[start:stop]) for key, start, stop in entries}, value)

    @staticmethod
    def check(data: bytes) -> bool:
        """Whether `parse` accepts the bytes, without a copy. Most other values cost one comparison."""
        if len(data) < _BARE_BYTES or data[0] != _MAGIC:
            return False
        try:
            _layout(data)
        except MalformedWrapperError:
            return False
        return True


def _check_header(key: object, data: object) -> None:
    if not isinstance(key, int) or isinstance(key, bool):
        raise TypeError(f"header {key!r}: the key is of type {type(key).__name__}, allowed is int")
    if not _LEAST_KEY <= key <= _MOST:
        raise ValueError(f"header {key}: the key is not an int32")
    if not isinstance(data, bytes):
        raise TypeError(f"header {key}: the value is of type {type(data).__name__}, allowed are bytes")


def _layout(data: bytes) -> tuple[list[tuple[int, int, int]], int]:
    """Key, start and end of each header, and the position of the value's length."""
    size = len(data)
    if size < _BARE_BYTES:
        raise MalformedWrapperError("the whole", f"{size} bytes", f"{_BARE_BYTES} bytes or more")
    magic, headers_length = _START.unpack_from(data)
    if magic != _MAGIC:
        raise MalformedWrapperError("MagicByte", str(magic), str(_MAGIC))
    if not 0 <= headers_length <= size - _BARE_BYTES:
        raise MalformedWrapperError(
            "HeadersLength", f"{headers_length:,}", f"0 to {size - _BARE_BYTES:,}, the bytes that follow"
        )
    end = _START.size + headers_length
    entries = list(_entries(data, end))
    length, rest = _LENGTH.unpack_from(data, end)[0], size - end - _LENGTH.size
    if length != rest and not (length == _NULL and rest == 0):
        allowed = "0, or -1 for null" if rest == 0 else f"{rest:,}, what follows it"
        raise MalformedWrapperError("ValueLength", f"{length:,}", allowed)
    return entries, end


def _entries(data: bytes, end: int) -> Iterator[tuple[int, int, int]]:
    at = _START.size
    seen: set[int] = set()
    while at < end:
        if len(seen) == MAX_HEADERS:
            raise MalformedWrapperError("Headers", f"more than {MAX_HEADERS:,}", f"{MAX_HEADERS:,}")
        start = at + _ENTRY.size
        if start > end:
            found = f"{end - at} bytes after header {len(seen)}"
            raise MalformedWrapperError("Headers", found, f"{_ENTRY.size} or more: a key and a length")
        key, length = _ENTRY.unpack_from(data, at)
        if not 0 <= length <= end - start:
            allowed = f"0 to {end - start:,}, the bytes that follow"
            raise MalformedWrapperError(f"ValueLength of header {key}", f"{length:,}", allowed)
        if key in seen:
            raise MalformedWrapperError("Headers", f"key {key} twice", "each key once")
        seen.add(key)
        at = start + length
        yield key, start, at


def _numbered(first: int, names: tuple[str, ...]) -> dict[int, str]:
    return {first + i: name for i, name in enumerate(names)}


_FIRST_OWN, _LAST_OWN = 2_082_000, 2_082_099  # of vendors; 82 is the number of the KIP

OWN_KEYS: Mapping[int, str] = {
    **_numbered(2_082_000, (VALUE.flag, *VALUE.details)),
    **_numbered(2_082_010, (KEY.flag, *KEY.details)),
    **_numbered(2_082_020, tuple(name for name, _ in Chunk("-", 0, 1, 1, "-").headers())),
    **_numbered(2_082_030, (FLAG, KEY_FLAG, COMPRESSION, COMPRESSION_ONE_DOT)),
}
"""The int keys of the headers of this project and of bakdata's serializer; every table has them."""


@dataclass(frozen=True, slots=True)
class HeaderTable:
    """The names of headers by int key. It is unambiguous in both directions, so a round trip changes nothing.

    A key that is neither in `names` nor in `OWN_KEYS` has the name `wrapper.header.` and the number.

    Args:
        names: the configured ones, by key.

    Raises:
        ValueError: a key may not be named; or a name is empty, not UTF-8, used twice, one of ours, or begins with
            `wrapper.header.`. `args` are the key and the reason.
    """

    names: Mapping[int, str] = field(default_factory=dict)
    _by_key: dict[int, str] = field(init=False, repr=False, compare=False)
    _by_name: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {name: key for key, name in OWN_KEYS.items()}
        for key, name in self.names.items():
            if KeyRange.of(key) is None:
                raise ValueError(key, f"found {key}, allowed are 0 to {_MOST:,}")
            if _FIRST_OWN <= key <= _LAST_OWN:
                raise ValueError(
                    key, f"keys {_FIRST_OWN} to {_LAST_OWN} are reserved for references and chunks; use another"
                )
            if not name or name.startswith(UNMAPPED_PREFIX):
                raise ValueError(key, f"found {name!r}, allowed is a name that does not begin with {UNMAPPED_PREFIX}")
            if not is_utf8(name):
                raise ValueError(key, f"found {name!r}, allowed is a name that can be encoded as UTF-8")
            if name in by_name:
                raise ValueError(key, f"found {name!r}, which is already the name of key {by_name[name]}")
            by_name[name] = key
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "_by_key", {**OWN_KEYS, **self.names})

    @classmethod
    def configured(cls, keys: Mapping[str, str]) -> HeaderTable:
        """The table of the properties of a configuration: `wrapper.header.3000001` and the header's name.

        Raises:
            ConfigurationError: the text after `wrapper.header.` is not a valid number, or the table is ambiguous.
        """
        names: dict[int, str] = {}
        for key, name in keys.items():
            number = key.removeprefix(UNMAPPED_PREFIX)
            if not _NUMBER.fullmatch(number):
                allowed = f"a number from 0 to {_MOST:,}, without leading zeros"
                raise ConfigurationError(key, f"found {number!r}, allowed after {UNMAPPED_PREFIX} is {allowed}")
            names[int(number)] = name
        try:
            return cls(names)
        except ValueError as exc:
            number, reason = exc.args
            raise ConfigurationError(f"{UNMAPPED_PREFIX}{number}", reason) from exc

    def name(self, key: int) -> str:
        """The header name of an int key; any int32 has one."""
        return self._by_key.get(key) or f"{UNMAPPED_PREFIX}{key}"

    def key(self, name: str) -> int | None:
        """The int key of a header name; None if no key has this name."""
        key = self._by_name.get(name)
        if key is None and (match := _UNMAPPED.fullmatch(name)) is not None:
            number = int(match[1])
            key = number if _LEAST_KEY <= number <= _MOST and number not in self._by_key else None
        return key


@dataclass(frozen=True, slots=True)
class Unwrap:
    """Removes the wrapper: appends its headers to the record's own, and replaces it with its value.

    A tombstone is not a wrapper, and is not changed.

    Attributes:
        table: header names by int key.
        plain: what to do with a value that is not a wrapper: an error of the record, or return it unchanged.
    """

    table: HeaderTable = field(default_factory=HeaderTable)
    plain: Literal["fail", "pass"] = "fail"

    def wants(self, record: RecordLike) -> bool:
        """Whether `unwrap` must be called."""
        value = record.value
        return value is not None and (self.plain == "fail" or MessageWrapper.check(value))

    def reserve_bytes(self, record: RecordLike) -> int:
        """The memory that `unwrap` may need in addition to the record; small headers need far more than their bytes."""
        value = record.value or b""
        if len(value) < _BARE_BYTES:
            return 0
        headers_length: int = min(max(0, _START.unpack_from(value)[1]), len(value))
        count = min(headers_length // _ENTRY.size, MAX_HEADERS)
        return len(value) + _HEADER_COST * count

    def unwrap(self, record: RecordLike) -> Record:
        """The record that was wrapped; a true tombstone, with its headers, if its value was null.

        Raises:
            MalformedWrapperError: the value is not a wrapper.
        """
        if record.value is None:
            return Record(record.key, None, record.headers, record.timestamp)
        wrapper = MessageWrapper.parse(record.value)
        name = self.table.name
        headers: tuple[Header, ...] = tuple((name(key), data) for key, data in wrapper.headers.items())
        return Record(record.key, wrapper.value, (*record.headers, *headers), record.timestamp)


@dataclass(frozen=True, slots=True)
class Wrap:
    """Puts headers and value into a wrapper, which becomes the value of a record without headers.

    Attributes:
        table: header names by int key.
        unmapped: what to do with a header without an int key: an error of the record, or omit it.
        null: what to do with a tombstone: wrap it with the marker, or return it unchanged, with its headers.
    """

    table: HeaderTable = field(default_factory=HeaderTable)
    unmapped: Literal["fail", "drop"] = "fail"
    null: Literal["wrap", "pass"] = "wrap"

    def wants(self, record: RecordLike) -> bool:
        """Whether to wrap the record."""
        return record.value is not None or self.null == "wrap"

    def wrap(self, record: RecordLike) -> Record:
        """The record with a wrapper as its value.

        Raises:
            WrapError: a wrapper cannot hold a header: its value is null, its name occurs twice or has no int key, or
                there are more than `MAX_HEADERS`.
        """
        headers: dict[int, bytes] = {}
        for name, data in record.headers:
            key = self.table.key(name)
            if key is None:
                if self.unmapped == "drop":
                    continue
                raise WrapError(name, _NO_KEY)
            if data is None:
                raise WrapError(name, "its value is null")
            if key in headers:
                raise WrapError(name, "it occurs twice")
            if len(headers) == MAX_HEADERS:
                raise WrapError(name, f"a wrapper has {MAX_HEADERS:,} headers at most")
            headers[key] = data
        return Record(record.key, MessageWrapper(headers, record.value).serialize(), (), record.timestamp)

    def batch_of_one_bytes(self, record: RecordLike) -> int:
        """Bytes of a batch with `wrap(record)` alone; also if that would be refused."""
        size = _BARE_BYTES + len(record.value or b"")
        for name, data in record.headers:
            if self.unmapped == "fail" or self.table.key(name) is not None:
                size += _ENTRY.size + len(data or b"")
        return headerless_batch_bytes(record.key, size)
