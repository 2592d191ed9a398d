"""Removes many objects of a bucket: a HeadObject for each, then one DeleteObjects."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stores.s3_errors import translated
from stores.store import PayloadInfo, Removal
from transforms.errors import PayloadNotFoundError, PayloadStoreError
from transforms.text import printable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import DeleteObjectsOutputTypeDef, ObjectIdentifierTypeDef

__all__ = ["S3Removal"]

# S3 takes 1,000 keys in a request. An object that is published again between its HeadObject and this request is lost,
# so fewer are better: with 250 objects, 16 at once and 20 ms each, that time is a third of a second.
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
        threads: how many calls of `head` run at once.
    """

    def __init__(
        self, client: S3Client, bucket: str, head: Callable[[str], tuple[PayloadInfo, str | None]], threads: int
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._head = head
        self._threads = threads

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
                looked = list(executor.map(self._look, some))
                yield from (found for found in looked if isinstance(found, Removal))
                unchanged = {
                    key(payload.path): _Unchanged(payload, found)
                    for payload, found in zip(some, looked, strict=True)
                    if not isinstance(found, Removal)
                }
                if unchanged:
                    yield from self._remove(unchanged)

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

    def _remove(self, unchanged: dict[str, _Unchanged]) -> Iterator[Removal]:
        objects: list[ObjectIdentifierTypeDef] = [
            {"Key": key} if each.version is None else {"Key": key, "VersionId": each.version}
            for key, each in unchanged.items()
        ]
        payloads = {key: each.payload for key, each in unchanged.items()}
        try:
            response = self._asked(objects, payloads)
        except PayloadStoreError as exc:
            yield from (Removal(payload, "failed", str(exc)) for payload in payloads.values())
            return
        # The right to remove versions (s3:DeleteObjectVersion) is another one than the right to remove.
        denied = [key for key in _denied(response) if key in unchanged and unchanged[key].version is not None]
        marked: dict[str, PayloadInfo] = {}
        for key in denied:
            payload = payloads.pop(key)
            found = self._look(payload)  # it may have been published meanwhile, and a marker hides every version
            if isinstance(found, Removal):
                yield found
            elif found != unchanged[key].version:
                yield Removal(payload, "changed")
            else:
                marked[key] = payload
        if marked:
            try:
                yield from _removals(marked, self._asked([{"Key": key} for key in marked], marked))
            except PayloadStoreError as exc:
                yield from (Removal(payload, "failed", str(exc)) for payload in marked.values())
        yield from _removals(payloads, response)

    def _asked(
        self, objects: list[ObjectIdentifierTypeDef], payloads: dict[str, PayloadInfo]
    ) -> DeleteObjectsOutputTypeDef:
        first = next(iter(payloads.values())).path
        with translated("DeleteObjects", first, self._bucket):
            return self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects})


def _denied(response: DeleteObjectsOutputTypeDef) -> list[str]:
    return [error.get("Key", "") for error in response.get("Errors", ()) if error.get("Code") == "AccessDenied"]


def _removals(payloads: dict[str, PayloadInfo], response: DeleteObjectsOutputTypeDef) -> Iterator[Removal]:
    errors = {error.get("Key"): error for error in response.get("Errors", ())}
    deleted = {each.get("Key"): bool(each.get("DeleteMarker")) for each in response.get("Deleted", ())}
    for key, payload in payloads.items():
        error = errors.get(key)
        if error is None and key not in deleted:
            yield Removal(payload, "failed", f"DeleteObjects {payload.path} failed: the answer says nothing of it")
        elif error is None:
            yield Removal(payload, "versioned" if deleted[key] else "deleted")
        elif error.get("Code") == "NoSuchKey":
            yield Removal(payload, "gone")
        else:
            why = printable(f"{error.get('Code', 'no code')}: {error.get('Message', '')}", 1_000)
            yield Removal(payload, "failed", f"DeleteObjects {payload.path} failed: {why}")
