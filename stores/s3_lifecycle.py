"""The expiry rules of a bucket: the rules that affect payloads, and the project's own rule for each topic.

A bucket has one lifecycle configuration, and a put replaces it. A change therefore reads the XML, edits its text, puts
it and reads it again; all other rules are written back byte for byte. With boto3's parsed rules instead of the text,
elements that boto3 does not know would be lost, such as MinIO's `DelMarkerExpiration`, and dates would get the local
time zone.

Source: S3 API, "GetBucketLifecycleConfiguration" and "LifecycleRule". Permissions needed, on the bucket, are
s3:GetLifecycleConfiguration and, for a change, s3:PutLifecycleConfiguration.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast
from xml.sax.saxutils import escape

from botocore.exceptions import ClientError

from stores.s3_errors import status, translated
from stores.s3_puts import content_md5, wants_md5
from stores.store import ExpiryRule
from transforms.errors import PayloadStoreError
from transforms.text import printable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_GET = "GetBucketLifecycleConfiguration"
_PUT = "PutBucketLifecycleConfiguration"
_PERMISSIONS: Mapping[str, str] = {_GET: "s3:GetLifecycleConfiguration", _PUT: "s3:PutLifecycleConfiguration"}
_BODY = "WideloadBody"

# Rules are not nested, and `<` cannot stand in their text.
_RULE = re.compile(rb"<Rule>.*?</Rule>", re.DOTALL)
_END = b"</LifecycleConfiguration>"
_ELEMENT = re.compile(rb"<(?:\w[\w.-]*:)?(\w[\w.-]*)")
_NAME = b"LifecycleConfiguration"
_EMPTY = b'<LifecycleConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">' + _END

_LONGEST_TOPIC = 200  # of the 255 characters of an ID; the rest is `wideload-`, a dash and the digest
_SETTLE_S = 10.0  # a bucket's settings are eventually consistent
_PAUSE_S = 0.5


def own_id(prefix: str) -> str:
    """The ID of the project's rule for the keys that begin with `prefix`: `wideload-<topic>-<digest of the prefix>`.

    The digest distinguishes topics of the same name below two prefixes of one bucket.
    """
    topic = prefix.rstrip("/").rpartition("/")[2][:_LONGEST_TOPIC]
    return f"wideload-{topic}-{hashlib.sha256(prefix.encode()).hexdigest()[:8]}"


def reaching(prefix: str, rules: Sequence[Mapping[str, Any]]) -> Sequence[ExpiryRule]:
    """The enabled rules that may expire objects below `prefix`, of rules that boto3 has parsed."""
    found = []
    for rule in rules:
        expiration = rule.get("Expiration", {})
        days, date = expiration.get("Days"), expiration.get("Date")
        start, sizes, tags = _filter(rule)
        whole = prefix.startswith(start)
        if rule.get("Status") != "Enabled" or (days is None and date is None):
            continue
        if not whole and not start.startswith(prefix):
            continue
        scope = [f"keys that begin with {start}"] if start else ["all keys"]
        found.append(
            ExpiryRule(
                id=rule.get("ID", ""),
                days=days,
                date=None if date is None else date.astimezone(UTC).date().isoformat(),
                whole=whole and not sizes and not tags,
                tagged=bool(tags),
                own=rule.get("ID") == own_id(prefix),
                scope=", ".join([*scope, *sizes, *tags]),
            )
        )
    return found


def _filter(rule: Mapping[str, Any]) -> tuple[str, Sequence[str], Sequence[str]]:
    """The beginning of the keys that the rule is for; its sizes, and its tags, in words."""
    outer = rule.get("Filter", {})
    both = outer.get("And", {})
    start = rule.get("Prefix") or outer.get("Prefix") or both.get("Prefix") or ""
    tags = [*both.get("Tags", ()), *([outer["Tag"]] if "Tag" in outer else [])]
    sizes = [
        f"{words} {part[name]:,} bytes"
        for name, words in (("ObjectSizeGreaterThan", "over"), ("ObjectSizeLessThan", "under"))
        for part in (outer, both)
        if name in part
    ]
    return cast("str", start), sizes, [f"tag {tag.get('Key', '')}={tag.get('Value', '')}" for tag in tags]


def with_own_rule(document: bytes, prefix: str, days: int | None) -> bytes | None:
    """The configuration with the project's rule for `prefix` set to `days`, or without it; the rest is unchanged.

    Returns:
        None if no rule is left.

    Raises:
        ValueError: the XML does not have the form of S3's.
    """
    rules = _RULE.findall(document)
    if document.count(b"<Rule") != len(rules) or document.count(_END) != 1:
        raise ValueError("the rules do not have the form of S3's")
    old = next((rule for rule in rules if _is_own(rule, prefix)), None)
    new = b"" if days is None else _own_rule(prefix, days)
    if old is not None:
        document = document.replace(old, new)
    elif new:
        document = document.replace(_END, new + _END)
    return document if _RULE.search(document) else None


def _is_own(rule: bytes, prefix: str) -> bool:
    return b"<ID>%b</ID>" % own_id(prefix).encode() in rule


def _wanted(prefix: str, days: int) -> Mapping[str, Any]:
    """`_own_rule` as boto3 parses it."""
    return {
        "ID": own_id(prefix),
        "Filter": {"Prefix": prefix},
        "Status": "Enabled",
        "Expiration": {"Days": days},
    }


def _own_rule(prefix: str, days: int) -> bytes:
    filtered = f"<Filter><Prefix>{escape(prefix)}</Prefix></Filter>"
    expiration = f"<Expiration><Days>{days}</Days></Expiration>"
    return f"<Rule><ID>{own_id(prefix)}</ID>{filtered}<Status>Enabled</Status>{expiration}</Rule>".encode()


@dataclass(frozen=True, slots=True)
class _Found:
    """The rules of a bucket: as text, as boto3 parses them, and the default size that a put must repeat."""

    document: bytes
    rules: Sequence[Mapping[str, Any]]
    minimum: Mapping[str, str]

    def own(self, prefix: str) -> Mapping[str, Any] | None:
        """The project's rule for `prefix`, enabled or not."""
        return next((rule for rule in self.rules if rule.get("ID") == own_id(prefix)), None)

    def others(self, prefix: str) -> Counter[bytes]:
        """The text of every other rule; their order means nothing."""
        return Counter(rule for rule in _RULE.findall(self.document) if not _is_own(rule, prefix))


