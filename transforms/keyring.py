"""The master keys of encrypted payloads, as they are configured; `transforms/encryption.py` uses them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from transforms.errors import ConfigurationError, EncryptionError

CIPHER = "aes-256-gcm"
"""The cipher of payloads: AES with 256 bits in Galois/Counter mode (NIST SP 800-38D)."""

TAG_BYTES = 16
"""How much longer the stored bytes are than the bytes before encryption."""

TYPE_NAME = "large.message.encryption.type"
KEY_NAME = "large.message.encryption.key.secret"
KEY_ID_NAME = "large.message.encryption.key.id"
PREVIOUS_NAME = "large.message.encryption.previous.keys"
KMS_KEY_NAME = "large.message.encryption.kms.key.id"
KMS_PREVIOUS_NAME = "large.message.encryption.kms.previous.key.ids"
KMS_ENDPOINT_NAME = "large.message.encryption.kms.endpoint"
KMS_REUSE_NAME = "large.message.encryption.kms.data.key.reuse"

_KEY_FORM = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_KEY_ID_FORM = re.compile(r"[a-zA-Z0-9._-]{1,64}", re.ASCII)
_ARN_FORM = re.compile(r"arn:aws[a-z-]{0,20}:kms:[a-z0-9-]{1,40}:[0-9]{12}:key/[a-zA-Z0-9-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class MasterKey:
    """A key that wraps data keys.

    Attributes:
        id: its name in the headers.
        key: 32 bytes.
        token: what a reader needs to obtain `key`, in addition to the id; empty if the key is configured.
    """

    id: str
    key: bytes = field(repr=False)
    token: bytes = b""


class Keyring(Protocol):
    """The master keys of a writer or a reader. Calls may block; several threads may call it concurrently."""

    @property
    def writes(self) -> bool:
        """Whether payloads are encrypted when they are written."""

    def current(self) -> MasterKey:
        """The key for a new payload, if `writes`.

        Raises:
            PayloadStoreError: the key service failed; `retriable` is true if a retry may succeed.
        """

    def find(self, path: str, key_id: str, token: bytes) -> MasterKey:
        """The key of a payload.

        Args:
            path: of the payload, for messages.
            key_id: in the reference.
            token: in the reference.

        Raises:
            EncryptionError: there is no such key, or the token is wrong.
            PayloadStoreError: as with `current`.
        """


@dataclass(frozen=True, slots=True)
class KmsSettings:
    """Which keys of AWS KMS are used, and how.

    Attributes:
        key_ids: ARNs; payloads with any other key are refused.
        endpoint: in place of AWS's.
        reuse: the number of payloads whose data keys may be wrapped with one key that KMS has generated.
    """

    key_ids: tuple[str, ...]
    endpoint: str | None = None
    reuse: int = 1


@dataclass(frozen=True)
class EncryptionSettings:
    """The keys of a writer or a reader, as configured.

    Attributes:
        writes: whether payloads are encrypted when they are written, with `current`.
        current: the id of the key for new payloads; None if there are only previous ones.
        keys: keys of the configuration by id.
        kms: None if no key is one of AWS KMS.
    """

    writes: bool
    current: str | None
    keys: Mapping[str, bytes] = field(repr=False)
    kms: KmsSettings | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> EncryptionSettings | None:
        """From the properties `large.message.encryption.…`; None if no encryption key is configured.

        Raises:
            ConfigurationError: they contradict each other, a key is invalid, or a package is missing.
        """
        writes = config.get(TYPE_NAME) == CIPHER
        key, key_id, arn = (config.get(name) for name in (KEY_NAME, KEY_ID_NAME, KMS_KEY_NAME))
        keys: dict[str, bytes] = {}
        if key is not None and arn is not None:
            raise ConfigurationError(
                KMS_KEY_NAME, f"cannot be combined with {KEY_NAME}: new payloads have one key; remove one of the two"
            )
        if (key is None) != (key_id is None):
            given, other = (KEY_ID_NAME, KEY_NAME) if key is None else (KEY_NAME, KEY_ID_NAME)
            raise ConfigurationError(given, f"also requires {other}")
        if key is not None and key_id is not None:
            keys[_checked_id(KEY_ID_NAME, key_id)] = _key(KEY_NAME, key)
        for at, each in enumerate(config.get(PREVIOUS_NAME) or (), start=1):
            name, colon, text = str(each).partition(":")
            if not colon:
                raise ConfigurationError(PREVIOUS_NAME, f"item {at} is not ID:KEY, the id of a key and the key itself")
            _checked_id(PREVIOUS_NAME, name)
            found = _key(PREVIOUS_NAME, text)
            if keys.setdefault(name, found) != found:
                raise ConfigurationError(PREVIOUS_NAME, f"item {at} has the id {name!r}, which another key has already")
        arns = [_checked_arn(KMS_KEY_NAME, arn)] if arn is not None else []
        arns += [_checked_arn(KMS_PREVIOUS_NAME, each) for each in config.get(KMS_PREVIOUS_NAME) or ()]
        current = key_id if key_id is not None else arn
        if writes and current is None:
            raise ConfigurationError(
                TYPE_NAME, f"found {CIPHER!r}, which needs a key: {KEY_NAME} and {KEY_ID_NAME}, or {KMS_KEY_NAME}"
            )
        if not keys and not arns:
            return None
        _check_package()
        kms = None
        if arns:
            kms = KmsSettings(tuple(arns), config.get(KMS_ENDPOINT_NAME), int(config.get(KMS_REUSE_NAME) or 1))
        return cls(writes, None if current is None else str(current), keys, kms)

    @classmethod
    def together(cls, several: Sequence[EncryptionSettings]) -> dict[str, object]:
        """A configuration with all keys: it encrypts like the first one, and decrypts what any of them can decrypt.

        Raises:
            ConfigurationError: two different keys have one id.
        """
        if not several:
            return {}
        first = several[0]
        keys: dict[str, bytes] = {}
        arns: dict[str, None] = {}
        for each in several:
            for name, key in each.keys.items():
                if keys.setdefault(name, key) != key:
                    raise ConfigurationError(KEY_ID_NAME, f"found {name!r} for two keys; another key needs another id")
            arns |= dict.fromkeys(() if each.kms is None else each.kms.key_ids)
        config: dict[str, object] = {TYPE_NAME: CIPHER if first.writes else "none"}
        if first.current in keys:
            config |= {KEY_ID_NAME: first.current, KEY_NAME: keys.pop(first.current).hex()}
        elif first.current is not None:
            arns.pop(first.current)
            config[KMS_KEY_NAME] = first.current
        if keys:
            config[PREVIOUS_NAME] = [f"{name}:{key.hex()}" for name, key in keys.items()]
        if arns:
            config[KMS_PREVIOUS_NAME] = list(arns)
        kms = next((each.kms for each in several if each.kms is not None), None)
        if kms is not None:
            config |= {KMS_REUSE_NAME: kms.reuse} | ({KMS_ENDPOINT_NAME: kms.endpoint} if kms.endpoint else {})
        return config


@dataclass(frozen=True, slots=True)
class LocalKeyring:
    """The keys of the configuration.

    Attributes:
        settings: without keys of AWS KMS, unless `stores.kms` uses this for the other keys.
    """

    settings: EncryptionSettings

    @property
    def writes(self) -> bool:
        return self.settings.writes

    def current(self) -> MasterKey:
        assert self.settings.current is not None
        return MasterKey(self.settings.current, self.settings.keys[self.settings.current])

    def find(self, path: str, key_id: str, token: bytes) -> MasterKey:
        key = self.settings.keys.get(key_id)
        if key is None:
            kms = () if self.settings.kms is None else self.settings.kms.key_ids
            known = ", ".join([*self.settings.keys, *kms])
            raise EncryptionError(
                path,
                f"it was encrypted with key {key_id}, known here are: {known}; give the key in {PREVIOUS_NAME}, or its "
                f"ARN in {KMS_PREVIOUS_NAME}",
            )
        if token:
            raise EncryptionError(path, f"its data key has {len(token):,} bytes too many for key {key_id}")
        return MasterKey(key_id, key)


def _checked_id(name: str, key_id: object) -> str:
    if not isinstance(key_id, str) or not _KEY_ID_FORM.fullmatch(key_id):
        raise ConfigurationError(
            name, "has a key id that is not 1 to 64 characters of [a-zA-Z0-9._-]; records show this id"
        )
    return key_id


def _checked_arn(name: str, arn: object) -> str:
    if not isinstance(arn, str) or not _ARN_FORM.fullmatch(arn):
        raise ConfigurationError(
            name,
            f"found {arn!r}, allowed is the ARN of a key: arn:aws:kms:REGION:ACCOUNT:key/ID. An alias may be moved to "
            "another key, and the old payloads could not be decrypted",
        )
    return arn


def _key(name: str, text: object) -> bytes:
    if not isinstance(text, str) or not _KEY_FORM.fullmatch(text):
        raise ConfigurationError(name, "has a key that is not 64 hex digits at random, as `openssl rand -hex 32` gives")
    return bytes.fromhex(str(text))


def _check_package() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as exc:
        raise ConfigurationError(
            TYPE_NAME, f"encryption needs a package ({exc}); install it: pip install 'wideload[encryption]'"
        ) from exc
