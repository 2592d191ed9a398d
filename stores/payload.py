"""One payload to the store and back: shared by the worker, the serializers and the Spark jobs."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace

from stores.registry import get, put
from stores.store import PayloadStore, Stat
from stores.user import UserStore
from transforms.encryption import DATA_KEY_RANDOM_BYTES, DataKey, check_stored, decrypt, encrypt, unwrapped, wrapped
from transforms.errors import PayloadCorruptError, PayloadTooLargeError
from transforms.inflate import Inflate
from transforms.keyring import Keyring
from transforms.offload import Payload
from transforms.reference import Reference


def publish(
    store: PayloadStore, topic: str, payload: Payload, *, by_digest: bool, keyring: Keyring | None = None
) -> Reference:
    """Writes the payload to the store, below `topic`, and returns the reference to it.

    Each time that a payload is published encrypted, it gets a new data key, and is therefore a new object, whether it
    is named by digest or at random. A reference is only created after its object was stored.

    Args:
        store: an open store.
        topic: the topic that the reference will be written to.
        payload: the bytes to store.
        by_digest: True if the store's id generator is `sha256`. Then the checksum of the payload is its id, and is not
            computed again.
        keyring: encrypts the payload, if it `writes`; None to store it as it is.

    Raises:
        PayloadStoreError: see `PayloadStore.publish`; or the service of the key failed.
    """
    if keyring is not None and keyring.writes:
        return _published_encrypted(store, topic, payload, keyring, by_digest=by_digest)
    own_ids = isinstance(store, UserStore) and store.has_own_ids
    if by_digest and payload.codec is None and not own_ids:
        return payload.reference(put(store, topic, payload.checksum, payload.data))
    return payload.reference(store.publish(topic, payload.data))


def _published_encrypted(
    store: PayloadStore, topic: str, payload: Payload, keyring: Keyring, *, by_digest: bool
) -> Reference:
    master = keyring.current()  # first: a service that fails leaves nothing in the store
    secrets = DataKey.of(os.urandom(DATA_KEY_RANDOM_BYTES))
    stored = encrypt(payload.data, payload.size, payload.codec, secrets)
    checksum = hashlib.sha256(stored).hexdigest()
    own_ids = isinstance(store, UserStore) and store.has_own_ids
    path = put(store, topic, checksum, stored) if by_digest and not own_ids else store.publish(topic, stored)
    return wrapped(replace(payload.reference(path), checksum=checksum), secrets, master)


def measure(store: Stat, path: str) -> int:
    """The length of a payload, as stored, without reading it.

    Raises:
        PayloadStoreError: see `PayloadStore.download`.
    """
    return store.stat(path).size


def download(
    store: PayloadStore,
    reference: Reference,
    inflate: Inflate,
    keyring: Keyring | None = None,
    *,
    measured_bytes: int | None = None,
) -> bytes:
    """Reads the stored bytes of a reference, and decrypts them. They are not verified yet, if they are not encrypted.

    No more bytes are read than the reference and `inflate` allow, nor more than `measured_bytes`, if the store was
    asked for the size before.

    Args:
        store: an open store.
        reference: verified by `inflate`.
        inflate: has the limits.
        keyring: has the keys; None if none is configured.
        measured_bytes: what `measure` found; None if the store was not asked.

    Raises:
        EncryptionError: it is encrypted, and no key opens it; the store was not asked.
        PayloadTooLargeError: the payload is larger than `inflate` allows, or than it was when it was measured.
        PayloadCorruptError: the payload is larger than the reference says, or is not what was encrypted.
        PayloadStoreError: see `PayloadStore.download`; or the service of the key failed.
    """
    data_key = None if reference.encryption is None else unwrapped(reference, keyring)
    stored = _stored(store, reference, inflate, measured_bytes)
    return stored if data_key is None else decrypt(reference, stored, data_key)


def verify(store: PayloadStore, reference: Reference, inflate: Inflate) -> None:
    """Reads a payload, and compares it with the reference. Needs no key: of an encrypted one the stored bytes count.

    Raises:
        PayloadTooLargeError: the payload is larger than `inflate` allows.
        PayloadCorruptError: it is not the one of the reference.
        PayloadStoreError: see `PayloadStore.download`.
    """
    stored = _stored(store, reference, inflate)
    if reference.encryption is not None:
        check_stored(reference, stored)
    else:
        inflate.restore(reference, stored)


def _stored(store: PayloadStore, reference: Reference, inflate: Inflate, measured_bytes: int | None = None) -> bytes:
    limit_bytes = inflate.stored_limit_bytes(reference, measured_bytes)
    try:
        return get(store, reference.path, limit_bytes)
    except PayloadTooLargeError as exc:
        if reference.size is None or limit_bytes == inflate.max_bytes:
            raise
        # The bound was the size in the reference, so the payload and the reference disagree.
        found = "more" if exc.size is None else f"{exc.size:,} bytes"
        expected = f"at most {limit_bytes:,} bytes"
        raise PayloadCorruptError(reference.path, "size", expected=expected, found=found) from exc
