"""The reference record: a path in place of a value, and headers that say what lies there.

    value                        the full path, UTF-8, as the store's `publish` returned it
    header large-message         "true"
    header .size                 length of the original value in bytes, decimal
    header .checksum             "sha256:" and 64 lower-case hex digits, of the original value
    header .compression          gzip, snappy, lz4 or zstd; absent where the stored bytes are the value itself

Source: seed 000, "Serializer" and "Deserializer" (the path and the first header); design, "Reference" (the others).
The four headers stand together behind the record's own, `large-message` first. So they can be told from headers of the
same name that the original record had, and taking them off restores it exactly, however often it was done.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from transforms.compression import CODECS, Codec
from transforms.errors import MalformedReferenceError
from transforms.record import Header, RecordLike

__all__ = ["LARGE_MESSAGE", "MAX_PATH_BYTES", "Reference", "is_reference"]

LARGE_MESSAGE = "large-message"
_SIZE = "large-message.size"
_CHECKSUM = "large-message.checksum"
_COMPRESSION = "large-message.compression"
_DETAILS = frozenset({_SIZE, _CHECKSUM, _COMPRESSION})
_TRUE = b"true"

# The longest path that a store of ours can return: PATH_MAX (4,096) percent-encoded would be 12,288.
MAX_PATH_BYTES = 16_384
_PATH_ALLOWED = f"a path in UTF-8 of 1 to {MAX_PATH_BYTES:,} bytes"

_SIZE_FORM = re.compile(rb"[0-9]{1,19}", re.ASCII)
_CHECKSUM_FORM = re.compile(rb"sha256:([0-9a-f]{64})", re.ASCII)
_SHOWN_BYTES = 100  # of a header's value in a message; a checksum has 71


def is_reference(headers: Sequence[Header]) -> bool:
    """True where the last `large-message` header says `true`."""
    for name, value in reversed(headers):
        if name == LARGE_MESSAGE:
            return value == _TRUE
    return False


@dataclass(frozen=True, slots=True)
class Reference:
    """What a reference record says of its payload.

    Attributes:
        path: the full path in the store.
        size: bytes of the original value; None where the writer did not say (the seed's own format).
        checksum: SHA-256 of the original value, 64 hex digits; None likewise.
        codec: how the stored bytes are compressed; None where they are the value itself.
    """

    path: str
    size: int | None = None
    checksum: str | None = None
    codec: Codec | None = None

    def headers(self) -> tuple[Header, ...]:
        """The headers that go behind the record's own."""
        headers: list[Header] = [(LARGE_MESSAGE, _TRUE)]
        if self.size is not None:
            headers.append((_SIZE, b"%d" % self.size))
        if self.checksum is not None:
            headers.append((_CHECKSUM, b"sha256:" + self.checksum.encode()))
        if self.codec is not None:
            headers.append((_COMPRESSION, self.codec.encode()))
        return tuple(headers)

    def value(self) -> bytes:
        """The value of the record.

        Raises:
            MalformedReferenceError: no reader would take the path.
        """
        try:
            value = self.path.encode()
        except UnicodeEncodeError as exc:
            raise MalformedReferenceError("value", self.path, _PATH_ALLOWED) from exc
        return _checked_path(value)

    @classmethod
    def parse(cls, record: RecordLike) -> tuple[Reference, tuple[Header, ...]]:
        """The reference that a record holds, and the record's own headers without those of the reference.

        Raises:
            MalformedReferenceError: `is_reference` is False, or the value or a header is not as above.
        """
        if not is_reference(record.headers):
            raise MalformedReferenceError(LARGE_MESSAGE, "absent or another", "true")
        ours, own = _partition(record.headers)
        size = _size(ours[_SIZE]) if _SIZE in ours else None
        codec = _codec(ours[_COMPRESSION]) if _COMPRESSION in ours else None
        if codec is not None and size is None:
            raise MalformedReferenceError(_SIZE, "absent", f"a size, which {_COMPRESSION} needs as its bound")
        checksum = _checksum(ours[_CHECKSUM]) if _CHECKSUM in ours else None
        return cls(_path(record.value), size, checksum, codec), own


def _partition(headers: Sequence[Header]) -> tuple[dict[str, bytes | None], tuple[Header, ...]]:
    """The reference's headers and the others.

    Those that follow a `large-message` without a gap, each name once, belong to it, and the last such group is the
    reference's. Where nothing follows the last `large-message`, the writer was another one (seed 000 knows just the
    first header, and promises no order): then the last of each name counts that is in no earlier group.
    """
    flag = 0
    group: dict[str, int] = {}
    loose: dict[str, int] = {}
    grouping = False
    for i, (name, _) in enumerate(headers):
        if name == LARGE_MESSAGE:
            flag, group, grouping = i, {}, True
        elif name not in _DETAILS:
            grouping = False
        elif grouping and name not in group:
            group[name] = i
        else:
            grouping = False
            loose[name] = i
    ours = group or loose
    taken = {flag, *ours.values()}
    details = {name: headers[i][1] for name, i in ours.items()}
    return details, tuple(header for i, header in enumerate(headers) if i not in taken)


def _path(value: bytes | None) -> str:
    if value is None:
        raise MalformedReferenceError("value", "null", _PATH_ALLOWED)
    try:
        return _checked_path(value).decode()
    except UnicodeDecodeError as exc:
        raise MalformedReferenceError("value", f"not UTF-8 at byte {exc.start}", _PATH_ALLOWED) from exc


def _checked_path(value: bytes) -> bytes:
    if not 0 < len(value) <= MAX_PATH_BYTES:
        raise MalformedReferenceError("value", f"{len(value):,} bytes", _PATH_ALLOWED)
    return value


def _size(value: bytes | None) -> int:
    if value is None or not _SIZE_FORM.fullmatch(value):
        raise MalformedReferenceError(_SIZE, _text(value), "a decimal number of bytes, 1 to 19 digits")
    return int(value)


def _checksum(value: bytes | None) -> str:
    match = None if value is None else _CHECKSUM_FORM.fullmatch(value)
    if match is None:
        raise MalformedReferenceError(_CHECKSUM, _text(value), "sha256: and 64 lower-case hex digits")
    return match[1].decode()


def _codec(value: bytes | None) -> Codec:
    for codec in CODECS:
        if value == codec.encode():
            return codec
    raise MalformedReferenceError(_COMPRESSION, _text(value), ", ".join(CODECS))


def _text(value: bytes | None) -> str:
    if value is None:
        return "null"
    if len(value) > _SHOWN_BYTES:
        return f"{value[:_SHOWN_BYTES].decode(errors='replace')}… ({len(value):,} bytes)"
    return value.decode(errors="replace")
