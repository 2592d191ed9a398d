"""Encrypted payloads: only the key opens them, and only in the place of the record that they were written for."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transforms.reserved import reserved_bytes
from transforms.compression import Codec
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
PATH = "s3://bucket/orders/id"
MASTER = MasterKey("new", bytes.fromhex(KEY))


def keyring(**keys: str) -> LocalKeyring:
    return LocalKeyring(EncryptionSettings(False, None, {name: bytes.fromhex(key) for name, key in keys.items()}))


def made(value: bytes, codec: Codec | None = None, random: bytes | None = None) -> tuple[Reference, bytes]:
    """An encrypted payload, and its reference."""
    secrets = DataKey.of(random or os.urandom(DATA_KEY_RANDOM_BYTES))
    stored = encrypt(value, len(value), codec, secrets)
    bare = Reference(PATH, len(value), hashlib.sha256(stored).hexdigest(), codec)
    return wrapped(bare, secrets, MASTER), stored


@given(st.binary(max_size=300), st.sampled_from((None, "gzip")))
def test_payload_comes_back(value: bytes, codec: Codec | None) -> None:
    """What was encrypted is decrypted, through the headers of a record and back, and is a tag longer in the store."""
    reference, stored = made(value, codec)
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
    with pytest.raises(EncryptionError, match="key new cannot decrypt its data key"):
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


KEPT = bytes(20) + b"\1"


@pytest.mark.parametrize(
    ("codec", "stored", "what", "expected", "found"),
    [
        (None, bytes(20), "size", "21 bytes, encrypted", "20 bytes"),
        ("gzip", bytes(22), "size", "at most 21 bytes, encrypted", "22 bytes"),
        (None, bytes(21), "checksum", hashlib.sha256(KEPT).hexdigest(), hashlib.sha256(bytes(21)).hexdigest()),
        ("gzip", bytes(20), "checksum", hashlib.sha256(KEPT).hexdigest(), hashlib.sha256(bytes(20)).hexdigest()),
        (None, KEPT, "encryption", "aes-256-gcm with its data key", "something else"),
        ("gzip", KEPT[:15], "encryption", "aes-256-gcm with its data key", "something else"),  # shorter than a tag
    ],
)
def test_stored_bytes_are_others(codec: Codec | None, stored: bytes, what: str, expected: str, found: str) -> None:
    """It says how: length, checksum, or that the data key does not open them."""
    sound = KEPT if what != "encryption" else stored
    reference = replace(made(b"hello", codec)[0], checksum=hashlib.sha256(sound).hexdigest())
    with pytest.raises(PayloadCorruptError) as raised:
        decrypt(reference, stored, bytes(32))
    assert vars(raised.value) == {"path": PATH, "what": what, "expected": expected, "found": found}


@pytest.mark.parametrize(
    ("ring", "said"),
    [
        (
            None,
            "no key is configured here; set large.message.encryption.key.secret and ",
        ),
        (keyring(old=KEY), "it was encrypted with key new, known here are: old; give the key in large.message.enc"),
        (
            keyring(new=OTHER),
            (
                "key new cannot decrypt its data key; either a different key has this id here, or path, size, "
                "checksum or another header of the reference was changed"
            ),
        ),
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
    with pytest.raises(WideloadError, match="is wrong"):
        signing.verify(replace(signed, encryption=replace(signed.encryption, **{field: changed[field]})))
    with pytest.raises(WideloadError, match="is wrong"):
        signing.verify(replace(signed, encryption=None))


def test_inflate_reserves_for_both() -> None:
    """The memory for an encrypted value is counted twice, with the tag, and a claimed size is bounded."""
    reference, _ = made(b"hello")
    record = Record(None, reference.value(), reference.headers())
    assert reserved_bytes(Inflate(5), record) == 2 * (5 + TAG_BYTES)
    assert reserved_bytes(Inflate(4), record) == 0


PREFIX = "large.message.encryption."
NO_KEY = f"found 'aes-256-gcm', which needs a key: {PREFIX}key.secret and {PREFIX}key.id, or {PREFIX}kms.key.id"
HEX = "has a key that is not 64 hex digits at random, as `openssl rand -hex 32` gives"
ID = "has a key id that is not 1 to 64 characters of [a-zA-Z0-9._-]; records show this id"
NO_ARN = (
    ", allowed is the ARN of a key: arn:aws:kms:REGION:ACCOUNT:key/ID. An alias may be moved to another key, and the "
    "old payloads could not be decrypted"
)
BOTH = f"cannot be combined with {PREFIX}key.secret: new payloads have one key; remove one of the two"


@pytest.mark.parametrize(
    ("config", "key", "said"),
    [
        (TYPE, "type", NO_KEY),
        (TYPE | {f"{PREFIX}previous.keys": [f"old:{KEY}"]}, "type", NO_KEY),
        ({f"{PREFIX}key.secret": KEY}, "key.secret", f"also requires {PREFIX}key.id"),
        ({f"{PREFIX}key.id": "new"}, "key.id", f"also requires {PREFIX}key.secret"),
        (NAMED | {f"{PREFIX}key.secret": KEY[1:]}, "key.secret", HEX),
        (NAMED | {f"{PREFIX}key.id": "a b"}, "key.id", ID),
        (NAMED | {f"{PREFIX}kms.key.id": ARN}, "kms.key.id", BOTH),
        ({f"{PREFIX}kms.key.id": "alias/orders"}, "kms.key.id", f"found 'alias/orders'{NO_ARN}"),
        ({f"{PREFIX}kms.previous.key.ids": ["x"]}, "kms.previous.key.ids", f"found 'x'{NO_ARN}"),
        (
            NAMED | {f"{PREFIX}previous.keys": [f"old:{KEY}", KEY]},
            "previous.keys",
            "item 2 is not ID:KEY, the id of a key and the key itself",
        ),
        (NAMED | {f"{PREFIX}previous.keys": ["old:1"]}, "previous.keys", HEX),
        (NAMED | {f"{PREFIX}previous.keys": ["a b:1"]}, "previous.keys", ID),
        (
            NAMED | {f"{PREFIX}previous.keys": [f"new:{OTHER}"]},
            "previous.keys",
            "item 1 has the id 'new', which another key has already",
        ),
    ],
)
def test_settings_are_checked(config: dict[str, object], key: str, said: str) -> None:
    """Settings that cannot work are refused at their key, and no message has a key in it."""
    with pytest.raises(ConfigurationError) as raised:
        EncryptionSettings.of(config)
    assert raised.value.key == f"large.message.encryption.{key}"
    assert raised.value.reason == said
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


def test_settings_together() -> None:
    """It encrypts as the first one does, and decrypts what any of them can; an id has one key."""
    other = ARN.replace("key/0f", "key/1f")
    kms = {f"{PREFIX}kms.endpoint": "http://kms", f"{PREFIX}kms.data.key.reuse": 7}
    of_local = TYPE | NAMED | {f"{PREFIX}previous.keys": [f"old:{OTHER}"]}
    of_kms = {f"{PREFIX}kms.key.id": ARN, f"{PREFIX}kms.previous.key.ids": [other], **kms}
    local, reader, writer = (EncryptionSettings.of(each) for each in (of_local, of_kms, TYPE | of_kms))
    assert local is not None
    assert reader is not None
    assert writer is not None
    assert EncryptionSettings.together([]) == {}
    assert EncryptionSettings.together([local]) == of_local
    assert EncryptionSettings.together([local, reader]) == {
        **of_local, f"{PREFIX}kms.previous.key.ids": [ARN, other], **kms,
    }  # fmt: skip
    assert EncryptionSettings.together([reader]) == {f"{PREFIX}type": "none", **of_kms}
    keys = {f"{PREFIX}previous.keys": [f"new:{KEY}", f"old:{OTHER}"]}
    assert EncryptionSettings.together([writer, local, reader]) == {**TYPE, **of_kms, **keys}
    plain = EncryptionSettings.of({f"{PREFIX}kms.key.id": ARN})
    assert plain is not None
    assert EncryptionSettings.together([plain]) == {
        f"{PREFIX}type": "none", f"{PREFIX}kms.key.id": ARN, f"{PREFIX}kms.data.key.reuse": 1,
    }  # fmt: skip
    changed = EncryptionSettings.of({f"{PREFIX}previous.keys": [f"old:{KEY}"]})
    assert changed is not None
    with pytest.raises(ConfigurationError) as raised:
        EncryptionSettings.together([local, changed])
    assert raised.value.key == f"{PREFIX}key.id"
    assert raised.value.reason == "found 'old' for two keys; another key needs another id"


def test_encryption_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigurationError) as raised:
        EncryptionSettings.of(NAMED)
    assert raised.value.key == f"{PREFIX}type"
    assert raised.value.reason.endswith("; install it: pip install 'wideload[encryption]'")


def test_reference_goes_through_a_wrapper() -> None:
    """A wrapper holds the headers of encryption, by numbers of their own; the other numbers have not changed."""
    reference, _ = made(b"hello")
    record = Record(b"k", reference.value(), Signing("s" * 32).signed(reference).headers(), 5)
    assert Unwrap().unwrap(Wrap().wrap(record)) == record
    assert OWN_KEYS[2_082_004] == "large-message.signature"
    assert OWN_KEYS[2_082_008] == "large-message.encryption.data-key"
    assert OWN_KEYS[2_082_014] == "large-message-key.signature"
