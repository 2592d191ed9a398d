"""Conversion between the properties of Kafka's Java client and ours.

Spark's Kafka source is a Java client. A `client.properties` of Kafka's own tools is for one, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from app.config.settings import ClientSettings
from transforms.errors import ConfigurationError

_PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")
_LOGIN = "org.apache.kafka.common.security.{}LoginModule required username={} password={};"
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"
_MSK = "software.amazon.msk.auth.iam.IAM"  # of Amazon's aws-msk-iam-auth, which the cluster of Spark has to have
_KERBEROS = "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;"
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})
_JAAS = "sasl.jaas.config"
_PAIR = re.compile(r'\b(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_CHECK = "ssl.endpoint.identification.algorithm"
_CREDENTIALS = "sasl.oauthbearer.client.credentials.client."
_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"

# The parameters of a Java login, and our property for each.
_OF_LOGIN = {
    "username": "sasl.username",
    "password": "sasl.password",
    "clientId": f"{_CREDENTIALS}id",
    "clientSecret": f"{_CREDENTIALS}secret",
    "scope": "sasl.oauthbearer.scope",
}
_PEM_FILES = {"ssl.truststore": ("ssl.ca.location",), "ssl.keystore": ("ssl.certificate.location", "ssl.key.location")}
# Where Java finds certificates, and our properties for them.
_OF_STORES = {
    "ssl.truststore.": "ssl.ca.location",
    "ssl.keystore.": "ssl.certificate.location and ssl.key.location",
}


class JavaOnlyError(ConfigurationError):
    """A property that only Kafka's Java client supports."""


def from_java(given: Mapping[str, str]) -> dict[str, str]:
    """The properties of our clients for those of Kafka's Java client; those that both have are unchanged.

    The login in `sasl.jaas.config` becomes user and password, or id and secret. Stores of PEM files become their paths
    (KIP-651). An empty algorithm, with which Java does not verify host names, becomes `none`.

    Raises:
        JavaOnlyError: one of them is supported by Java only.
    """
    given = dict(given)
    if given.get(_CHECK) == "":
        given[_CHECK] = "none"
    for store, names in _PEM_FILES.items():
        if given.get(f"{store}.type") == "PEM" and f"{store}.location" in given:
            del given[f"{store}.type"]
            given |= dict.fromkeys(names, given.pop(f"{store}.location"))
    for name in given:
        for prefix, ours in _OF_STORES.items():
            if name.startswith(prefix):
                raise JavaOnlyError(name, f"is supported by Java clients only; this client reads PEM files: set {ours}")
    found = {name: value for name, value in given.items() if name != _JAAS and not name.endswith(".handler.class")}
    mechanism = given.get("sasl.mechanism", "PLAIN")
    if _JAAS in given and mechanism not in ("GSSAPI", "AWS_MSK_IAM"):
        pairs = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _PAIR.findall(given[_JAAS])}
        login = {ours: pairs[name] for name, ours in _OF_LOGIN.items() if name in pairs}
        wanted = ("clientId", "clientSecret") if mechanism == "OAUTHBEARER" else ("username", "password")
        if not all(pairs.get(name) for name in wanted):
            one, other = wanted
            raise JavaOnlyError(_JAAS, f'has no {one} and {other}; allowed is … {one}="…" {other}="…";')
        found |= login
    return found


def to_java(client: ClientSettings) -> dict[str, str]:
    """How a Java client reaches the same cluster. The properties hold the certificates, so executors need no files.

    Raises:
        ConfigurationError: a file cannot be read, or Java cannot read a key.
    """
    given = {name: str(value) for name, value in client.security.items() if value is not None}
    protocol = given["security.protocol"]
    options = {"bootstrap.servers": client.bootstrap_servers, "security.protocol": protocol}
    if protocol.startswith("SASL"):
        options |= _login(given)
    if protocol.endswith("SSL"):
        options |= _certificates(given)
    return options


def _login(given: Mapping[str, str]) -> dict[str, str]:
    mechanism = given["sasl.mechanism"]
    if mechanism == "GSSAPI":
        service = given.get("sasl.kerberos.service.name", "kafka")
        return {"sasl.mechanism": mechanism, "sasl.kerberos.service.name": service, _JAAS: _KERBEROS}
    if mechanism == "AWS_MSK_IAM":
        handler = f"{_MSK}ClientCallbackHandler"
        login = f"{_MSK}LoginModule required;"
        return {"sasl.mechanism": mechanism, _JAAS: login, "sasl.client.callback.handler.class": handler}
    if mechanism == "OAUTHBEARER":
        return _token_login(given)
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    user, password = (f'"{given.get(name, "").translate(_ESCAPED)}"' for name in ("sasl.username", "sasl.password"))
    return {"sasl.mechanism": mechanism, _JAAS: _LOGIN.format(module, user, password)}


def _token_login(given: Mapping[str, str]) -> dict[str, str]:
    """Id and secret in the login (KIP-768), which Kafka's clients before 4.1 and later ones accept."""
    names = {name: ours for name, ours in _OF_LOGIN.items() if ours.startswith("sasl.oauthbearer.")}
    parts = [f'{name}="{given[ours].translate(_ESCAPED)}"' for name, ours in names.items() if ours in given]
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{_OAUTH}CallbackHandler",
        _ENDPOINT: given.get(_ENDPOINT, ""),
        _JAAS: f"{_OAUTH}Module required {' '.join(parts)};",
    }


def _certificates(given: Mapping[str, str]) -> dict[str, str]:
    algorithm = given.get(_CHECK, "https")
    options = {_CHECK: "" if algorithm == "none" else algorithm}
    _add(options, given, "ssl.ca.location", "ssl.truststore", "ssl.truststore.certificates")
    _add(options, given, "ssl.certificate.location", "ssl.keystore", "ssl.keystore.certificate.chain")
    _add(options, given, "ssl.key.location", "ssl.keystore", "ssl.keystore.key", _check_key)
    if "ssl.key.password" in given and "ssl.key.location" in given:
        options["ssl.key.password"] = given["ssl.key.password"]
    return options


def _add(
    options: dict[str, str],
    given: Mapping[str, str],
    name: str,
    store: str,
    option: str,
    check: Callable[[str], None] = lambda _: None,
) -> None:
    """Adds the text of the PEM file that the property `name` gives."""
    if name not in given:
        return
    try:
        text = Path(given[name]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(name, f"{given[name]} cannot be read: {error}") from error
    check(text)
    options |= {f"{store}.type": "PEM", option: text}


def _check_key(text: str) -> None:
    if not any(begin in text for begin in _PKCS8):
        raise ConfigurationError(
            "ssl.key.location",
            "is not in PKCS #8 format, the only one that Java reads; convert it with `openssl pkcs8 -topk8 -in FILE "
            "-out FILE.p8`",
        )
