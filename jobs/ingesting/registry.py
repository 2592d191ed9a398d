"""A schema registry with Confluent's API: schemas by their id or GUID, and the newest of a subject.

The requests are urllib3's. Confluent's own client reads an answer however long it is and however slowly it comes,
trusts the authorities of a package in place of the machine's, and refuses a token without a logical cluster.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

from jobs.driver.failures import JobFailedError
from transforms.errors import ConfigurationError, TransformError
from transforms.text import printable

SchemaId = int | UUID
"""An id counts within one registry. A GUID is the same in all; Confluent's registry has them since Platform 8.0."""

MOST_FIELDS = 10_000
"""The most fields of a schema, with those of a shared type counted wherever it is used: a few types make billions."""

Reader = Callable[[bytes], bytes]
"""Makes values of one schema plain; whatever it raises, the value is bad."""

OPTION = "--schema-registry-url"
CONFIG = "--schema-registry-config"
_USER, _SOURCE, _TOKEN = "basic.auth.user.info", "basic.auth.credentials.source", "bearer.auth.token"
_CA, _CERTIFICATE = "ssl.ca.location", "ssl.certificate.location"
_KEY, _KEY_PASSWORD = "ssl.key.location", "ssl.key.password"
_KEYS = (_USER, _SOURCE, _TOKEN, _CA, _CERTIFICATE, _KEY, _KEY_PASSWORD)
_MOST_BYTES = 4 * 2**20
_MOST_REFERENCES = 64
_CONNECT_SECONDS, _READ_SECONDS, _SECONDS = 5.0, 10.0, 60.0
_TRIES = 4
_PAUSE = 0.25
_OK, _NOT_FOUND, _REFUSED, _BUSY = 200, 404, (401, 403), (429, 500, 502, 503, 504)


class BadValueError(TransformError):
    """A value cannot be read, or a schema not used; the text is the end of a sentence, and has nothing of the value."""


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """How to reach the registry; goes to executors.

    Attributes:
        url: its address, without credentials.
        options: named as in Confluent's clients; files are on driver and executors. May hold secrets.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def check(self) -> None:
        """Looks at the settings; makes no request.

        Raises:
            ConfigurationError: the URL or an option cannot be right. The message repeats no secret.
        """
        try:
            parts = urlsplit(self.url)
            whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            whole = False
        if not whole or parts.query or parts.fragment:
            raise ConfigurationError(OPTION, "is http://HOST:PORT or https://HOST:PORT, with a path if there is one")
        if parts.username is not None or parts.password is not None:
            raise ConfigurationError(
                OPTION,
                f"contains credentials, which the list of processes would show; put {_USER}=USER:PASSWORD into a "
                f"file, and pass the file with {CONFIG}",
            )
        for name in self.options:
            if name not in _KEYS:
                raise ConfigurationError(CONFIG, f"has the unknown property {name!r}; allowed are {', '.join(_KEYS)}")
        if self.options.get(_SOURCE, "USER_INFO") != "USER_INFO":
            raise ConfigurationError(CONFIG, f"has a {_SOURCE} other than USER_INFO, the only supported value")
        if ":" not in self.options.get(_USER, ":"):
            raise ConfigurationError(CONFIG, f"has {_USER}, which is not USER:PASSWORD")

    def context(self) -> ssl.SSLContext:
        """What TLS needs: the authorities of this machine or of the user, and the user's own certificate.

        Raises:
            ConfigurationError: a file cannot be used.
        """
        ca, certificate, key = (self.options.get(name) for name in (_CA, _CERTIFICATE, _KEY))
        if key and not certificate:
            raise ConfigurationError(CONFIG, f"has {_KEY} without {_CERTIFICATE}")
        files = f"{_CA} {ca}"
        try:
            context = ssl.create_default_context(cafile=ca)
            if certificate:
                files = f"{_CERTIFICATE} {certificate}, {_KEY} {key or certificate} (opened by {_KEY_PASSWORD})"
                # Without a password OpenSSL would ask the terminal for that of an encrypted key.
                context.load_cert_chain(certificate, key, self.options.get(_KEY_PASSWORD, ""))
        except (OSError, ValueError) as exc:  # an error of TLS is an OSError
            reason = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or exc
            raise ConfigurationError(CONFIG, f"{files} cannot be used: {reason}") from exc
        return context


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema of the registry.

    Attributes:
        kind: AVRO, JSON or PROTOBUF; or another one.
        text: the schema itself.
        references: the schemas that it refers to, by the name that it uses for each; before those that refer to them.
    """

    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)


