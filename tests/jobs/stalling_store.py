"""A store that removes some payloads, and then no more: what a sweep is in the middle of stays until it is killed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from threading import Event

from stores.filesystem import FilesystemStore
from stores.store import PayloadInfo, Removal

__all__ = ["StallingStore"]

_REMOVED = 50  # in each task


class StallingStore(FilesystemStore):
    """Waits for ever after the first payloads."""

    def delete_unchanged(self, payloads: Iterable[PayloadInfo]) -> Iterator[Removal]:
        """See `stores.store.DeleteUnchanged`."""
        yield from super().delete_unchanged(itertools.islice(payloads, _REMOVED))
        Event().wait()
