"""The keys of encrypted payloads: their names in the configuration, and the keyring that is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stores.keys import Key
from transforms.errors import ConfigurationError
from transforms.keyring import (
    CIPHER,
    KEY_ID_NAME,
    KEY_NAME,
    KMS_ENDPOINT_NAME,
    KMS_KEY_NAME,
    KMS_PREVIOUS_NAME,
    KMS_REUSE_NAME,
    PREVIOUS_NAME,
    TYPE_NAME,
    EncryptionSettings,
    Keyring,
    LocalKeyring,
)

ENCRYPTION_KEYS: Sequence[Key] = (
    Key(
        TYPE_NAME,
        "string",
        "How payloads are encrypted before they go to the store. A reader needs only the key: the records say how "
        "they are encrypted (docs/reference-messages.md). Needs the extra `encryption`.",
        default="none",
        allowed=("none", CIPHER),
    ),
    Key(
        KEY_NAME,
        "string",
        "The key that wraps the data key of each payload: 64 hex digits at random (`openssl rand -hex 32`), the same "
        "for all writers and readers of a topic. Without it, nobody reads the payloads again.",
        secret=True,
    ),
    Key(
        KEY_ID_NAME,
        "string",
        "The name of this key in the records, by which readers find it: 1 to 64 characters of `[a-zA-Z0-9._-]`. "
        "Another key needs another name.",
    ),
    Key(
        PREVIOUS_NAME,
        "list",
        "Older keys, each as `ID:KEY`, with which payloads are still decrypted.",
        secret=True,
    ),
    Key(
        KMS_KEY_NAME,
        "string",
        "In place of a key in the configuration: the ARN of a key of AWS KMS, `arn:aws:kms:REGION:ACCOUNT:key/ID`. "
        "Writers need `kms:GenerateDataKey`, readers `kms:Decrypt`; credentials come from AWS's own chain. Needs the "
        "extra `s3` too.",
    ),
    Key(
        KMS_PREVIOUS_NAME,
        "list",
        "ARNs of older keys of AWS KMS, with which payloads are still decrypted.",
    ),
    Key(KMS_ENDPOINT_NAME, "string", "The URL of AWS KMS, if it is not AWS's own for the region in the ARN."),
    Key(
        KMS_REUSE_NAME,
        "int",
        "How many payloads may share one call of KMS. Each payload has a data key of its own in any case; with more "
        "than 1, several of these are wrapped by one key that KMS has made, for 5 minutes at most.",
        default=1,
        minimum=1,
        maximum=1_000_000,
    ),
)
"""Keys for writers and readers of references (`transforms/keyring.py`); no store gets them."""


def keyring_of(config: Mapping[str, Any]) -> Keyring | None:
    """The keyring of a configuration; None if it has no key of encryption.

    Raises:
        ConfigurationError: see `EncryptionSettings.of`.
    """
    return open_keyring(EncryptionSettings.of(config), int(config.get("large.message.store.timeout.ms") or 60_000))


def open_keyring(settings: EncryptionSettings | None, timeout_ms: int) -> Keyring | None:
    """The keyring of settings; None if there are none. Makes no request.

    Args:
        settings: of a writer or a reader.
        timeout_ms: the longest time of a call to the service of the keys.

    Raises:
        ConfigurationError: a package is missing.
    """
    if settings is None:
        return None
    local = LocalKeyring(settings)
    if settings.kms is None:
        return local
    try:
        from stores.kms import KmsKeyring
    except ImportError as exc:
        raise ConfigurationError(
            KMS_KEY_NAME, f"AWS KMS needs a package ({exc}); install it: pip install 'wideload[encryption,s3]'"
        ) from exc
    return KmsKeyring(local, settings.kms, timeout_ms)
