"""A worker's configuration in a job: the connection, the stores, and the topics that refer to their payloads.

`wideload job NAME -c FILE` makes a document of the configuration. Under `spark-submit` the document is a file, which
`--write-options` made. `app/config/job_document.py` says what the document holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from transforms.errors import ConfigurationError
from transforms.formats import FormatName
from transforms.identifiers import LIMIT_KEY
from transforms.keyring import PREVIOUS_NAME
from transforms.signing import KEY_NAME
from transforms.text import did_you_mean

__all__ = ["StoreUse", "WorkerConfig"]

_SERVERS = "bootstrap.servers"
_PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")
_LOGIN = "org.apache.kafka.common.security.{}LoginModule required username={} password={};"
_OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"
_MSK = "software.amazon.msk.auth.iam.IAM"  # of Amazon's aws-msk-iam-auth, which the cluster of Spark has to have
_KERBEROS = "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;"
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


@dataclass(frozen=True, slots=True)
class StoreUse:
    """One store, and the topics that refer to its payloads.

    Attributes:
        pipelines: the pipelines that use it.
        store: its configuration; may hold secrets.
        in_flight: the longest time from a payload to its record, as far as the configuration limits it.
        carriers: by topic with payloads in the store, the other topics into which pipelines may carry its references.
        formats: the reference format of each of these topics.
        signing: by topic, the keys `large.message.signing.…`; none where references are not signed. `apart` names the
            pipelines of a topic that share no key.
        encryption: by topic, the keys `large.message.encryption.…`; none where no payload is encrypted.
    """

    pipelines: tuple[str, ...]
    store: Mapping[str, object] = field(repr=False)
    in_flight: timedelta
    carriers: Mapping[str, tuple[str, ...]]
    formats: Mapping[str, FormatName]
    signing: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)
    encryption: Mapping[str, Mapping[str, object]] = field(default_factory=dict, repr=False)

    def signing_of(self, topic: str) -> Mapping[str, object]:
        """The keys that sign and verify references in a topic.

        A topic that no pipeline has may be a copy of any other one: it has the keys that all topics have.

        Raises:
            ConfigurationError: the pipelines of the topic share no key; or no pipeline has it, and the topics of the
                others differ.
        """
        found = self.signing.get(topic)
        if found is None:
            found, *others = self.signing.values() or ({},)
            if any(each != found for each in others):
                raise ConfigurationError(
                    "-c",
                    f"has no pipeline of topic {topic}, and those of the store have different keys; give the keys of "
                    f"the topic with --store {KEY_NAME}=…",
                )
        if apart := found.get("apart"):
            assert isinstance(apart, Sequence)
            raise ConfigurationError(
                "-c",
                f"has no {KEY_NAME} that holds for topic {topic}: pipelines {', '.join(map(str, apart))} share no key; "
                "leave the topic out, or give the keys with --store",
            )
        return found

    def encryption_of(self, topic: str) -> Mapping[str, object]:
        """The keys that encrypt and decrypt the payloads of a topic.

        A topic that no pipeline has may be a copy of any other one: it has the keys that all topics have.

        Raises:
            ConfigurationError: no pipeline has the topic, and the topics of the others differ.
        """
        found = self.encryption.get(topic)
        if found is None:
            found, *others = self.encryption.values() or ({},)
            if any(each != found for each in others):
                raise ConfigurationError(
                    "-c",
                    f"has no pipeline of topic {topic}, and those of the store have different keys of encryption; give "
                    f"the keys of the topic with --store {PREVIOUS_NAME}=…",
                )
        return found

    @property
    def topics(self) -> list[str]:
        """Every topic whose records may refer to payloads of the store, once."""
        return list(dict.fromkeys([*self.carriers, *(name for names in self.carriers.values() for name in names)]))


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The part of the configuration that jobs use.

    Attributes:
        connection: the worker's keys of the connection; may hold secrets.
        topics: every topic in the configuration.
        stores: each store, with its topics.
    """

    connection: Mapping[str, str] = field(repr=False)
    topics: tuple[str, ...]
    stores: tuple[StoreUse, ...]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> WorkerConfig:
        """The configuration in a document.

        Raises:
            ConfigurationError: it is not such a document.
        """
        try:
            return cls(
                connection={str(key): str(value) for key, value in document["connection"].items()},
                topics=tuple(document["topics"]),
                stores=tuple(_use(each) for each in document["stores"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError):
            raise ConfigurationError(
                "--options", "is no document of options; `wideload job NAME -c FILE --write-options` makes one"
            ) from None

    @classmethod
    def load(cls, path: str) -> WorkerConfig:
        """The configuration in a file.

        Raises:
            ConfigurationError: the file cannot be read, or holds no such document.
        """
        try:
            document = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError("--options", f"{path} cannot be read: {error.strerror}") from error
        except ValueError:  # its message may show a part of a secret
            raise ConfigurationError("--options", f"{path} is no JSON") from None
        return cls.of(document)

    @property
    def servers(self) -> str:
        """The bootstrap servers."""
        return self.connection[_SERVERS]

    def use(self, pipeline: str | None, topics: Sequence[str]) -> StoreUse:
        """The store of a pipeline. Without a pipeline: the store of the topics, or the only store.

        Raises:
            ConfigurationError: there is no store, or the user must choose one.
        """
        known = [name for each in self.stores for name in each.pipelines]
        names = ", ".join(known)
        if not self.stores:
            raise ConfigurationError("-c", "is a configuration in which no pipeline has a store")
        if pipeline is not None:
            found = [each for each in self.stores if pipeline in each.pipelines]
            if not found:
                told = f"found {pipeline!r}, those with a store are: {names}{did_you_mean(pipeline, known)}"
                raise ConfigurationError("--pipeline", told)
            return found[0]
        found = list(self.stores)
        if len(found) > 1 and topics:
            found = [each for each in found if not each.carriers.keys().isdisjoint(topics)]
        if len(found) != 1:
            raise ConfigurationError("--pipeline", f"is missing, and there are several stores; name one of: {names}")
        return found[0]

    def java_options(self) -> dict[str, str]:
        """The connection as options of Spark's Kafka source. They hold the certificates, so executors need no files.

        Raises:
            ConfigurationError: a file cannot be read, or Java cannot read a key.
        """
        given = dict(self.connection)
        options = {name: given[name] for name in (LIMIT_KEY, "security.protocol") if name in given}
        protocol = given.get("security.protocol", "PLAINTEXT")
        if protocol.startswith("SASL"):
            options |= _login(given)
        if protocol.endswith("SSL"):
            options |= _certificates(given)
        return {f"kafka.{name}": value for name, value in options.items()}

    def client_options(self) -> dict[str, str]:
        """The connection as options of the data source `wideload`, which reads with aiokafka.

        Raises:
            ConfigurationError: it cannot log in so.
        """
        mechanism = self.connection.get("sasl.mechanism", "PLAIN")
        if mechanism in ("OAUTHBEARER", "AWS_MSK_IAM") and self.connection["security.protocol"].startswith("SASL"):
            raise ConfigurationError(
                "sasl.mechanism",
                f"found {mechanism!r}; this job reads with the data source wideload, which knows PLAIN and SCRAM alone",
            )
        left_out = {_SERVERS, "sasl.kerberos.service.name"}
        return {f"kafka.{name}": value for name, value in self.connection.items() if name not in left_out}


def _use(found: Mapping[str, Any]) -> StoreUse:
    return StoreUse(
        pipelines=tuple(found["pipelines"]),
        store=dict(found["store"]),
        in_flight=timedelta(milliseconds=int(found["in.flight.ms"])),
        carriers={topic: tuple(names) for topic, names in found["carriers"].items()},
        formats=cast("Mapping[str, FormatName]", dict(found["formats"])),
        signing={topic: dict(keys) for topic, keys in found["signing"].items()},
        encryption={topic: dict(keys) for topic, keys in found.get("encryption", {}).items()},
    )


def _login(given: Mapping[str, str]) -> dict[str, str]:
    mechanism = given.get("sasl.mechanism", "PLAIN")
    if mechanism == "GSSAPI":
        service = given.get("sasl.kerberos.service.name", "kafka")
        return {"sasl.mechanism": mechanism, "sasl.kerberos.service.name": service, "sasl.jaas.config": _KERBEROS}
    if mechanism == "AWS_MSK_IAM":
        handler = f"{_MSK}ClientCallbackHandler"
        login = f"{_MSK}LoginModule required;"
        return {"sasl.mechanism": mechanism, "sasl.jaas.config": login, "sasl.client.callback.handler.class": handler}
    if mechanism == "OAUTHBEARER":
        return _token_login(given)
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    user, password = (f'"{given.get(name, "").translate(_ESCAPED)}"' for name in ("sasl.username", "sasl.password"))
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": _LOGIN.format(module, user, password)}


def _token_login(given: Mapping[str, str]) -> dict[str, str]:
    """As Kafka's clients before 4.1 take it, and later ones too: id and secret in the login (KIP-768)."""
    credentials, url = "sasl.oauthbearer.client.credentials.client.", "sasl.oauthbearer.token.endpoint.url"
    names = {"clientId": f"{credentials}id", "clientSecret": f"{credentials}secret", "scope": "sasl.oauthbearer.scope"}
    parts = [f'{name}="{given[key].translate(_ESCAPED)}"' for name, key in names.items() if key in given]
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{_OAUTH}CallbackHandler",
        url: given.get(url, ""),
        "sasl.jaas.config": f"{_OAUTH}Module required {' '.join(parts)};",
    }


def _certificates(given: Mapping[str, str]) -> dict[str, str]:
    algorithm = given.get("ssl.endpoint.identification.algorithm", "https")
    options = {"ssl.endpoint.identification.algorithm": "" if algorithm == "none" else algorithm}
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
    """Adds the text of the PEM file that the key `name` gives."""
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
            "is not PKCS #8, and Java reads no other keys; `openssl pkcs8 -topk8 -in FILE -out FILE.p8` makes one",
        )
