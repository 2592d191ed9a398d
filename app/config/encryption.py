"""Whether what a pipeline says of encryption can hold: the keys `large.message.encryption.…`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stores.registry import STORE_CLASS
from transforms.errors import ConfigurationError
from transforms.keyring import TYPE_NAME, EncryptionSettings

_STRATEGY = "large.message.strategy"


def encryption_settings(values: Mapping[str, Any]) -> EncryptionSettings | None:
    """The settings of a pipeline; None if it has no key of encryption.

    Raises:
        ConfigurationError: the keys contradict each other, the transforms, or the format of references.
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
    stores_letters = values[STORE_CLASS] is not None and values["errors.tolerance"] == "all"
    # Without effect it may stand beside inflate, so that the pipelines of a file can have the same keys.
    if not offloads and not stores_letters and "inflate" not in values["transforms"]:
        raise ConfigurationError(
            TYPE_NAME,
            f"{found}, but this pipeline stores no payloads: chunks and other values stay in Kafka unencrypted; leave "
            f"it out, or use offload with a {_STRATEGY} other than 'chunk'",
        )
    return settings
