"""The reference record: a path in place of the value, and headers that describe the payload.

    value                        the full path, UTF-8, as returned by the store's `publish`
    header large-message         "true"
    header .size                 length of the original value in bytes, decimal
    header .checksum             "sha256:" and 64 lower-case hex digits, of the original value
    header .compression          gzip, snappy, lz4 or zstd; absent if the stored bytes are the value itself
    header .encryption           "aes-256-gcm", with three more (`Encryption`); absent if they are not encrypted
    header .signature            see `transforms/signing.py`; absent if references are not signed

The checksum of an encrypted payload is that of the stored bytes: "sha256-stored:" and 64 digits. It does not
reveal which values are equal, and readers without support for encryption refuse the reference.

An offloaded key has the same headers, named `large-message-key`, but none of encryption; a record may have both.

Source: KIP-1159, "Serializer" and "Deserializer" (the path and the first header); design, "Reference" (the others).
These headers come together after the record's own, `large-message` first. A reader can therefore distinguish them
from headers of these names in the original record, and restore it exactly, even if it was offloaded more than once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transforms.compression import CODECS, Codec
from transforms.errors import MalformedReferenceError
from transforms.keyring import CIPHER
from transforms.record import Header, RecordLike


@dataclass(frozen=True, slots=True)
class Field:
    """The part of a record that a reference replaces, and the names of its headers.

    Attributes:
        name: `value` or `key`.
        flag: the header with the value `true`.
        size, checksum, compression, signature: the headers after it.
        encryption: the four headers of an encrypted payload: cipher, key, nonce and data key; empty if it cannot be
            encrypted.
    """

    name: str
    flag: str
    size: str
    checksum: str
    compression: str
    signature: str
    encryption: tuple[str, ...] = ()

    @property
    def details(self) -> tuple[str, ...]:
        """The names of the headers after the flag; wrappers number them in this order, so new ones come last."""
        return self.size, self.checksum, self.compression, self.signature, *self.encryption


VALUE = Field(
    "value",
    flag="large-message",
    size="large-message.size",
    checksum="large-message.checksum",
    compression="large-message.compression",
    signature="large-message.signature",
    encryption=(
        "large-message.encryption",
        "large-message.encryption.key",
        "large-message.encryption.nonce",
        "large-message.encryption.data-key",
    ),
)
KEY = Field(
    "key",
    flag="large-message-key",
    size="large-message-key.size",
    checksum="large-message-key.checksum",
    compression="large-message-key.compression",
    signature="large-message-key.signature",
)
_TRUE = b"true"

# The longest path that our stores can return: PATH_MAX (4,096) percent-encoded would be 12,288.
MAX_PATH_BYTES = 16_384
_PATH_ALLOWED = f"a path in UTF-8 of 1 to {MAX_PATH_BYTES:,} bytes"

_SIZE_FORM = re.compile(rb"[0-9]{1,19}", re.ASCII)
_CHECKSUM_FORM = re.compile(rb"sha256:([0-9a-f]{64})", re.ASCII)
_STORED_CHECKSUM_FORM = re.compile(rb"sha256-stored:([0-9a-f]{64})", re.ASCII)
# Salt and wrapped key have 80 bytes; they are followed by what a key service needs, 6,144 bytes at most with AWS KMS.
_ENCRYPTION_FORMS = (
    (re.compile(CIPHER.encode(), re.ASCII), CIPHER),
    (re.compile(rb"[a-zA-Z0-9._:/-]{1,256}", re.ASCII), "1 to 256 characters of [a-zA-Z0-9._:/-]"),
    (re.compile(rb"[0-9a-f]{24}", re.ASCII), "24 lower-case hex digits"),
    (re.compile(rb"(?:[0-9a-f]{2}){80,6272}", re.ASCII), "160 to 12,544 lower-case hex digits"),
)
_SIGNATURE_FORM = re.compile(rb"[a-z0-9-]{1,20}:[0-9a-f]{8}:[0-9a-f]{64,128}", re.ASCII)
_SHOWN_BYTES = 100  # of a header's value in a message; a checksum has 78


def is_reference(headers: Sequence[Header], part: Field = VALUE) -> bool:
    """Whether the last `large-message` header (for a key: `large-message-key`) is `true`."""
    for name, value in reversed(headers):
        if name == part.flag:
            return value == _TRUE
    return False


@dataclass(frozen=True, slots=True)
class Encryption:
    """How a payload was encrypted; `transforms/encryption.py` has the meaning of the bytes.

    Attributes:
        key_id: the name of the key that wraps the data key.
        nonce: of the payload, 12 bytes.
        data_key: the wrapped data key, with what is needed to unwrap it.
    """

    key_id: str
    nonce: bytes
    data_key: bytes

    def headers(self, part: Field) -> tuple[Header, ...]:
        """The headers of a reference for it."""
        values = CIPHER, self.key_id, self.nonce.hex(), self.data_key.hex()
        return tuple((name, value.encode()) for name, value in zip(part.encryption, values, strict=True))

    @classmethod
    def read(cls, headers: Mapping[str, bytes | None], part: Field) -> Encryption | None:
        """From the headers of a reference; None if it has none of them.

        Raises:
            MalformedReferenceError: one violates the format, or one of the others is missing.
        """
        if not any(name in headers for name in part.encryption):
            return None
        found: list[str] = []
        for name, (form, allowed) in zip(part.encryption, _ENCRYPTION_FORMS, strict=True):
            value = headers.get(name)
            if value is None or not form.fullmatch(value):
                raise MalformedReferenceError(name, _text(value) if name in headers else "absent", allowed)
            found.append(value.decode())
        _, key_id, nonce, data_key = found
        return cls(key_id, bytes.fromhex(nonce), bytes.fromhex(data_key))


@dataclass(frozen=True, slots=True)
class Reference:
    """The description of a payload in a reference record.

    Attributes:
        path: the full path in the store.
        size: bytes of the original value or key; None if there is no header (the format of KIP-1159).
        checksum: SHA-256, 64 hex digits: of the original, or of the stored bytes if they are encrypted; None without
            a header.
        codec: the compression of the stored bytes, before they were encrypted; None if they are the original.
        encryption: None if they are not encrypted.
        signature: its header; None if it is not signed. Reading does not verify it.
    """

    path: str
    size: int | None = None
    checksum: str | None = None
    codec: Codec | None = None
    signature: str | None = None
    encryption: Encryption | None = None

    def headers(self, part: Field = VALUE) -> tuple[Header, ...]:
        """The headers to append to the record's own."""
        headers: list[Header] = [(part.flag, _TRUE)]
        if self.size is not None:
            headers.append((part.size, b"%d" % self.size))
        if self.checksum is not None:
            algorithm = b"sha256:" if self.encryption is None else b"sha256-stored:"
            headers.append((part.checksum, algorithm + self.checksum.encode()))
        if self.codec is not None:
            headers.append((part.compression, self.codec.encode()))
        if self.encryption is not None:
            headers += self.encryption.headers(part)
        if self.signature is not None:
            headers.append((part.signature, self.signature.encode()))
        return tuple(headers)

    def value(self) -> bytes:
        """The bytes in place of the value or the key.

        Raises:
            MalformedReferenceError: no reader accepts the path.
        """
        try:
            value = self.path.encode()
        except UnicodeEncodeError as exc:
            raise MalformedReferenceError("value", self.path, _PATH_ALLOWED) from exc
        return _checked_path(value, VALUE)

    @classmethod
    def parse(cls, record: RecordLike) -> tuple[Reference, tuple[Header, ...]]:
        """The reference in place of a record's value, and the record's own headers.

        Raises:
            MalformedReferenceError: `is_reference` is False, or the value or a header violates the format.
        """
        return cls.read(record.value, record.headers)

    @classmethod
    def read(
        cls, data: bytes | None, headers: Sequence[Header], part: Field = VALUE
    ) -> tuple[Reference, tuple[Header, ...]]:
        """As `parse`, for a value or a key.

        Args:
            data: the value or the key of the record.
            headers: of the record.
            part: which of the two `data` is.
        """
        if not is_reference(headers, part):
            raise MalformedReferenceError(part.flag, "absent or another", "true")
        ours, own = _partition(headers, part)
        size = _size(part.size, ours[part.size]) if part.size in ours else None
        codec = _codec(part.compression, ours[part.compression]) if part.compression in ours else None
        if codec is not None and size is None:
            raise MalformedReferenceError(part.size, "absent", f"a size, which {part.compression} requires")
        encryption = Encryption.read(ours, part)
        if encryption is not None:
            for name in (part.size, part.checksum):
                if name not in ours:
                    raise MalformedReferenceError(name, "absent", "present, as the payload is encrypted")
        encrypted = encryption is not None
        checksum = _checksum(part.checksum, ours[part.checksum], encrypted) if part.checksum in ours else None
        signature = _signature(part.signature, ours[part.signature]) if part.signature in ours else None
        return cls(parse_path(data, part), size, checksum, codec, signature, encryption), own


