"""Payloads in Google Cloud Storage: `gs://<bucket>/<prefix>/<topic>/<id>`.

obstore puts, reads and looks up objects, through the XML API. Deletes that name the generation that was looked up, and
reading and setting lifecycle rules, use the JSON API, since obstore supports neither; so does listing.

The permissions needed are storage.objects.create, .get and .list; storage.objects.delete, which an overwriting put
needs too; and for lifecycle rules storage.buckets.get and .update.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import quote

from stores.cloud import CloudStore, client_keys
from stores.endpoint import check_endpoint
from stores.keys import REQUIRED, Key, Value
from stores.root import check_object_id
from stores.store import ExpiryRule
from transforms.errors import (
    ConfigurationError,
    PayloadNotFoundError,
    PayloadStoreAccessError,
    PayloadStoreError,
)

if TYPE_CHECKING:
    from stores.cloud_client import CloudClient, Found
    from stores.cloud_errors import Cloud
    from stores.cloud_rest import Rest
    from stores.gcs_token import Tokens

__all__ = ["GcsStore"]

_GOOGLE = "https://storage.googleapis.com"
_KMS_KEY = re.compile(r"projects/[^/\s]+/locations/[^/\s]+/keyRings/[^/\s]+/cryptoKeys/[^/\s]+")
_NONE = "none"  # instead of a token: obstore always sends one with a put


class GcsStore(CloudStore):
    """See `stores.cloud.CloudStore`."""

    SCHEME: ClassVar[str] = "gs"
    START: ClassVar[str] = "gcs"
    CONTAINER: ClassVar[str] = "bucket"
    CONTAINER_NAME: ClassVar[re.Pattern[str]] = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
    CONTAINER_ALLOWED: ClassVar[str] = "3 to 222 characters a-z, 0-9, '.', '_' and '-', a-z or 0-9 at both ends"

    KEYS: ClassVar[Sequence[Key]] = (
        Key("gcs.bucket", "string", "The bucket. It must exist.", default=REQUIRED),
        Key(
            "gcs.endpoint",
            "string",
            "The URL of a server other than Google's: an emulator, or a private endpoint. `http://` requires "
            "`gcs.anonymous`.",
        ),
        Key(
            "gcs.credentials.file",
            "string",
            "A JSON file with credentials: a service account, workload identity federation, or impersonation. "
            "Default: Google's application default credentials, which are `GOOGLE_APPLICATION_CREDENTIALS`, those of "
            "gcloud, and the service account of the machine or, with GKE's workload identity, of the pod.",
        ),
        Key(
            "gcs.credentials.json",
            "string",
            "The content of such a file, for instance as `${env:GCS_KEY}`.",
            secret=True,
        ),
        Key(
            "gcs.anonymous",
            "boolean",
            "Whether to send requests without credentials, as emulators require.",
            default=False,
        ),
        Key(
            "gcs.kms.key",
            "string",
            "The Cloud KMS key that encrypts each object, as `projects/P/locations/L/keyRings/R/cryptoKeys/K`. "
            "Default: that of the bucket.",
        ),
        *client_keys("gcs", "gs://bucket/prefix/topic/id"),
    )

    def client(self, values: Mapping[str, Value | None]) -> CloudClient:
        """See `CloudStore.client`."""
        file, text, kms = (
            cast("str | None", values[f"gcs.{name}"]) for name in ("credentials.file", "credentials.json", "kms.key")
        )
        anonymous = cast("bool", values["gcs.anonymous"])
        endpoint = check_endpoint("gcs.endpoint", cast("str | None", values["gcs.endpoint"]) or _GOOGLE)
        plain = endpoint.startswith("http://")
        if file is not None and text is not None:
            raise ConfigurationError("gcs.credentials.json", "cannot be combined with gcs.credentials.file")
        if anonymous and not (file is None and text is None):
            raise ConfigurationError(
                "gcs.anonymous", "found true, which cannot be combined with gcs.credentials.file or .json"
            )
        if plain and not anonymous:
            raise ConfigurationError(
                "gcs.endpoint",
                "begins with http://, so the token could be intercepted; use https://, or set gcs.anonymous = true "
                "for an emulator",
            )
        if kms is not None and not _KMS_KEY.fullmatch(kms):
            raise ConfigurationError(
                "gcs.kms.key", f"found {kms!r}, allowed is projects/P/locations/L/keyRings/R/cryptoKeys/K"
            )
        try:
            from obstore.exceptions import BaseError
            from obstore.store import GCSStore as Bucket

            from stores.cloud_client import CloudClient, client_options
            from stores.cloud_rest import Rest
            from stores.gcs_lifecycle import GcsLifecycle

            if not anonymous:
                from stores.gcs_token import Tokens
        except ImportError as exc:
            raise ConfigurationError(
                "large.message.payload.store.class",
                f"found 'gcs', which needs obstore and google-auth ({exc}); install them: pip install 'wideload[gcs]'",
            ) from exc
        times = self.times(values)
        bucket = cast("str", values["gcs.bucket"])
        self._tokens: Tokens | None = (
            None if anonymous else Tokens.configured(file, text, (times.connect_ms + times.read_ms) / 1000)
        )
        self._rest: Rest = Rest.opened(times.connect_ms, times.read_ms, self._threads)
        self._bucket_url = f"{endpoint}/storage/v1/b/{quote(bucket, safe='')}"
        self._lifecycle = GcsLifecycle(self._bucket_resource)

        def made(*, reading: bool) -> Bucket:
            options = client_options(times, self._threads, plain=plain, reading=reading)
            if kms is not None and not reading:
                options["default_headers"] = {"x-goog-encryption-kms-key-name": kms}
            credentials: dict[str, Any] = (
                {"config": {"base_url": endpoint, "bearer_token": _NONE}}
                if self._tokens is None
                else {"config": {"base_url": endpoint}, "credential_provider": self._tokens}
            )
            return Bucket(bucket, client_options=cast("Any", options), retry_config={"max_retries": 0}, **credentials)

        try:
            reader, writer = made(reading=True), made(reading=False)
        except BaseError as exc:
            raise ConfigurationError(
                "gcs.endpoint", f"obstore refuses the settings: {str(exc).partition(chr(10))[0]}"
            ) from exc
        return CloudClient(reader, writer, times, _cloud(bucket), self._ready)

    def check(self, *, writing: bool = True, topic: str | None = None) -> None:
        """See `CloudStore.check`. For a reader that may not list the bucket it may pass, although it may not read."""
        from stores.cloud_errors import Failure

        try:
            super().check(writing=writing, topic=topic)
        except PayloadStoreAccessError as exc:
            failure = None if writing or exc.__cause__ is None else Failure.of(exc.__cause__)
            if failure is None or failure.code != "AccessDenied" or failure.token:
                raise
            # Unless the caller may list the bucket, Google refuses a missing object like one that may not be read.
            try:
                next(self.found_below(self._key(self.root.probe(topic))), None)
            except PayloadStoreAccessError:
                return
            raise

    def pages_below(self, prefix: str) -> Iterator[Sequence[Found]]:
        """See `CloudStore.pages_below`. obstore fails at names that others may have written, such as `a//b`."""
        from stores.cloud_client import Found

        for page in self._listed(prefix, {"fields": "nextPageToken,items(name,size,updated,generation)"}):
            with self._as_gcs_answers("list", f"{self._container_uri}{prefix}"):
                found = [
                    Found(
                        key=str(item["name"]),
                        size=int(item["size"]),
                        modified=datetime.fromisoformat(item["updated"]).astimezone(UTC).replace(microsecond=0),
                        etag=None,
                        version=str(item["generation"]),
                    )
                    for item in page.get("items", ())
                ]
            yield found

    def folders_below(self, prefix: str) -> Iterator[str]:
        """See `BucketStore.folders_below`."""
        for page in self._listed(prefix, {"delimiter": "/", "fields": "nextPageToken,prefixes"}):
            with self._as_gcs_answers("list", f"{self._container_uri}{prefix}"):
                folders = [str(folder) for folder in page.get("prefixes", ())]
            yield from folders

    def _listed(self, prefix: str, params: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        more: dict[str, str] = {}
        path = f"{self._container_uri}{prefix}"
        while True:
            page = self._json("list", path, "GET", "/o", {"prefix": prefix, "maxResults": "1000", **params, **more})
            yield page
            if not page.get("nextPageToken"):
                return
            former, more = more, {"pageToken": str(page["nextPageToken"])}
            if more == former:
                raise PayloadStoreError(
                    f"GCS list {path} failed: the server returned the same page again; check gcs.endpoint",
                    key="gcs.endpoint",
                )

    def delete_key(self, key: str, path: str) -> None:
        """See `CloudStore.delete_key`."""
        self._client.delete(key, path)

    def delete_found(self, found: Found, path: str) -> bool:
        """See `CloudStore.delete_found`. What is deleted by its generation leaves no version in the bucket."""
        from stores.cloud_client import ChangedError

        if found.version is None:
            raise PayloadStoreError(f"GCS delete {path} failed: the server returns no generation", key="gcs.endpoint")
        try:
            self._sent("delete", path, "DELETE", f"/o/{quote(found.key, safe='')}", {"generation": found.version})
        except PayloadNotFoundError:
            self._client.head(found.key, path)  # raises PayloadNotFoundError if there is no other generation
            raise ChangedError from None
        return False

    def expiry_rules(self, topic: str) -> Sequence[ExpiryRule]:
        return self._lifecycle.rules(self._key(f"{self.root.uri}{check_object_id(topic)}/"))

    def set_expiry(self, topic: str, days: int | None) -> bool:
        return self._lifecycle.set(self._key(f"{self.root.uri}{check_object_id(topic)}/"), days)

    def close(self) -> None:
        self._rest.session.close()
        if self._tokens is not None:
            self._tokens.close()

    def _ready(self, deadline: float) -> None:
        if self._tokens is not None:
            self._tokens.ready(deadline)

    def _bucket_resource(
        self, operation: str, method: str, params: Mapping[str, str], body: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """The bucket as the JSON interface describes it, before or after a change."""
        return self._json(operation, self._container_uri, method, "", params, body)

    def _json(
        self,
        operation: str,
        path: str,
        method: str,
        resource: str,
        params: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:
        with self._as_gcs_answers(operation, path):
            found = json.loads(self._sent(operation, path, method, resource, params, body))
            if not isinstance(found, dict):
                raise TypeError
            return found

    @contextlib.contextmanager
    def _as_gcs_answers(self, operation: str, path: str) -> Iterator[None]:
        """Reports a response that cannot be read: it is not Google's, but for instance a web page."""
        try:
            yield
        except (ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            raise PayloadStoreError(
                f"GCS {operation} {path} failed: not a response of GCS; check gcs.endpoint and any proxy before it",
                retriable=True,
                key="gcs.endpoint",
            ) from exc

    def _sent(
        self,
        operation: str,
        path: str,
        method: str,
        resource: str,
        params: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
    ) -> bytes:
        from stores.cloud_rest import RestError

        def send(seconds: float) -> bytes:
            headers = {} if self._tokens is None else {"Authorization": self._tokens.bearer()}
            try:
                return self._rest.send(
                    method, f"{self._bucket_url}{resource}", seconds, params=params, headers=headers, body=body
                )
            except RestError as exc:
                if method == "DELETE" and exc.status == HTTPStatus.NOT_FOUND:
                    raise PayloadNotFoundError(path) from exc
                raise

        return self._client.call(send, operation, path)


def _cloud(bucket: str) -> Cloud:
    from stores.cloud_errors import Cloud

    file = "gcs.credentials.file"
    clock = "set the clock of this machine"
    return Cloud(
        name="GCS",
        container=f"bucket {bucket}",
        container_key="gcs.bucket",
        endpoint_key="gcs.endpoint",
        credentials_key=file,
        permissions="storage.objects.get, .list and .create, .delete to replace an object, and storage.buckets.get "
        "and .update for rules",
        missing=frozenset({"NoSuchKey"}),
        no_container=frozenset({"NoSuchBucket", "notFound"}),
        kept=frozenset(
            {"RetentionPolicyNotMet", "retentionPolicyNotMet", "ObjectUnderActiveHold", "objectUnderActiveHold"}
        ),
        kms_key="gcs.kms.key",
        unlisted="storage.objects.list",
        passing=frozenset(
            {"InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout", "IncompleteBody", "backendError"}
            | {"rateLimitExceeded", "userRateLimitExceeded", "conditionNotMet", "OperationAborted", "conflict"}
        ),
        denied=frozenset({"ExpiredToken", "RequestTimeTooSkewed", "InvalidToken"}),
        blamed={"InvalidBucketName": "gcs.bucket", "AccessDenied": file, "RequestTimeTooSkewed": file},
        advice={
            "RequestTimeTooSkewed": clock,
            "ExpiredToken": clock,
            "conditionNotMet": "somebody else changed the bucket at the same time; try again",
        },
    )
