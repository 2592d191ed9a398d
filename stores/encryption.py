"""The properties for encrypted payloads, and the keyring that is built from them."""

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
        "How payloads are encrypted before they are written to the store. A reader needs only the key: the records "
        "say how they are encrypted ([encryption](reference-security.md#encryption)). Requires the extra `encryption`.",
        default="none",
        allowed=("none", CIPHER),
    ),
    Key(
        KEY_NAME,
        "string",
        "The key that wraps the data key of each payload: 64 random hex digits (`openssl rand -hex 32`), the same "
        "for all writers and readers of a topic. If it is lost, the payloads cannot be decrypted.",
        secret=True,
    ),
    Key(
        KEY_ID_NAME,
        "string",
        "The name of this key, which is written to the records so that readers find the key: 1 to 64 characters of "
        "`[a-zA-Z0-9._-]`. Each key needs a different name.",
    ),
    Key(
        PREVIOUS_NAME,
        "list",
        "Older keys that are used for decryption only, each as `ID:KEY`.",
        secret=True,
    ),
    Key(
        KMS_KEY_NAME,
        "string",
        "The ARN of an AWS KMS key, instead of a key in the configuration: `arn:aws:kms:REGION:ACCOUNT:key/ID`. "
        "Writers need `kms:GenerateDataKey`, readers `kms:Decrypt`. The credentials come from AWS's default provider "
        "chain. Also requires the extra `s3`.",
    ),
    Key(
        KMS_PREVIOUS_NAME,
        "list",
        "ARNs of older AWS KMS keys that are used for decryption only.",
    ),
    Key(KMS_ENDPOINT_NAME, "string", "The URL of AWS KMS, if it is not the default one of the region in the ARN."),
    Key(
        KMS_REUSE_NAME,
        "int",
        "How many payloads may share one call of KMS. Each payload has a different data key in any case; with a value "
        "above 1, several data keys are wrapped by one key from KMS, for at most 5 minutes.",
        default=1,
        minimum=1,
        maximum=1_000_000,
    ),
)
"""Keys for writers and readers of references (`transforms/keyring.py`); no store gets them."""


def keyring_of(config: Mapping[str, Any]) -> Keyring | None:
    """The keyring of a configuration; None if it has no encryption key.

    Raises:
        ConfigurationError: see `EncryptionSettings.of`.
    """
    return open_keyring(EncryptionSettings.of(config), int(config.get("large.message.store.timeout.ms") or 60_000))


def open_keyring(settings: EncryptionSettings | None, timeout_ms: int) -> Keyring | None:
    """The keyring of settings; None if there are none. Sends no request.

    Args:
        settings: of a writer or a reader.
        timeout_ms: the maximum time of a call to the key service.

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
