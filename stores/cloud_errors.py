"""Translates the errors of obstore and of a cloud's REST interface into the project's errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from stores.bucket import KeptError
from transforms.errors import PayloadNotFoundError, PayloadStoreAccessError, PayloadStoreError, PayloadUnfitError
from transforms.text import printable

_TEXT_CHARACTERS = 1_000
_DEBUG = "\n\nDebug source:"  # where obstore adds the whole chain of causes to its message
_STATUS = re.compile(r"non-2xx status code: (\d{3})[^:]*:? ?(.*)", re.DOTALL)
_CODES = re.compile(r'<Code>([A-Za-z0-9]{1,100})</Code>|"reason": ?"([A-Za-z0-9]{1,100})"')
_SAID = re.compile(r'<Message>(.*?)</Message>|"message": ?"(.*?)"', re.DOTALL)
_DETAILS = re.compile(r"<Details>(.*?)</Details>", re.DOTALL)  # Google's, which name the permission
_RIGHT = re.compile(r"does not have (storage\.\w+\.\w+) access")
_HELD = re.compile(r"under active .{0,40}hold", re.IGNORECASE)  # of Google's JSON API, which has no code for it
_CAUSE = re.compile(r'message: "([^"]{1,200})"|(InvalidCertificate\(\s*\w+)|(InvalidContentType)|kind: (Timeout)')

_STATUSES_THAT_MAY_PASS = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, *range(500, 600)} - {HTTPStatus.NOT_IMPLEMENTED}
)
# Messages without a status: there was a response, but not one of this service.
_FOREIGN_ANSWER = re.compile(
    r"(ETag Header missing|Last-Modified Header missing|Content-Length Header missing|invalid list response|"
    r"invalid last modified|invalid content length|Unable to extract metadata|is not an answer)",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"^(?:Generic \w+ error: Error (?:performing|getting|reading) [\w ]*token"
    r"|[\w ]{0,80} for path External \w+ credential provider)"
)
_FINAL = re.compile(r"redirect without LOCATION|^Encountered object with invalid path")
_SETTLED = ("InvalidCertificate", "InvalidContentType")  # TLS that fails so will fail again


@dataclass(frozen=True, slots=True)
class Cloud:
    """The names and error codes of one cloud.

    Attributes:
        name: of the service, for messages.
        container: the container of payloads, for messages: `bucket payloads`.
        container_key: the key that names it.
        endpoint_key: the key of the service's URL.
        credentials_key: the key that is probably wrong where the caller is refused.
        permissions: what it needs, for messages.
        missing: the codes for a payload that does not exist.
        no_container: the codes for a container that does not exist.
        kept: the codes for an object that is neither replaced nor removed, for a policy or a hold.
        kms_key: the key of the configuration that names an encryption key of the service; empty if there is none.
        unlisted: the permission without which a missing object is refused; empty if there is none.
        passing: the codes of errors that may pass, whatever their status.
        denied: the codes of refusals whose status does not say so.
        blamed: the key to change, by code.
        advice: what to do, by code.
    """

    name: str
    container: str
    container_key: str
    endpoint_key: str
    credentials_key: str
    permissions: str
    missing: frozenset[str]
    no_container: frozenset[str]
    passing: frozenset[str]
    kept: frozenset[str] = frozenset()
    kms_key: str = ""
    unlisted: str = ""
    denied: frozenset[str] = frozenset()
    blamed: Mapping[str, str] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, as far as its text shows it.

    Attributes:
        status: the HTTP status; 0 if there was no answer.
        code: the service's word for the error; empty if it has none.
        text: what happened, in a line that is safe for a terminal.
        settled: whether TLS failed so that it will fail again.
        foreign: whether the response did not come from the service.
        token: whether it was about credentials, not about payloads.
        right: the permission that the service says is missing; empty if it does not say.
    """

    status: int
    code: str
    text: str
    settled: bool
    foreign: bool
    token: bool
    right: str = ""

    @classmethod
    def of(cls, exc: BaseException) -> Failure:
        """Parses the message of an obstore error. Parts that it lacks are empty."""
        message, _, debug = str(exc).partition(_DEBUG)
        found = _STATUS.search(message)
        body = found[2] if found else ""
        code = _first(_CODES.search(body))
        said = " ".join(filter(None, (_first(_SAID.search(body)), _first(_DETAILS.search(body)))))
        status = int(found[1]) if found else 0
        cause = _first(_CAUSE.search(debug)).split("(", 1)
        if status:
            text = f"HTTP {status} ({code or 'no code'}): {said}" if code or said else f"HTTP {status} without a code"
        else:
            # The part after the URL.
            text = message.rpartition(" - ")[2].rpartition(": GET ")[2].strip()
            text = f"{type(exc).__name__}: {text}{f' ({cause[0]})' if cause[0] else ''}"
        return cls(
            status,
            code,
            printable(text, _TEXT_CHARACTERS),
            settled=cause[0] in _SETTLED or _FINAL.search(message) is not None,
            foreign=not status and _FOREIGN_ANSWER.search(message) is not None,
            token=_TOKEN.match(message) is not None,
            right=_first(_RIGHT.search(said)),
        )

    def may_pass(self, cloud: Cloud) -> bool:
        """Whether waiting may help."""
        if not self.status:
            return not self.settled
        return self.code in cloud.passing or self.status in _STATUSES_THAT_MAY_PASS


