"""Removes many objects of a bucket: a HeadObject for each, then one DeleteObjects.

If a server refuses that, each HeadObject is followed by a DeleteObject.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from stores.bucket import KeptError
from stores.s3_answers import check_answer
from stores.s3_errors import is_kept
from stores.store import PayloadInfo, Removal
from transforms.errors import PayloadNotFoundError, PayloadStoreAccessError, PayloadStoreError
from transforms.text import printable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import DeleteObjectsOutputTypeDef, ObjectIdentifierTypeDef

# S3 accepts 1,000 keys in a request. An object that is published again between its HeadObject and this request is lost,
# so smaller groups are better: with 250 objects, 16 in parallel and 20 ms each, that time is a third of a second.
_BATCH = 250


@dataclass(frozen=True, slots=True)
class _Unchanged:
    """A payload to remove, and its version in a bucket that keeps them."""

    payload: PayloadInfo
    version: str | None


class S3Removal:
    """See `stores.store.DeleteUnchanged`.

    Args:
        client: of the bucket.
        bucket: its name.
        head: what there is at a path, as `Stat.stat` gives it, and its version in a bucket that keeps them.
        translated: translates the errors of an operation for a path, and bounds its time.
        threads: how many calls of `head` run in parallel.
    """

    def __init__(
        self,
        client: S3Client,
        bucket: str,
        head: Callable[[str], tuple[PayloadInfo, str | None]],
        translated: Callable[[str, str], AbstractContextManager[None]],
        threads: int,
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._head = head
        self._translated = translated
        self._threads = threads
        self._one_by_one = False  # once the server has refused a DeleteObjects

    def delete_unchanged(
        self, payloads: Iterable[PayloadInfo], key: Callable[[str], str], batch: int = _BATCH
    ) -> Iterator[Removal]:
        """See `DeleteUnchanged.delete_unchanged`.

        Args:
            payloads: the caller has checked that they are below the root of the store.
            key: gives the object key of a path.
            batch: how many are checked before they are removed, 1,000 at most.
        """
        waiting = iter(payloads)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="wideload-s3-removal") as executor:
            while some := list(itertools.islice(waiting, batch)):
                if self._one_by_one:
                    yield from list(executor.map(lambda payload: self._remove_one(payload, key(payload.path)), some))
                    continue
                looked = list(executor.map(self._look, some))
                yield from (found for found in looked if isinstance(found, Removal))
                unchanged = {
                    key(payload.path): _Unchanged(payload, found)
                    for payload, found in zip(some, looked, strict=True)
                    if not isinstance(found, Removal)
                }
                if unchanged:
                    yield from self._remove(unchanged, executor)

    def _look(self, payload: PayloadInfo) -> Removal | str | None:
        """The outcome for a payload that must not be removed; the version of one to remove, None if it has none."""
        try:
            found, version = self._head(payload.path)
        except PayloadNotFoundError:
            return Removal(payload, "gone")
        except PayloadStoreError as exc:
            return Removal(payload, "failed", str(exc))
        # A listing may have milliseconds, HeadObject never has.
        return version if found.modified == payload.modified.replace(microsecond=0) else Removal(payload, "changed")

    def _remove(self, unchanged: dict[str, _Unchanged], executor: ThreadPoolExecutor) -> Iterator[Removal]:
        objects: list[ObjectIdentifierTypeDef] = [
            {"Key": key} if each.version is None else {"Key": key, "VersionId": each.version}
            for key, each in unchanged.items()
        ]
        payloads = {key: each.payload for key, each in unchanged.items()}
        try:
            response = self._asked(objects, payloads)
        except PayloadStoreError as exc:
            if exc.retriable or not isinstance(exc.__cause__, ClientError):
                yield from (Removal(payload, "failed", str(exc)) for payload in payloads.values())
                return
            # Some servers require Content-MD5, which boto3 no longer sends, or know no DeleteObjects at all.
            self._one_by_one = True
            yield from list(executor.map(self._remove_one, payloads.values(), payloads))
            return
        denied = [key for key in _denied(response) if key in unchanged and unchanged[key].version is not None]
        hidden = [unchanged[key] for key in denied]
        yield from list(executor.map(self._hide, hidden, denied))
        yield from _removals({key: payload for key, payload in payloads.items() if key not in denied}, response)

    def _asked(
        self, objects: list[ObjectIdentifierTypeDef], payloads: dict[str, PayloadInfo]
    ) -> DeleteObjectsOutputTypeDef:
        first = next(iter(payloads.values())).path
        with self._translated("DeleteObjects", first):
            return self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects})

    def _remove_one(self, payload: PayloadInfo, key: str) -> Removal:
        """Removes a payload with a separate request."""
        version = self._look(payload)
        if isinstance(version, Removal):
            return version
        try:
            return self._delete(payload, key, version)
        except (KeptError, PayloadStoreAccessError) as exc:
            refused = Removal(payload, "failed", str(exc))
            return refused if version is None else self._hide(_Unchanged(payload, version), key)

    def _hide(self, unchanged: _Unchanged, key: str) -> Removal:
        """Hides a version that may not be removed behind a delete marker.

        It may be locked, or the permission to remove versions (s3:DeleteObjectVersion) is missing, which differs from
        the permission to delete. A payload published in between would be hidden too, so it is looked up again.
        """
        payload = unchanged.payload
        found = self._look(payload)
        if isinstance(found, Removal):
            return found
        if found != unchanged.version:
            return Removal(payload, "changed")
        try:
            return self._delete(payload, key, None)
        except (KeptError, PayloadStoreAccessError) as exc:
            return Removal(payload, "failed", str(exc))

    def _delete(self, payload: PayloadInfo, key: str, version: str | None) -> Removal:
        """Raises KeptError or PayloadStoreAccessError if the server refuses it; any other error is an outcome."""
        more: Any = {} if version is None else {"VersionId": version}
        try:
            with self._translated("DeleteObject", payload.path):
                response = self._client.delete_object(Bucket=self._bucket, Key=key, **more)
            if response["ResponseMetadata"]["HTTPStatusCode"] != HTTPStatus.NO_CONTENT:
                check_answer(response, "DeleteObject", payload.path)
        except PayloadNotFoundError:
            return Removal(payload, "gone")
        except (KeptError, PayloadStoreAccessError):
            raise
        except PayloadStoreError as exc:
            return Removal(payload, "failed", str(exc))
        return Removal(payload, "versioned" if version is None and response.get("DeleteMarker") else "deleted")


def _denied(response: DeleteObjectsOutputTypeDef) -> list[str]:
    return [
        error.get("Key", "")
        for error in response.get("Errors", ())
        if error.get("Code") == "AccessDenied" or is_kept(error.get("Code", ""), error.get("Message", ""))
    ]


def _removals(payloads: dict[str, PayloadInfo], response: DeleteObjectsOutputTypeDef) -> Iterator[Removal]:
    errors = {error.get("Key"): error for error in response.get("Errors", ())}
    deleted = {each.get("Key"): bool(each.get("DeleteMarker")) for each in response.get("Deleted", ())}
    for key, payload in payloads.items():
        error = errors.get(key)
        if error is None and key not in deleted:
            yield Removal(payload, "failed", f"DeleteObjects {payload.path} failed: the response does not mention it")
        elif error is None:
            yield Removal(payload, "versioned" if deleted[key] else "deleted")
        elif error.get("Code") == "NoSuchKey":
            yield Removal(payload, "gone")
        else:
            why = printable(f"{error.get('Code', 'no code')}: {error.get('Message', '')}", 1_000)
            yield Removal(payload, "failed", f"DeleteObjects {payload.path} failed: {why}")
