"""Payloads that a store keeps as they are: under a retention policy, a hold, or Object Lock without versions."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from stores.root import Root
from transforms.errors import PayloadStoreError

__all__ = ["KeptError", "put_beside_kept"]


class KeptError(PayloadStoreError):
    """The store neither replaces nor removes the payload that has this name, for a time."""


def put_beside_kept(root: Root, topic: str, object_id: str, put: Callable[[str], object]) -> str:
    """The path under which `put` has stored a payload.

    A payload that is published again has to be as young as its newest reference. Where the store keeps the older one
    as it is, the payload gets another name, of 32 random digits behind as much of the id as there is room for.

    Args:
        root: of the store.
        topic: of the payload.
        object_id: how it is to be called.
        put: stores it at a path, and raises KeptError if there is one that is kept.
    """
    path = root.path(topic, object_id)
    try:
        put(path)
    except KeptError:
        path = root.path(topic, f"{object_id[:200]}-{uuid.uuid4().hex}")
        put(path)
    return path