def _partition(headers: Sequence[Header], part: Field) -> tuple[dict[str, bytes | None], tuple[Header, ...]]:
    """The headers of the reference, and the others.

    The last flag is the reference's, and so is the first header of each other name after it, with any headers between.
    If none follows, another program wrote it (KIP-1159 has only the first header, and guarantees no order).
    """
    flag = next(i for i in reversed(range(len(headers))) if headers[i][0] == part.flag)
    ours: dict[str, int] = {}
    for i in range(flag + 1, len(headers)):
        if headers[i][0] in part.details:
            ours.setdefault(headers[i][0], i)
    ours = ours or _loose(headers[:flag], part)
    taken = {flag, *ours.values()}
    details = {name: headers[i][1] for name, i in ours.items()}
    return details, tuple(header for i, header in enumerate(headers) if i not in taken)


def _loose(headers: Sequence[Header], part: Field) -> dict[str, int]:
    """The last header of each name outside an earlier reference: a flag, and directly after it each name once."""
    loose: dict[str, int] = {}
    group: set[str] | None = None
    for i, (name, _) in enumerate(headers):
        if name == part.flag:
            group = set()
        elif name not in part.details:
            group = None
        elif group is not None and name not in group:
            group.add(name)
        else:
            group = None
            loose[name] = i
    return loose


