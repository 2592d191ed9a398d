"""Encrypted payloads: only the key opens them, and only in the place of the record that they were written for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transforms.reserved import reserved_bytes
from transforms.encryption import DATA_KEY_RANDOM_BYTES, DataKey, decrypt, encrypt, unwrapped, wrapped
from transforms.errors import ConfigurationError, EncryptionError, PayloadCorruptError, WideloadError
from transforms.inflate import Inflate
from transforms.keyring import TAG_BYTES, EncryptionSettings, LocalKeyring, MasterKey
from transforms.record import Record
from transforms.reference import Encryption, Reference
from transforms.signing import Signing
from transforms.wrapper import OWN_KEYS, Unwrap, Wrap

KEY, OTHER = "0f" * 32, "f0" * 32
TYPE = {"large.message.encryption.type": "aes-256-gcm"}
NAMED = {"large.message.encryption.key.secret": KEY, "large.message.encryption.key.id": "new"}
ARN = "arn:aws:kms:eu-central-1:123456789012:key/0f0f0f0f-0000-0000-0000-000000000000"
MASTER = MasterKey("new", bytes.fromhex(KEY))


def keyring(**keys: str) -> LocalKeyring:
    return LocalKeyring(EncryptionSettings(False, None, {name: bytes.fromhex(key) for name, key in keys.items()}))


def made(value: bytes, path: str = "s3://bucket/orders/id", random: bytes | None = None) -> tuple[Reference, bytes]:
    """An encrypted payload, and its reference."""
    secrets = DataKey.of(random or os.urandom(DATA_KEY_RANDOM_BYTES))
    stored = encrypt(value, len(value), None, secrets)
    bare = Reference(path, len(value), hashlib.sha256(stored).hexdigest())
    return wrapped(bare, secrets, MASTER), stored


@given(st.binary(max_size=300))
def test_payload_comes_back(value: bytes) -> None:
    """What was encrypted is decrypted, through the headers of a record and back, and is a tag longer in the store."""
    reference, stored = made(value)
    read, own = Reference.read(reference.value(), reference.headers())
    assert (read, own) == (reference, ())
    assert len(stored) == len(value) + TAG_BYTES
    assert decrypt(read, stored, unwrapped(read, keyring(new=KEY))) == value


@pytest.mark.parametrize("size", [1_048_575, 1_048_576, 1_048_577, 3_000_000])
def test_payload_of_several_pieces(size: int) -> None:
    """A payload longer than what is encrypted at a time comes back too."""
    value = os.urandom(size)
    reference, stored = made(value)
    assert decrypt(reference, stored, unwrapped(reference, keyring(new=KEY))) == value


def test_equal_values_do_not_look_equal() -> None:
    """Neither stored bytes nor headers tell that two values are equal, but for the length."""
    one, other = made(b"hello"), made(b"hello")
    assert one[1] != other[1]
    shared = set(one[0].headers()) & set(other[0].headers())
    assert {name for name, _ in shared} == {
        "large-message", "large-message.size", "large-message.encryption", "large-message.encryption.key",
    }  # fmt: skip


CHANGES: list[Callable[[Reference], Reference]] = [
    lambda it: replace(it, path="s3://bucket/orders/other"),
    lambda it: replace(it, size=6),
    lambda it: replace(it, checksum="0" * 64),
    lambda it: replace(it, codec="zstd"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_reference_is_bound(change: Callable[[Reference], Reference]) -> None:
    """A data key opens for the very path, size, checksum and codec that it was wrapped for."""
    reference, _ = made(b"hello")
    with pytest.raises(EncryptionError, match="key new does not open its data key"):
        unwrapped(change(reference), keyring(new=KEY))


@given(st.data())
def test_any_changed_bit_is_refused(data: st.DataObject) -> None:
    """Whichever bit of stored bytes, nonce or data key is changed: the record is refused, and no byte is returned."""
    reference, stored = made(b"hello world", random=bytes(range(DATA_KEY_RANDOM_BYTES)))
    assert reference.encryption is not None
    fields = [stored, reference.encryption.nonce, reference.encryption.data_key]
    at = data.draw(st.integers(0, 2))
    bit = data.draw(st.integers(0, 8 * len(fields[at]) - 1))
    changed = bytearray(fields[at])
    changed[bit // 8] ^= 1 << bit % 8
    fields[at] = bytes(changed)
    forged = replace(reference, encryption=Encryption("new", fields[1], fields[2]))
    with pytest.raises((EncryptionError, PayloadCorruptError)):
        decrypt(forged, fields[0], unwrapped(forged, keyring(new=KEY)))


@pytest.mark.parametrize(
    ("ring", "said"),
    [
        (
            None,
            "no key is configured here; set large.message.encryption.key.secret and ",
        ),
        (keyring(old=KEY), "it was encrypted with key new, known here are: old; give the key in large.message.enc"),
        (keyring(new=OTHER), "key new does not open its data key; either the key of this id is another one here, or "),
    ],
)
def test_missing_key_is_told(ring: LocalKeyring | None, said: str) -> None:
    """Who lacks the key is told in a sentence which one, and never sees one in a message."""
    reference, _ = made(b"hello")
    with pytest.raises(EncryptionError) as raised:
        unwrapped(reference, ring)
    text = str(raised.value)
    assert text.startswith("reference 's3://bucket/orders/id' cannot be decrypted: ")
    assert said in text
    assert KEY not in text


@pytest.mark.parametrize("field", ["key_id", "nonce", "data_key"])
def test_signature_covers_encryption(field: str) -> None:
    """A signature is of the headers of encryption, too; a reference without them is signed as ever."""
    signing = Signing("s" * 32)
    reference, _ = made(b"hello")
    signed = signing.signed(reference)
    signing.verify(signed)
    assert signed.encryption is not None
    changed: dict[str, Any] = {"key_id": "old", "nonce": bytes(12), "data_key": bytes(80)}
    with pytest.raises(WideloadError, match="is not right"):
        signing.verify(replace(signed, encryption=replace(signed.encryption, **{field: changed[field]})))
    with pytest.raises(WideloadError, match="is not right"):
        signing.verify(replace(signed, encryption=None))


def test_inflate_reserves_for_both() -> None:
    """The memory for an encrypted value is counted twice, with the tag, and a claimed size is bounded."""
    reference, _ = made(b"hello")
    record = Record(None, reference.value(), reference.headers())
    assert reserved_bytes(Inflate(5), record) == 2 * (5 + TAG_BYTES)
    assert reserved_bytes(Inflate(4), record) == 0


@pytest.mark.parametrize(
    ("config", "key", "said"),
    [
        (TYPE, "type", "needs a key: large.message.encryption.key.secret and"),
        (TYPE | {"large.message.encryption.previous.keys": [f"old:{KEY}"]}, "type", "needs a key"),
        ({"large.message.encryption.key.secret": KEY}, "key.secret", "needs large.message.encryption.key.id beside it"),
        ({"large.message.encryption.key.id": "new"}, "key.id", "needs large.message.encryption.key.secret beside it"),
        (NAMED | {"large.message.encryption.key.secret": KEY[1:]}, "key.secret", "64 hex digits"),
        (NAMED | {"large.message.encryption.key.id": "a b"}, "key.id", "1 to 64 characters"),
        (NAMED | {"large.message.encryption.kms.key.id": ARN}, "kms.key.id", "leave one out"),
        ({"large.message.encryption.kms.key.id": "alias/orders"}, "kms.key.id", "arn:aws:kms:REGION"),
        ({"large.message.encryption.kms.previous.key.ids": ["x"]}, "kms.previous.key.ids", "arn:aws:kms:REGION"),
        (NAMED | {"large.message.encryption.previous.keys": [KEY]}, "previous.keys", "item 1 is not ID:KEY"),
        (NAMED | {"large.message.encryption.previous.keys": ["old:1"]}, "previous.keys", "64 hex digits"),
        (NAMED | {"large.message.encryption.previous.keys": [f"new:{OTHER}"]}, "previous.keys", "another key has"),
    ],
)
def test_settings_are_checked(config: dict[str, object], key: str, said: str) -> None:
    """Settings that cannot work are refused at their key, and no message has a key in it."""
    with pytest.raises(ConfigurationError) as raised:
        EncryptionSettings.of(config)
    assert raised.value.key == f"large.message.encryption.{key}"
    assert said in raised.value.reason
    assert KEY[:63] not in str(raised.value)


def test_settings() -> None:
    """A reader needs no type; previous keys are read too; no repr has a key."""
    assert EncryptionSettings.of({}) is None
    assert EncryptionSettings.of({"large.message.encryption.type": "none"}) is None
    previous = {"large.message.encryption.previous.keys": [f"old:{OTHER}"]}
    found = EncryptionSettings.of(NAMED | previous)
    assert found is not None
    assert (found.writes, found.current, [*found.keys]) == (False, "new", ["new", "old"])
    assert KEY not in repr(found)
    assert repr(bytes.fromhex(KEY)) not in repr((found, MASTER))
    writer = EncryptionSettings.of(TYPE | NAMED)
    assert writer is not None
    assert writer.writes
    assert LocalKeyring(writer).current() == MASTER


def test_reference_goes_through_a_wrapper() -> None:
    """A wrapper holds the headers of encryption, by numbers of their own; the other numbers have not changed."""
    reference, _ = made(b"hello")
    record = Record(b"k", reference.value(), Signing("s" * 32).signed(reference).headers(), 5)
    assert Unwrap().unwrap(Wrap().wrap(record)) == record
    assert OWN_KEYS[2_082_004] == "large-message.signature"
    assert OWN_KEYS[2_082_008] == "large-message.encryption.data-key"
    assert OWN_KEYS[2_082_014] == "large-message-key.signature"
