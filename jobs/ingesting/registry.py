"""A schema registry with Confluent's API: schemas by their id or GUID, and the newest of a subject.

Four requests are made, each a GET. An answer is read up to 4 MiB and 30 seconds; redirects are not followed, so that
credentials go to the given address alone. Confluent's own client has no such limits, and more packages behind it.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import quote, urlsplit
from uuid import UUID

from jobs.driver.failures import JobFailedError
from jobs.ingesting.codec import BadValueError
from transforms.errors import ConfigurationError
from transforms.text import printable

__all__ = ["CONFIG", "OPTION", "Registered", "Registry", "RegistrySettings", "SchemaId", "SchemaType"]

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]
SchemaId = int | UUID
"""An id counts within one registry. A GUID is the same in all; Confluent's registry has them since Platform 8.0."""

OPTION = "--schema-registry-url"
CONFIG = "--schema-registry-config"
_SOURCE = "basic.auth.credentials.source"
_CA, _CERTIFICATE = "ssl.ca.location", "ssl.certificate.location"
_KEY, _KEY_PASSWORD = "ssl.key.location", "ssl.key.password"
_KEYS = ("basic.auth.user.info", _SOURCE, "bearer.auth.token", _CA, _CERTIFICATE, _KEY, _KEY_PASSWORD)
_MOST_BYTES = 4 * 2**20
_MOST_REFERENCES = 64
_CONNECT_SECONDS, _READ_SECONDS, _ANSWER_SECONDS = 5.0, 10.0, 30.0
_TRIES = 4
_PAUSE = 0.25
_BUSY = (429, 500, 502, 503, 504)
_PIECE = 65_536


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
                OPTION, f"holds credentials, which the list of processes shows; put {_KEYS[0]}=USER:PASSWORD into a "
                f"file, and name it with {CONFIG}"
            )  # fmt: skip
        for name in self.options:
            if name not in _KEYS:
                raise ConfigurationError(CONFIG, f"has the unknown key {name!r}; allowed are {', '.join(_KEYS)}")
        if self.options.get(_SOURCE, "USER_INFO") != "USER_INFO":
            raise ConfigurationError(CONFIG, f"has another {_SOURCE} than USER_INFO, the only one that is known here")
        if ":" not in self.options.get(_KEYS[0], ":"):
            raise ConfigurationError(CONFIG, f"has {_KEYS[0]}, which is not USER:PASSWORD")

    def headers(self) -> dict[str, str]:
        """What every request says of itself."""
        from urllib3.util import make_headers

        found = {"Accept": "application/vnd.schemaregistry.v1+json, application/json", "Accept-Encoding": "identity"}
        if "basic.auth.user.info" in self.options:
            found |= make_headers(basic_auth=self.options["basic.auth.user.info"])
        elif "bearer.auth.token" in self.options:
            found["Authorization"] = f"Bearer {self.options['bearer.auth.token']}"
        return found


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema of the registry.

    Attributes:
        kind: of the schema.
        text: the schema itself.
        references: the schemas that it refers to, by the name that it uses for each; before those that refer to them.
    """

    kind: SchemaType
    text: str
    references: Mapping[str, str] = field(default_factory=dict)


class Registry:
    """Asks the registry. Not for several threads.

    Args:
        settings: how to reach it.

    Raises:
        ConfigurationError: a certificate or a key cannot be used.
    """

    def __init__(self, settings: RegistrySettings) -> None:
        import urllib3

        from stores.http_time import POOLS

        self._url = settings.url.rstrip("/")
        self._pool = urllib3.PoolManager(
            headers=settings.headers(),
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS),
            retries=False,
            ssl_context=_context(settings.options) if self._url.startswith("https:") else None,
        )
        self._pool.pool_classes_by_scheme = POOLS

    def newest(self, subject: str) -> Registered:
        """The newest schema of a subject.

        Raises:
            BadValueError: the schema is of an unknown kind, or refers to too many others.
            ConfigurationError: there is no such subject, or the registry refuses the credentials.
            JobFailedError: the registry does not answer as one.
        """
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest")
        if found is None:
            raise ConfigurationError(
                "--schema-registry-subject",
                f"the registry at {self._url} has no subject {subject!r}; name the one of the values",
            )
        return self._registered(found)

    def schema(self, which: SchemaId) -> Registered | None:
        """The schema with this id or GUID; None if there is none, or if the registry knows no GUIDs.

        Raises:
            BadValueError: the schema is of an unknown kind, too long, or refers to too many others, or to none.
            ConfigurationError: the registry refuses the credentials.
            JobFailedError: the registry does not answer as one.
        """
        found = self._get(f"/schemas/{'ids' if isinstance(which, int) else 'guids'}/{which}")
        return None if found is None else self._registered(found)

    def _registered(self, found: Mapping[str, Any]) -> Registered:
        references: dict[str, str] = {}
        self._gather(found, references)
        kind = found.get("schemaType") or "AVRO"
        if kind not in ("AVRO", "JSON", "PROTOBUF"):
            raise BadValueError(f"whose schema is of the type {printable(str(kind), 40)}, which is unknown")
        return Registered(cast("SchemaType", kind), found["schema"], references)

    def _gather(self, found: Mapping[str, Any], into: dict[str, str]) -> None:
        """Adds the schemas that one refers to, each once, those that others need first."""
        asked: set[str] = set()

        def add(schema: Mapping[str, Any]) -> None:
            if not isinstance(schema.get("schema"), str):
                raise self._odd("an answer without a schema")
            for each in _listed(schema.get("references")):
                try:
                    name, subject, version = (
                        str(each["name"]),
                        quote(str(each["subject"]), safe=""),
                        int(each["version"]),
                    )
                except (TypeError, LookupError, ValueError, OverflowError):
                    raise self._odd("a reference without name, subject and version") from None
                if name in asked:
                    continue
                asked.add(name)
                if len(asked) > _MOST_REFERENCES:
                    raise BadValueError(f"whose schema refers to more than {_MOST_REFERENCES} others")
                other = self._get(f"/subjects/{subject}/versions/{version}")
                if other is None:
                    missing = printable(f"version {version} of {subject}", 100)
                    raise BadValueError(f"whose schema refers to {missing}, which the registry does not have")
                add(other)
                into[name] = other["schema"]

        add(found)

    def _get(self, path: str) -> dict[str, Any] | None:
        """The answer; None for 404. Tries again where the registry is busy or not there."""
        import urllib3

        from stores.http_time import LateError, within

        reason = "no answer"
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE * 2**attempt)
            try:
                with within(_ANSWER_SECONDS):
                    status, body = self._answer(path)
            except LateError:
                reason = f"its answer takes longer than {_ANSWER_SECONDS:.0f} seconds"
                continue
            except urllib3.exceptions.HTTPError as exc:
                if exc.args and isinstance(exc.args[0], ssl.SSLCertVerificationError):
                    raise ConfigurationError(
                        CONFIG,
                        f"the certificate of the registry at {self._url} is not trusted: {exc.args[0].verify_message}; "
                        f"name the file of its authority with {_CA}",
                    ) from exc
                reason = type(exc).__name__ if not exc.args else _first_line(exc)
                continue
            if status == 404:  # noqa: PLR2004  # known by its number
                return None
            if status in (401, 403):
                raise ConfigurationError(
                    CONFIG, f"the registry at {self._url} refuses these credentials, or lacks them: status {status}"
                )
            if status not in _BUSY:
                return self._parsed(status, body)
            reason = f"status {status}"
        raise JobFailedError(f"the schema registry at {self._url} does not answer: {reason}; {_TRIES} tries")

    def _answer(self, path: str) -> tuple[int, bytes]:
        answer = self._pool.request("GET", f"{self._url}{path}", redirect=False, preload_content=False)
        try:
            body = b""
            while piece := answer.read1(_PIECE, decode_content=False):
                body += piece
                if len(body) > _MOST_BYTES:
                    if answer.status == 200 and body.lstrip().startswith(b"{"):  # noqa: PLR2004  # known by its number
                        raise BadValueError(f"whose schema is more than {_MOST_BYTES:,} bytes")
                    raise self._odd(f"more than {_MOST_BYTES:,} bytes")
            return answer.status, body
        finally:
            answer.close()

    def _parsed(self, status: int, body: bytes) -> dict[str, Any]:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if status != 200 or not isinstance(found, dict):  # noqa: PLR2004  # known by its number
            raise self._odd(f"status {status}, {len(body):,} bytes")
        return found

    def _odd(self, what: str) -> JobFailedError:
        return JobFailedError(f"{self._url} does not answer as a schema registry: {what}")


def _listed(found: Any) -> list[Any]:
    """References of an answer; anything but a list is one that is wrong."""
    return found if isinstance(found, list) else [found] if found else []


def _context(options: Mapping[str, str]) -> ssl.SSLContext:
    """What TLS needs: the authorities of this machine, or those of the user; and the user's own certificate."""
    ca, certificate, key = (options.get(name) for name in (_CA, _CERTIFICATE, _KEY))
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as exc:  # an error of TLS is one too
        raise ConfigurationError(CONFIG, f"{_CA} {ca} cannot be used: {_reason(exc)}") from exc
    if certificate is None:
        if key is not None:
            raise ConfigurationError(CONFIG, f"has {_KEY} without {_CERTIFICATE}")
        return context
    try:
        # Without a password OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(certificate, key, options.get(_KEY_PASSWORD, ""))
    except (OSError, ValueError) as exc:
        files = f"{_CERTIFICATE} {certificate}" + (f", {_KEY} {key}" if key else "")
        raise ConfigurationError(
            CONFIG, f"{files} cannot be used: {_reason(exc)}; {_KEY_PASSWORD} opens a key"
        ) from exc
    return context


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
