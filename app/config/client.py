"""The configuration of a client that an application embeds: what it says of the connection, and of names.

Values may be of their own type or strings, as Kafka's clients take both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.config.fields import settings_of
from app.config.keys import SECURITY_KEYS
from app.config.secret import hidden
from app.config.settings import CONNECTION_KEYS, ClientSettings
from stores.keys import Key, read
from transforms.identifiers import LIMIT_KEY

__all__ = ["LIMIT", "coerced", "embedded_client_settings", "limits_names"]

LIMIT = Key(
    LIMIT_KEY,
    "boolean",
    "Whether names are held to the limits of Kafka 5.0 before a request is made (docs/limits.md). The client does not "
    "see this key.",
    default=True,
)


def embedded_client_settings(config: Mapping[str, object]) -> ClientSettings:
    """How the client of this configuration reaches its cluster.

    Raises:
        ConfigurationError: it does so in a way that this project's own clients do not know.
    """
    given = dict(config)
    if "sasl.mechanisms" in given:  # librdkafka's name for it
        given.setdefault("sasl.mechanism", given["sasl.mechanisms"])
    if "security.protocol" in given:
        given["security.protocol"] = str(given["security.protocol"]).upper()
    values = read(CONNECTION_KEYS, coerced(CONNECTION_KEYS, given))
    security = {key.name: hidden(values[key.name]) if key.secret else values[key.name] for key in SECURITY_KEYS}
    return settings_of(ClientSettings, values, security=security)


def limits_names(config: Mapping[str, object]) -> bool:
    """Whether names in this configuration are held to the limits of Kafka 5.0.

    Raises:
        ConfigurationError: the key says neither yes nor no.
    """
    return read([LIMIT], coerced([LIMIT], config))[LIMIT_KEY] is True


def coerced(keys: Iterable[Key], config: Mapping[str, object]) -> dict[str, object]:
    """The values of `keys` in a configuration, texts as what their keys take; without those that are not given."""
    return {key.name: key.coerce(config[key.name]) for key in keys if config.get(key.name) is not None}
