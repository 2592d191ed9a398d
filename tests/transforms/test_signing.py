"""Signatures of references: who lacks the key can make none, and none can be moved to another reference."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import references
from tests.transforms.reserved import reserved_bytes
from transforms.errors import ConfigurationError, SignatureError
from transforms.inflate import Inflate
from transforms.offload import Offload
from transforms.record import Record
from transforms.reference import KEY, VALUE, Encryption, Field, Reference
from transforms.signing import Signing

NEW, OLD = "n" * 32, "o" * 32
SIGNING = Signing(NEW)
WHOLE = Reference("s3://bucket/orders/id", 3, hashlib.sha256(b"foo").hexdigest(), "zstd")


def reason(signing: Signing, reference: Reference, part: Field = VALUE) -> str:
    with pytest.raises(SignatureError) as caught:
        signing.verify(reference, part)
    return caught.value.reason


HASH = "2c26" + "0" * 60
DATA_KEY = Encryption("kek", b"nonce", b"data key")


@pytest.mark.parametrize(
    ("reference", "fields"),
    [
        (Reference("s3://bucket/orders/id", 3, HASH), [b"3", HASH.encode(), b""]),
        (Reference("s3://bucket/orders/id"), [b"", b"", b""]),
        (
            Reference("s3://bucket/orders/id", 3, HASH, "zstd", encryption=DATA_KEY),
            [b"3", HASH.encode(), b"zstd", b"aes-256-gcm", b"kek", b"nonce", b"data key"],
        ),
    ],
)
def test_signature_literal(reference: Reference, fields: Sequence[bytes]) -> None:
    """The bytes that are signed are those of the documentation, so that others can make them too."""
    said = [b"wideload reference 1", b"value", b"s3://bucket/orders/id", *fields]
    message = b"".join(len(each).to_bytes(4, "big") + each for each in said)
    name = hmac.new(NEW.encode(), b"wideload signing key name", hashlib.sha256).hexdigest()[:8]
    digest = hmac.new(NEW.encode(), message, hashlib.sha256).hexdigest()
    signed = SIGNING.signed(reference)
    assert signed.headers()[-1] == ("large-message.signature", f"hmac-sha256:{name}:{digest}".encode())


@given(references(), st.sampled_from((VALUE, KEY)))
def test_signature_verifies(reference: Reference, part: Field) -> None:
    """What was signed is verified, through the headers of a record and back, and only for its own part."""
    signed = SIGNING.signed(reference, part)
    read, own = Reference.read(reference.value(), signed.headers(part), part)
    assert (read, own) == (signed, ())
    SIGNING.verify(read, part)
    assert "is wrong" in reason(SIGNING, read, KEY if part is VALUE else VALUE)


@given(references(), references())
def test_signature_is_of_one_reference(one: Reference, other: Reference) -> None:
    """A signature that was taken from another reference is refused."""
    signature = SIGNING.signed(one).signature
    moved = replace(other, signature=signature)
    if replace(one, signature=None) == replace(other, signature=None):
        SIGNING.verify(moved)
    else:
        assert "is wrong" in reason(SIGNING, moved)


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "s3://bucket/orders/other"},
        {"size": 4},
        {"size": None, "path": "s3://bucket/orders/id3"},
        {"checksum": "0" * 64},
        {"codec": None},
        {"codec": "gzip"},
    ],
)
def test_signature_covers_each_field(changed: Mapping[str, object]) -> None:
    """No field of a signed reference can be changed."""
    assert "is wrong" in reason(SIGNING, replace(SIGNING.signed(WHOLE), **changed))  # type: ignore[arg-type]


def test_signature_missing() -> None:
    """Without a signature a reference is refused, and taken only where that is allowed."""
    assert reason(SIGNING, WHOLE) == "it has no signature"
    Signing(NEW, required=False).verify(WHOLE)


def test_signature_wrong_is_refused_though_none_is_required() -> None:
    """Where signatures are not required, one that is there has to be right."""
    signed = replace(Signing(OLD).signed(WHOLE), size=4)
    assert "is wrong" in reason(Signing(NEW, (OLD,), required=False), signed)


def test_signature_rotation() -> None:
    """A previous key verifies and does not sign; one that is gone is named, and no key is shown."""
    both = Signing(NEW, (OLD,))
    both.verify(Signing(OLD).signed(WHOLE))
    assert both.signed(WHOLE) == SIGNING.signed(WHOLE)
    with pytest.raises(SignatureError) as caught:
        SIGNING.verify(Signing(OLD).signed(WHOLE))
    old, new, last = (Signing(key).signed(WHOLE).signature or "" for key in (OLD, NEW, "l" * 32))
    name = old.split(":")[1]
    assert caught.value.reason == f"it was signed with key {name}, known here are: {new.split(':')[1]}"
    assert caught.value.path == WHOLE.path
    known = f"{new.split(':')[1]}, {name}"
    assert reason(both, replace(WHOLE, signature=last)).endswith(f"known here are: {known}")
    assert not any(key in text for key in (NEW, OLD) for text in (str(caught.value), repr(both)))


def test_signature_of_another_kind() -> None:
    """A digest that is not HMAC-SHA-256 is refused, also with the right name of the key."""
    signature = SIGNING.signed(WHOLE).signature
    assert signature is not None
    other = replace(WHOLE, signature=signature.replace("sha256", "md5"))
    with pytest.raises(SignatureError) as caught:
        SIGNING.verify(other)
    assert vars(caught.value) == {"path": WHOLE.path, "reason": "its signature is of a different kind than hmac-sha256"}


def test_signing_goes_to_other_processes() -> None:
    """Spark sends it to executors."""
    assert pickle.loads(pickle.dumps(Signing(NEW, (OLD,), required=False))) == Signing(NEW, (OLD,), required=False)  # noqa: S301


def test_offload_signs_and_inflate_verifies() -> None:
    """What offload with a key writes, inflate with the key restores, and refuses once it was changed."""
    offload, inflate = Offload(0, signing=SIGNING), Inflate(signing=SIGNING)
    payload = offload.payload(b"value")
    record = offload.refer(Record(b"k", b"value", (("own", b"1"),), 5), payload.reference("s3://bucket/orders/id"))
    inflation = inflate.begin(record)
    assert inflate.finish(record, inflation, payload.data) == Record(b"k", b"value", (("own", b"1"),), 5)
    forged = replace(record, value=b"s3://bucket/orders/salaries")
    with pytest.raises(SignatureError):
        inflate.begin(forged)
    assert reserved_bytes(inflate, forged) == 0
    # A reader without a key takes it, and takes the signature off.
    plain = Inflate()
    assert plain.finish(record, plain.begin(record), payload.data).headers == (("own", b"1"),)


@pytest.mark.parametrize(
    ("config", "key", "told"),
    [
        ({"large.message.signing.key": "x" * 31}, "large.message.signing.key", "found a key of 31 characters"),
        (
            {"large.message.signing.key": NEW, "large.message.signing.previous.keys": [OLD, "short"]},
            "large.message.signing.previous.keys",
            "found a key of 5 characters",
        ),
        ({"large.message.signing.previous.keys": [OLD]}, "large.message.signing.previous.keys", "without"),
    ],
)
def test_signing_configuration_refused(config: Mapping[str, object], key: str, told: str) -> None:
    """A key that can be guessed, and previous keys alone, are refused; no message shows a key."""
    with pytest.raises(ConfigurationError, match=told) as caught:
        Signing.of(config)
    assert caught.value.key == key
    assert not any(each in str(caught.value) for each in (NEW, OLD, "short", "x" * 31))


def test_signing_not_configured() -> None:
    """Without a key nothing is signed and nothing is refused."""
    assert Signing.of({"large.message.signing.key": None, "large.message.signing.required": True}) is None
