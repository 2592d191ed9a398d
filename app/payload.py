"""The way of one payload to the store and back; what workers and serializers have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stores.registry import get, put
from transforms.errors import PayloadCorruptError, PayloadTooLargeError

if TYPE_CHECKING:
    from stores.store import PayloadStore
    from transforms.inflate import Inflate
    from transforms.offload import Payload
    from transforms.reference import Reference

__all__ = ["download", "publish"]


def publish(store: PayloadStore, topic: str, payload: Payload, *, by_digest: bool) -> Reference:
    """Stores the payload below `topic`, and says where it is.

    Args:
        store: opened; its own generator of ids counts.
        topic: the topic that the reference is going to.
        payload: what is to be stored.
        by_digest: whether that generator is `sha256`, so that a digest that is there already need not be made again.

    Raises:
        PayloadStoreError: see `PayloadStore.publish`.
    """
    if by_digest and payload.codec is None:
        return payload.reference(put(store, topic, payload.checksum, payload.data))
    return payload.reference(store.publish(topic, payload.data))


def download(store: PayloadStore, reference: Reference, inflate: Inflate) -> bytes:
    """The stored bytes of a reference, no more than the reference and `inflate` allow; not verified yet.

    Raises:
        PayloadTooLargeError: there is more than is allowed.
        PayloadCorruptError: there is more than the reference says.
        PayloadStoreError: see `PayloadStore.download`.
    """
    limit_bytes = inflate.stored_limit_bytes(reference)
    try:
        return get(store, reference.path, limit_bytes)
    except PayloadTooLargeError as exc:
        if reference.size is None or limit_bytes == inflate.max_bytes:
            raise
        # The bound was the reference's own size, so it is the reference that is wrong, not the limit.
        found = "more" if exc.size is None else f"{exc.size:,} bytes"
        expected = f"at most {reference.size:,} bytes"
        raise PayloadCorruptError(reference.path, "size", expected=expected, found=found) from exc
