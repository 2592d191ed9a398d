"""Encrypted payloads: without the key, even the owner of the store can neither read nor replace one.

    stored bytes                 AES-256-GCM with the data key and the nonce, of the value or the compressed value;
                                 followed by the tag of 16 bytes
    header .encryption           "aes-256-gcm"
    header .encryption.key       the id of the master key: a name, or the ARN of a key of AWS KMS
    header .encryption.nonce     12 bytes in hex
    header .encryption.data-key  in hex: 32 bytes of salt, the data key wrapped (48 bytes), and the token of the master
                                 key: nothing for a key of the configuration, the encrypted key for one of AWS KMS

Each payload has a separate random data key, nonce and salt. The data key is in the record, wrapped, and bound
to path, size and checksum of the payload, so the record determines which key decrypts a stored object. If a payload is
published again with another data key, references to the first one remain valid, because the name of an object is
derived from its encrypted bytes. docs/reference-security.md, "Encryption", specifies the bytes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from transforms.compression import Codec, sized_buffer
from transforms.errors import EncryptionError, PayloadCorruptError
from transforms.keyring import CIPHER, KEY_ID_NAME, KEY_NAME, KMS_KEY_NAME, TAG_BYTES, Keyring, MasterKey
from transforms.reference import Encryption, Reference

DATA_KEY_RANDOM_BYTES = 32 + 12 + 32
"""The length of the argument of `DataKey.of`."""

_KEY_BYTES = 32
_NONCE_BYTES = 12
_SALT_BYTES = 32
_WRAPPED_BYTES = _KEY_BYTES + TAG_BYTES
_PAYLOAD_CONTEXT = b"wideload payload 1"
_DATA_KEY_CONTEXT = b"wideload data key 1"
_PIECE_BYTES = 1_048_576  # the cipher holds Python's lock; other threads have their turn between two pieces


@dataclass(frozen=True, slots=True)
class DataKey:
    """The secrets of one payload. Never used for two.

    Attributes:
        key: encrypts the payload.
        nonce: of the payload.
        salt: of the key that wraps `key`.
    """

    key: bytes = field(repr=False)
    nonce: bytes
    salt: bytes

    @classmethod
    def of(cls, random: bytes) -> DataKey:
        """From `DATA_KEY_RANDOM_BYTES` of the operating system's generator."""
        assert len(random) == DATA_KEY_RANDOM_BYTES
        return cls(random[:32], random[32:44], random[44:])


def stored_bytes(reference: Reference, plain: int) -> int:
    """The length of the stored bytes of a reference, from their length without encryption."""
    return plain if reference.encryption is None else plain + TAG_BYTES


def encrypt(data: bytes, size: int, codec: Codec | None, secrets: DataKey) -> bytes:
    """The bytes to store.

    Args:
        data: a value, or a compressed value.
        size: bytes of the value.
        codec: of `data`.
        secrets: of this payload alone.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    context = Cipher(algorithms.AES256(secrets.key), modes.GCM(secrets.nonce)).encryptor()
    context.authenticate_additional_data(_payload_context(size, codec))
    buffer = sized_buffer(len(data) + TAG_BYTES)
    with buffer.getbuffer() as view:
        for at, piece in _pieces(data, len(data)):
            view[at : at + len(piece)] = context.update(piece)
        context.finalize()
        view[len(data) :] = context.tag
    return buffer.getvalue()


def check_stored(reference: Reference, stored: bytes) -> None:
    """Compares the stored bytes of an encrypted payload with size and checksum. Needs no key.

    Raises:
        PayloadCorruptError: the bytes differ.
    """
    assert reference.size is not None
    most = reference.size + TAG_BYTES
    if len(stored) > most if reference.codec is not None else len(stored) != most:
        expected = f"{'at most ' if reference.codec is not None else ''}{most:,} bytes, encrypted"
        raise PayloadCorruptError(reference.path, "size", expected=expected, found=f"{len(stored):,} bytes")
    found = hashlib.sha256(stored).hexdigest()
    if found != reference.checksum:
        raise PayloadCorruptError(reference.path, "checksum", expected=str(reference.checksum), found=found)


def decrypt(reference: Reference, stored: bytes, data_key: bytes) -> bytes:
    """The decrypted and verified bytes: the value, or the compressed value.

    Raises:
        PayloadCorruptError: the stored bytes are not those of the reference.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    check_stored(reference, stored)
    assert reference.encryption is not None
    assert reference.size is not None
    length = len(stored) - TAG_BYTES
    if length < 0:
        raise _undecryptable(reference)
    mode = modes.GCM(reference.encryption.nonce, stored[length:])
    context = Cipher(algorithms.AES256(data_key), mode).decryptor()
    context.authenticate_additional_data(_payload_context(reference.size, reference.codec))
    buffer = sized_buffer(length)
    with buffer.getbuffer() as view:
        for at, piece in _pieces(stored, length):
            view[at : at + len(piece)] = context.update(piece)
    try:
        context.finalize()
    except InvalidTag as exc:
        raise _undecryptable(reference) from exc
    return buffer.getvalue()


