"""One payload to the store and back: shared by the worker, the serializers and the Spark jobs."""

from __future__ import annotations

from stores.registry import get, put
from stores.store import PayloadStore, Stat
from stores.user import UserStore
from transforms.errors import PayloadCorruptError, PayloadTooLargeError
from transforms.inflate import Inflate
from transforms.offload import Payload
from transforms.reference import Reference

__all__ = ["download", "measure", "publish"]


def publish(store: PayloadStore, topic: str, payload: Payload, *, by_digest: bool) -> Reference:
    """Writes the payload to the store, below `topic`, and returns the reference to it.

    Args:
        store: an open store.
        topic: the topic that the reference will be written to.
        payload: the bytes to store.
        by_digest: True if the store's id generator is `sha256`. Then the checksum of the payload is its id, and is not
            computed again.

    Raises:
        PayloadStoreError: see `PayloadStore.publish`.
    """
    own_ids = isinstance(store, UserStore) and store.has_own_ids
    if by_digest and payload.codec is None and not own_ids:
        return payload.reference(put(store, topic, payload.checksum, payload.data))
    return payload.reference(store.publish(topic, payload.data))


def measure(store: Stat, path: str) -> int:
    """The length of a payload, as stored, without reading it.

    Raises:
        PayloadStoreError: see `PayloadStore.download`.
    """
    return store.stat(path).size


def download(
    store: PayloadStore, reference: Reference, inflate: Inflate, *, measured_bytes: int | None = None
) -> bytes:
    """Reads the stored bytes of a reference. They are not verified yet.

    No more bytes are read than the reference and `inflate` allow, nor more than `measured_bytes`, if the store was
    asked for the size before.

    Raises:
        PayloadTooLargeError: the payload is larger than `inflate` allows, or than it was when it was measured.
        PayloadCorruptError: the payload is larger than the reference says.
        PayloadStoreError: see `PayloadStore.download`.
    """
    limit_bytes = inflate.stored_limit_bytes(reference, measured_bytes)
    try:
        return get(store, reference.path, limit_bytes)
    except PayloadTooLargeError as exc:
        if reference.size is None or limit_bytes == inflate.max_bytes:
            raise
        # The bound was the size in the reference, so the payload and the reference disagree.
        found = "more" if exc.size is None else f"{exc.size:,} bytes"
        expected = f"at most {reference.size:,} bytes"
        raise PayloadCorruptError(reference.path, "size", expected=expected, found=found) from exc
