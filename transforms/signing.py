"""Signed references: without the key, a writer to a topic cannot forge a reference.

    header .signature            "hmac-sha256:", 8 hex digits that name the key, ":", and 64 hex digits, the HMAC

The HMAC (RFC 2104) covers the name and version of the format; whether the reference is for a value or a key; path,
size, checksum and codec; and of an encrypted payload cipher, key id, nonce and data key. Each has its length before it,
so that no two references yield identical bytes. It does not cover topic, offset or key of the record, since mirrors,
replays and compaction change them; so a genuine reference can be copied to another record
(docs/reference-security.md, "Signatures").
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from transforms.errors import ConfigurationError, SignatureError
from transforms.keyring import CIPHER
from transforms.reference import VALUE, Field, Reference

KEY_NAME = "large.message.signing.key"
PREVIOUS_NAME = "large.message.signing.previous.keys"
REQUIRED_NAME = "large.message.signing.required"
LEAST_KEY_CHARACTERS = 32  # `openssl rand -hex 16`: 128 bits

_CONTEXT = b"wideload reference 1"
_NAME_CONTEXT = b"wideload signing key name"
_SCHEME = "hmac-sha256"


@dataclass(frozen=True)
class Signing:
    """The signing keys of a writer or a reader.

    Attributes:
        key: signs and verifies.
        previous: older keys, which only verify.
        required: whether a reference without a signature is refused.
    """

    key: str = field(repr=False)
    previous: Sequence[str] = field(default=(), repr=False)
    required: bool = True

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Signing | None:
        """From the properties `large.message.signing.…`; None if there is no key.

        Raises:
            ConfigurationError: a key is too short, or there are only previous ones.
        """
        key, previous = config.get(KEY_NAME), config.get(PREVIOUS_NAME) or ()
        assert isinstance(previous, Sequence)
        if not isinstance(key, str):
            if previous:
                raise ConfigurationError(PREVIOUS_NAME, f"has no effect without {KEY_NAME}")
            return None
        for name, value in ((KEY_NAME, key), *((PREVIOUS_NAME, each) for each in previous)):
            if len(value) < LEAST_KEY_CHARACTERS:
                raise ConfigurationError(
                    name,
                    f"found a key of {len(value)} characters, allowed are {LEAST_KEY_CHARACTERS} or more at random, "
                    "such as `openssl rand -hex 32` gives",
                )
        return cls(key, tuple(previous), config.get(REQUIRED_NAME) is not False)

    @cached_property
    def _keys(self) -> Mapping[str, bytes]:
        """The keys by their names in signatures; a name does not reveal its key."""
        return {_name(each): each.encode() for each in (self.key, *self.previous)}

    def signed(self, reference: Reference, part: Field = VALUE) -> Reference:
        """The reference with its signature."""
        name = next(iter(self._keys))
        return replace(reference, signature=f"{_SCHEME}:{name}:{_digest(self._keys[name], reference, part)}")

    def verify(self, reference: Reference, part: Field = VALUE) -> None:
        """Checks the signature of a reference.

        Raises:
            SignatureError: it is missing or wrong; the payload must not be read.
        """
        signature = reference.signature
        if signature is None:
            if self.required:
                raise SignatureError(reference.path, "it has no signature")
            return
        scheme, _, rest = signature.partition(":")
        name, _, digest = rest.partition(":")
        if scheme != _SCHEME:
            raise SignatureError(reference.path, f"its signature is of a different kind than {_SCHEME}")
        key = self._keys.get(name)
        if key is None:
            known = ", ".join(self._keys)
            raise SignatureError(reference.path, f"it was signed with key {name}, known here are: {known}")
        if not hmac.compare_digest(digest.encode(), _digest(key, reference, part).encode()):
            raise SignatureError(reference.path, f"its signature with key {name} is wrong")


def _name(key: str) -> str:
    return hmac.digest(key.encode(), _NAME_CONTEXT, "sha256").hex()[:8]


def _digest(key: bytes, reference: Reference, part: Field) -> str:
    said: tuple[bytes, ...] = (
        _CONTEXT,
        part.name.encode(),
        reference.path.encode(),
        b"" if reference.size is None else b"%d" % reference.size,
        (reference.checksum or "").encode(),
        (reference.codec or "").encode(),
    )
    if (encryption := reference.encryption) is not None:
        said += (CIPHER.encode(), encryption.key_id.encode(), encryption.nonce, encryption.data_key)
    message = b"".join(len(each).to_bytes(4) + each for each in said)
    return hmac.digest(key, message, hashlib.sha256).hex()