class Registry:
    """Asks the registry.

    Raises:
        ConfigurationError: a certificate or a key cannot be used.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        import urllib3

        from stores.http_time import POOLS

        self._url = settings.url.rstrip("/")
        # Whatever the server asks for: a pause that it names may be for days, and credentials go to no other host.
        retries = urllib3.Retry(
            _TRIES - 1, other=0, status_forcelist=_BUSY, backoff_factor=_PAUSE, raise_on_status=False,
            respect_retry_after_header=False,
        )  # fmt: skip
        token = settings.options.get(_TOKEN)
        self._pool = urllib3.PoolManager(
            headers={
                "Accept": "application/vnd.schemaregistry.v1+json, application/json",
                **({"Authorization": f"Bearer {token}"} if token is not None else {}),
                **urllib3.make_headers(accept_encoding="identity", basic_auth=settings.options.get(_USER)),
            },
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS),
            retries=retries,
            ssl_context=settings.context() if self._url.startswith("https:") else None,
        )
        self._pool.pool_classes_by_scheme = POOLS

    def schema(self, which: SchemaId | str) -> Registered | None:
        """The schema with this id or GUID, or the newest of this subject; None if there is none.

        Raises:
            BadValueError: the schema is too long, or refers to too many others, or to none.
            ConfigurationError: the registry refuses the credentials.
            JobFailedError: the registry does not answer as one.
        """
        if isinstance(which, str):
            found = self._get(f"/subjects/{quote(which, safe='')}/versions/latest")
        else:
            found = self._get(f"/schemas/{'ids' if isinstance(which, int) else 'guids'}/{which}")
        if found is None:
            return None
        references: dict[str, str] = {}
        self._gather(found, references, set())
        return Registered(str(found.get("schemaType") or "AVRO"), found["schema"], references)

    def _gather(self, schema: Mapping[str, Any], into: dict[str, str], asked: set[str]) -> None:
        """Adds the schemas that one refers to, each once, those that others need first."""
        found = schema.get("references") or ()
        for each in found if isinstance(found, list | tuple) else (found,):
            try:
                name, version = str(each["name"]), int(each["version"])
                path = f"/subjects/{quote(str(each['subject']), safe='')}/versions/{version}"
            except (TypeError, LookupError, ValueError, OverflowError):
                raise self._odd("a reference without name, subject and version") from None
            if name in asked:
                continue
            asked.add(name)
            if len(asked) > _MOST_REFERENCES:
                raise BadValueError(f"whose schema refers to more than {_MOST_REFERENCES} others")
            other = self._get(path)
            if other is None:
                missing = printable(f"version {version} of {each['subject']}", 100)
                raise BadValueError(f"whose schema refers to {missing}, which the registry does not have")
            self._gather(other, into, asked)
            into[name] = other["schema"]

    def _get(self, path: str) -> dict[str, Any] | None:
        """The answer, which has a schema; None for 404."""
        import urllib3

        from stores.http_time import LateError, within

        try:
            with (
                within(_SECONDS),
                self._pool.request("GET", f"{self._url}{path}", redirect=False, preload_content=False) as answer,
            ):
                body = answer.read(_MOST_BYTES + 1, decode_content=False)
        except LateError as exc:
            raise self._away(f"its answer takes longer than {_SECONDS:.0f} seconds") from exc
        except urllib3.exceptions.HTTPError as exc:
            cause = getattr(exc, "reason", None) or exc
            error = cause.args[0] if cause.args else type(cause).__name__
            if isinstance(error, ssl.SSLCertVerificationError):
                raise ConfigurationError(
                    CONFIG,
                    f"the certificate of the registry at {self._url} is not trusted: {error.verify_message}; name the "
                    f"file of its authority with {_CA}",
                ) from exc
            raise self._away(f"{str(cause).partition(chr(10))[0][:200]}; {_TRIES} tries") from exc
        if answer.status == _NOT_FOUND:
            return None
        if answer.status in _REFUSED:
            raise ConfigurationError(
                CONFIG,
                f"the registry at {self._url} refuses these credentials, or requires some: status {answer.status}",
            )
        if answer.status in _BUSY:
            raise self._away(f"status {answer.status}; {_TRIES} tries")
        if len(body) > _MOST_BYTES and answer.status == _OK and body.lstrip().startswith(b"{"):
            raise BadValueError(f"whose schema is more than {_MOST_BYTES:,} bytes")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if answer.status != _OK or not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise self._odd(f"status {answer.status}, {len(body):,} bytes without a schema")
        return found

    def _away(self, reason: str) -> JobFailedError:
        return JobFailedError(f"the schema registry at {self._url} does not answer: {reason}")

    def _odd(self, what: str) -> JobFailedError:
        return JobFailedError(f"{self._url} does not answer as a schema registry: {what}")
