"""The connection settings of a client that an application embeds, read from its configuration.

Values may have their own type or be strings, as in Kafka's clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.config.fields import settings_of
from app.config.keys import SECURITY_KEYS
from app.config.secret import known
from app.config.settings import CONNECTION_KEYS, ClientSettings
from stores.keys import Key, read
from transforms.identifiers import LIMIT_KEY

LIMIT = Key(
    LIMIT_KEY,
    "boolean",
    "Whether names must comply with the maximum lengths that are proposed for Kafka 5.0 ([limits](limits.md)). They "
    "are checked before a request is sent. This property is not passed to the client.",
    default=True,
)


def embedded_client_settings(config: Mapping[str, object]) -> ClientSettings:
    """The settings with which our clients reach the cluster of the client of this configuration.

    Raises:
        ConfigurationError: our clients do not support a value.
    """
    given = dict(config)
    if "sasl.mechanisms" in given:  # librdkafka's name for it
        given.setdefault("sasl.mechanism", given["sasl.mechanisms"])
    for name in ("client.id", "client.secret"):  # librdkafka's names of former releases
        if (former := f"sasl.oauthbearer.{name}") in given:
            given.setdefault(f"sasl.oauthbearer.client.credentials.{name}", given[former])
    if "security.protocol" in given:
        given["security.protocol"] = str(given["security.protocol"]).upper()
    values = read(CONNECTION_KEYS, coerced(CONNECTION_KEYS, given))
    security = {key.name: known(values[key.name]) if key.secret else values[key.name] for key in SECURITY_KEYS}
    return settings_of(ClientSettings, values, security=security)


def limits_names(config: Mapping[str, object]) -> bool:
    """Whether names in this configuration must be within the limits of Kafka 5.0.

    Raises:
        ConfigurationError: the value is not a boolean.
    """
    return read([LIMIT], coerced([LIMIT], config))[LIMIT_KEY] is True


def coerced(keys: Iterable[Key], config: Mapping[str, object]) -> dict[str, object]:
    """The given values of `keys`; a text is converted to the type of its property."""
    return {key.name: key.coerce(config[key.name]) for key in keys if config.get(key.name) is not None}