def may_pass(exc: BaseException, cloud: Cloud) -> bool:
    """Whether another attempt may succeed."""
    return Failure.of(exc).may_pass(cloud)


def translated(exc: Exception, operation: str, path: str, cloud: Cloud) -> PayloadStoreError:
    """The project's error for one of obstore; the caller raises it.

    Returns:
        PayloadNotFoundError: the service says that the object does not exist, with its own code, or that the caller
            would have to list objects to find out whether it does.
        KeptError: the object cannot be replaced or removed, since the container keeps it.
        PayloadUnfitError: the service, or a proxy before it, refuses a payload of this size.
        PayloadStoreAccessError: the service refuses this caller: permission, credentials, no such container.
        PayloadStoreError: any other error, with `retriable` and the key to change.
    """
    failure = Failure.of(exc)
    start = f"{operation} {path} failed: "
    of_object = _of_object(failure, operation, path, cloud)
    if of_object is not None:
        return of_object
    if failure.code in cloud.no_container:
        return PayloadStoreAccessError(
            f"{start}{cloud.container} does not exist ({failure.code}); create it, or change {cloud.container_key}",
            key=cloud.container_key,
        )
    again = failure.may_pass(cloud)
    if cloud.kms_key and "KMS key" in failure.text and not again:
        return PayloadStoreAccessError(
            f"{start}{failure.text}; check {cloud.kms_key}, and whether {cloud.name} itself may use that key",
            key=cloud.kms_key,
        )
    if failure.token and not (again and failure.status != HTTPStatus.BAD_REQUEST):
        return PayloadStoreAccessError(
            f"{start}{failure.text}; no token for these credentials: check {cloud.credentials_key}",
            key=cloud.credentials_key,
        )
    if not again and (
        failure.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN} or failure.code in cloud.denied
    ):
        key = cloud.blamed.get(failure.code, cloud.credentials_key)
        advice = cloud.advice.get(failure.code, f"check {key}; it needs {failure.right or cloud.permissions}")
        return PayloadStoreAccessError(f"{start}{failure.text}; {advice}", key=key)
    return PayloadStoreError(f"{start}{failure.text}{_hint(failure, cloud)}", retriable=again, key=_key(failure, cloud))


def _of_object(failure: Failure, operation: str, path: str, cloud: Cloud) -> PayloadStoreError | None:
    """The error if this object is missing, kept or too large; None if something else is wrong."""
    start = f"{operation} {path} failed: {failure.text}"
    missing = failure.status == HTTPStatus.NOT_FOUND and failure.code in cloud.missing
    if missing and operation.endswith((" get", " head", " delete")):
        return PayloadNotFoundError(path)
    if failure.right and failure.right == cloud.unlisted and operation.endswith((" get", " head")):
        return PayloadNotFoundError(path)
    if failure.code in cloud.kept or (failure.status == HTTPStatus.FORBIDDEN and _HELD.search(failure.text)):
        return KeptError(f"{start}; a retention policy or a hold protects it")
    if failure.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE or failure.code == "EntityTooLarge":
        return PayloadUnfitError(f"{start}; the service, or a proxy before it, does not accept a body of this size")
    return None


def _hint(failure: Failure, cloud: Cloud) -> str:
    if failure.foreign or (failure.status and not failure.code):
        return f"; not a response of {cloud.name}: check {cloud.endpoint_key}, and any proxy before it"
    if "InvalidContentType" in failure.text:
        return f"; the server does not use TLS on this port: use http:// in {cloud.endpoint_key}, or correct the port"
    if "object with invalid path" in failure.text:
        return "; Wideload did not write it, and obstore cannot list such a name: delete it, or use another prefix"
    advice = cloud.advice.get(failure.code)
    return f"; {advice}" if advice else ""


def _key(failure: Failure, cloud: Cloud) -> str | None:
    if failure.token:
        return cloud.credentials_key
    return cloud.blamed.get(failure.code) if failure.code else cloud.endpoint_key


def _first(found: re.Match[str] | None) -> str:
    return next((group for group in found.groups() if group), "") if found else ""