def wrapped(reference: Reference, secrets: DataKey, master: MasterKey) -> Reference:
    """The reference with the wrapped data key, bound to its path, size, checksum and codec."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    bare = replace(reference, encryption=Encryption(master.id, secrets.nonce, b""))
    key = AESGCM(_wrapping_key(master, secrets.salt))
    sealed = key.encrypt(bytes(_NONCE_BYTES), secrets.key, _data_key_context(bare, master.token))
    data_key = secrets.salt + sealed + master.token
    return replace(reference, encryption=Encryption(master.id, secrets.nonce, data_key))


def unwrapped(reference: Reference, keyring: Keyring | None) -> bytes:
    """The data key of an encrypted payload, before any request to the store.

    Raises:
        EncryptionError: there is no key for it, or the reference is not as it was written.
        PayloadStoreError: the service of the key failed.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    encryption = reference.encryption
    assert encryption is not None
    if keyring is None:
        raise EncryptionError(
            reference.path,
            f"it was encrypted with key {encryption.key_id}, and no key is configured here; set {KEY_NAME} and "
            f"{KEY_ID_NAME}, or {KMS_KEY_NAME}, as its writer has them",
        )
    salt, rest = encryption.data_key[:_SALT_BYTES], encryption.data_key[_SALT_BYTES:]
    sealed, token = rest[:_WRAPPED_BYTES], rest[_WRAPPED_BYTES:]
    master = keyring.find(reference.path, encryption.key_id, token)
    try:
        context = _data_key_context(reference, token)
        return AESGCM(_wrapping_key(master, salt)).decrypt(bytes(_NONCE_BYTES), sealed, context)
    except InvalidTag as exc:
        raise EncryptionError(
            reference.path,
            f"key {encryption.key_id} cannot decrypt its data key; either a different key has this id here, or "
            "path, size, checksum or another header of the reference was changed",
        ) from exc


def _wrapping_key(master: MasterKey, salt: bytes) -> bytes:
    """A key for one use, so that its nonce need not be random, and no number of payloads wears out a master key."""
    return hmac.digest(master.key, _framed(_DATA_KEY_CONTEXT, salt), "sha256")


def _payload_context(size: int, codec: Codec | None) -> bytes:
    return _framed(_PAYLOAD_CONTEXT, b"%d" % size, (codec or "").encode())


def _data_key_context(reference: Reference, token: bytes) -> bytes:
    assert reference.encryption is not None
    return _framed(
        _DATA_KEY_CONTEXT,
        reference.path.encode(),
        b"%d" % (reference.size or 0),
        (reference.checksum or "").encode(),
        (reference.codec or "").encode(),
        reference.encryption.key_id.encode(),
        reference.encryption.nonce,
        token,
    )


def _framed(*said: bytes) -> bytes:
    return b"".join(len(each).to_bytes(4) + each for each in said)


def _pieces(data: bytes, length: int) -> Iterator[tuple[int, memoryview]]:
    view = memoryview(data)
    for at in range(0, length, _PIECE_BYTES):
        yield at, view[at : min(at + _PIECE_BYTES, length)]


def _undecryptable(reference: Reference) -> PayloadCorruptError:
    return PayloadCorruptError(
        reference.path, "encryption", expected=f"{CIPHER} with its data key", found="something else"
    )
