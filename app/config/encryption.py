"""The encryption of a pipeline: checks of the properties `large.message.encryption.…`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stores.registry import STORE_CLASS
from transforms.errors import ConfigurationError
from transforms.keyring import TYPE_NAME, EncryptionSettings

_STRATEGY = "large.message.strategy"


def encryption_settings(values: Mapping[str, Any]) -> EncryptionSettings | None:
    """The settings of a pipeline; None if it has no encryption key.

    Raises:
        ConfigurationError: the properties contradict each other, the transforms, or the format of references.
    """
    settings = EncryptionSettings.of(values)
    if settings is None or not settings.writes:
        return settings
    found = f"found {values[TYPE_NAME]!r}"
    if values["reference.format"] != "wideload":
        raise ConfigurationError(
            TYPE_NAME,
            f"{found}, which cannot be combined with reference.format = {values['reference.format']!r}, whose readers "
            "cannot decrypt; leave it out, or set reference.format = 'wideload'",
        )
    offloads = "offload" in values["transforms"] and values[_STRATEGY] != "chunk"
    stores_dead_letters = values[STORE_CLASS] is not None and values["errors.tolerance"] == "all"
    # With inflate alone it has no effect, but is allowed, so that all pipelines of a file can have the same keys.
    if not offloads and not stores_dead_letters and "inflate" not in values["transforms"]:
        raise ConfigurationError(
            TYPE_NAME,
            f"{found}, but this pipeline stores no payloads: chunks and other values stay in Kafka unencrypted; leave "
            f"it out, or use offload with a {_STRATEGY} other than 'chunk'",
        )
    return settings