def parse_path(data: bytes | None, part: Field = VALUE) -> str:
    """The path in a value or a key.

    Raises:
        MalformedReferenceError: no store returns such a path.
    """
    if data is None:
        raise MalformedReferenceError(part.name, "null", _PATH_ALLOWED)
    try:
        return _checked_path(data, part).decode()
    except UnicodeDecodeError as exc:
        raise MalformedReferenceError(part.name, f"not UTF-8 at byte {exc.start}", _PATH_ALLOWED) from exc


def _checked_path(data: bytes, part: Field) -> bytes:
    if not 0 < len(data) <= MAX_PATH_BYTES:
        raise MalformedReferenceError(part.name, f"{len(data):,} bytes", _PATH_ALLOWED)
    return data


def _size(name: str, value: bytes | None) -> int:
    if value is None or not _SIZE_FORM.fullmatch(value):
        raise MalformedReferenceError(name, _text(value), "a decimal number of bytes, 1 to 19 digits")
    return int(value)


def _checksum(name: str, value: bytes | None, encrypted: bool) -> str:  # noqa: FBT001
    form = _STORED_CHECKSUM_FORM if encrypted else _CHECKSUM_FORM
    match = None if value is None else form.fullmatch(value)
    if match is None:
        algorithm = "sha256-stored:" if encrypted else "sha256:"
        raise MalformedReferenceError(name, _text(value), f"{algorithm} and 64 lower-case hex digits")
    return match[1].decode()


def _signature(name: str, value: bytes | None) -> str:
    if value is None or not _SIGNATURE_FORM.fullmatch(value):
        raise MalformedReferenceError(name, _text(value), "hmac-sha256, the key's name and the digest, in hex")
    return value.decode()


def _codec(name: str, value: bytes | None) -> Codec:
    for codec in CODECS:
        if value == codec.encode():
            return codec
    raise MalformedReferenceError(name, _text(value), ", ".join(CODECS))


def _text(value: bytes | None) -> str:
    if value is None:
        return "null"
    if len(value) > _SHOWN_BYTES:
        return f"{value[:_SHOWN_BYTES].decode(errors='replace')}… ({len(value):,} bytes)"
    return value.decode(errors="replace")