class S3Lifecycle:
    """The rules of one bucket. May be used by several threads.

    Args:
        client: of the store.
        bucket: the bucket.
    """

    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self._lock = threading.Lock()
        self._document = b""  # what the next put sends; by `_lock`
        self._md5 = False  # once the server has refused rules without Content-MD5, which boto3 no longer sends
        events = client.meta.events
        events.register(f"after-call.s3.{_GET}", _keep_body)
        events.register(f"before-call.s3.{_PUT}", self._send_document)

    def rules(self, prefix: str) -> Sequence[ExpiryRule]:
        """The enabled rules that may expire objects below `prefix`.

        Raises:
            PayloadStoreError: they cannot be read; the message says what is missing.
        """
        return reaching(prefix, self._read().rules)

    def set(self, prefix: str, days: int | None) -> bool:
        """Sets the project's own rule for `prefix`, or removes it; True if anything changed.

        Raises:
            PayloadStoreError: it could not be done, or somebody else changed the rules at the same time.
        """
        wanted = None if days is None else _wanted(prefix, days)
        with self._lock:
            found = self._read()
            if found.own(prefix) == wanted:
                return False
            try:
                document = with_own_rule(found.document, prefix, days)
            except ValueError as exc:
                raise PayloadStoreError(f"{_GET} {self._uri}: {exc}; nothing was changed") from exc
            self._write(found, document)
            self._verify(prefix, wanted, found.others(prefix))
            return True

    @property
    def _uri(self) -> str:
        return f"s3://{self._bucket}"

    def _read(self) -> _Found:
        with self._translated(_GET):
            try:
                answer: Mapping[str, Any] = self._client.get_bucket_lifecycle_configuration(Bucket=self._bucket)
            except ClientError as exc:
                if exc.response["Error"].get("Code") != "NoSuchLifecycleConfiguration":
                    raise
                return _Found(_EMPTY, (), {})
        # rclone does not support `?lifecycle`, and lists the bucket. A change would create or delete a bucket there.
        found = _ELEMENT.search(answer[_BODY])
        if found is None or found[1] != _NAME:
            what = "no XML" if found is None else f"<{printable(found[1], 60)}>"
            raise PayloadStoreError(f"{_GET} {self._uri} failed: {_no_rules(what)}")
        name = "TransitionDefaultMinimumObjectSize"
        return _Found(answer[_BODY], answer.get("Rules", ()), {name: answer[name]} if answer.get(name) else {})

    def _write(self, found: _Found, document: bytes | None) -> None:
        with self._translated(_PUT):
            if document is None:
                self._client.delete_bucket_lifecycle(Bucket=self._bucket)
                return
            self._document = document
            try:
                self._put(found)
            except ClientError as exc:
                if self._md5 or not wants_md5(exc):
                    raise
                self._md5 = True
                self._put(found)

    def _put(self, found: _Found) -> None:
        # boto3 requires rules here; `_send_document` replaces them by the text.
        self._client.put_bucket_lifecycle_configuration(
            Bucket=self._bucket,
            LifecycleConfiguration={"Rules": cast("Any", found.rules)},
            **cast("Any", found.minimum),
        )

    def _verify(self, prefix: str, wanted: Mapping[str, Any] | None, others: Counter[bytes]) -> None:
        deadline = time.monotonic() + _SETTLE_S
        while True:
            found = self._read()
            if found.own(prefix) == wanted and found.others(prefix) == others:
                return
            if time.monotonic() > deadline:
                raise PayloadStoreError(
                    f"{_PUT} {self._uri}: the rules differ from those that were written; they may have been "
                    "changed concurrently; check them, and try again",
                    retriable=True,
                )
            time.sleep(_PAUSE_S)

    def _send_document(self, params: dict[str, Any], **_: object) -> None:
        params["body"] = self._document
        if self._md5:
            params["headers"]["Content-MD5"] = content_md5(self._document)

    @contextlib.contextmanager
    def _translated(self, operation: str) -> Iterator[None]:
        with translated(operation, self._uri, self._bucket):
            try:
                yield
            except ClientError as exc:
                if status(exc) in (HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.METHOD_NOT_ALLOWED):
                    raise PayloadStoreError(f"{operation} {self._uri} failed: {_no_rules(_code(exc))}") from exc
                if status(exc) == HTTPStatus.FORBIDDEN and _code(exc) == "AccessDenied":
                    raise PayloadStoreError(
                        f"{operation} {self._uri} failed: AccessDenied; it needs {_PERMISSIONS[operation]} on the "
                        "bucket"
                    ) from exc
                raise


def _no_rules(answer: str) -> str:
    return f"this S3 server has no expiry rules ({answer}); payloads stay until they are deleted by other means"


def _keep_body(http_response: Any, parsed: dict[str, Any], **_: object) -> None:
    parsed[_BODY] = http_response.content


def _code(exc: ClientError) -> str:
    return str(exc.response["Error"].get("Code", ""))
