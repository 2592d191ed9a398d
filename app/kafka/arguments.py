"""Maps the properties of a Kafka configuration to the arguments of a Python client.

`max.request.size` is `max_request_size`, and so on; strings that hold numbers are converted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.config.client import embedded_client_settings
from app.config.keys import SECURITY_KEYS
from app.kafka.clients import security_arguments
from app.kafka.tokens import TOKEN_MECHANISMS, TokenProvider
from transforms.errors import ConfigurationError

_BOOTSTRAP, _PROTOCOL, _MECHANISM = "bootstrap.servers", "security.protocol", "sasl.mechanism"
_PROVIDER = "sasl_oauth_token_provider"
# Properties that no client has as arguments: they are read here.
_TLS = tuple(key.name for key in SECURITY_KEYS if key.name.startswith("ssl."))
_TOKENS = tuple(key.name for key in SECURITY_KEYS if key.name.startswith(("sasl.oauthbearer.", "sasl.aws.")))
# Properties of Kafka or librdkafka for which both Python clients use another name.
_RENAMED: Mapping[str, str] = {
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
_NUMBERS = ("_ms", "_bytes", "_records", "_size")
# Kafka's words that these clients expect in another form, or in a property whose other values are numbers.
_WORDS: Mapping[tuple[str, str], object] = {("compression_type", "none"): None, ("acks", "all"): "all"}
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a client's constructor.

    Attributes:
        defaults: the arguments by name, with their defaults.
        renamed: properties whose argument has another name.
        aside: properties that only the serializers read, as the client has no such argument.
        tokens: converts a provider of `app.kafka.tokens` to one that the client accepts; None if it accepts none.
    """

    defaults: Mapping[str, object]
    renamed: Mapping[str, str] = field(default_factory=dict)
    aside: frozenset[str] = frozenset()
    tokens: Callable[[TokenProvider], object] | None = None

    @classmethod
    def of(cls, client: type, **more: Any) -> Arguments:
        """The arguments of one of aiokafka's clients; `more` has the other attributes."""
        parameters = inspect.signature(client).parameters.values()
        named = {each.name: each.default for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
        return cls(named, tokens=(lambda provider: provider) if _PROVIDER in named else None, **more)

    def without(self, ending: str) -> Arguments:
        """A copy without the arguments whose names have this ending."""
        defaults = {name: value for name, value in self.defaults.items() if not name.endswith(ending)}
        return replace(self, defaults=defaults)

    def keys(self) -> list[str]:
        """Every property of a configuration that belongs to the client."""
        own = (name.replace("_", ".") for name in self.defaults)
        return [*own, *_RENAMED, *self.renamed, *self._read_here, *self.aside]

    @property
    def _read_here(self) -> tuple[str, ...]:
        return (*_TLS, *_TOKENS) if self.tokens else _TLS

    def merged(self, config: Mapping[str, object], options: Mapping[str, object]) -> dict[str, object]:
        """`config` together with `options`, whose names are Python's: `max_request_size` for `max.request.size`.

        Raises:
            ConfigurationError: a property is set in both.
        """
        whole = dict(config)
        for name, value in options.items():
            key = name.replace("_", ".")
            if key in config:
                raise ConfigurationError(key, f"is set in the configuration and as {name}=; set one of the two")
            whole[key] = value
        return whole

    def read(self, client: Mapping[str, object]) -> dict[str, Any]:
        """The arguments for the properties of a configuration that are left for the client.

        Raises:
            ConfigurationError: an argument is set twice, a value is not a number, or a certificate cannot be used.
        """
        arguments: dict[str, Any] = {}
        for key, value in client.items():
            name = self._name(key)
            if name is None:
                continue
            if name in arguments:
                raise ConfigurationError(key, f"says again what {name} is")
            arguments[name] = self._value(key, name, value)
        given = {key: client[key] for key in (_BOOTSTRAP, *self._read_here) if client.get(key) is not None}
        # kafka-python creates a context itself, from files for which it has other properties; aiokafka never does.
        needs_context = "ssl_cafile" not in self.defaults or any(key in given for key in _TLS)
        encrypts = str(client.get(_PROTOCOL)).upper().endswith("SSL")
        if encrypts and needs_context and arguments.get("ssl_context") is None:
            # Any address will do, as no connection is made.
            settings = embedded_client_settings({**given, _BOOTSTRAP: "-", _PROTOCOL: "SSL"})
            arguments["ssl_context"] = security_arguments(settings)["ssl_context"]
        mechanism = arguments.get("sasl_mechanism")
        if self.tokens and mechanism in TOKEN_MECHANISMS and arguments.get(_PROVIDER) is None:
            settings = embedded_client_settings({**given, _PROTOCOL: "SASL_PLAINTEXT", _MECHANISM: mechanism})
            login = security_arguments(settings)
            arguments |= {"sasl_mechanism": login["sasl_mechanism"], _PROVIDER: self.tokens(login[_PROVIDER])}
        return arguments

    def _name(self, key: str) -> str | None:
        name = self.renamed.get(key) or _RENAMED.get(key) or key.replace(".", "_")
        return name if name in self.defaults and "_" not in key else None

    def _value(self, key: str, name: str, value: object) -> object:
        if not isinstance(value, str):
            return value
        if name == "security_protocol":
            return value.upper()
        if (name, value) in _WORDS:
            return _WORDS[name, value]
        default, allowed = self.defaults[name], "a number"
        try:
            if isinstance(default, bool):
                allowed = "true or false"
                return _TRUTH[value.strip().lower()]
            if name == "acks" or isinstance(default, int | float) or name.endswith(_NUMBERS):
                return int(value) if value.strip().lstrip("+-").isdigit() else float(value)
        except (KeyError, ValueError):
            raise ConfigurationError(key, f"found {value!r}, allowed is {allowed}") from None
        return value
