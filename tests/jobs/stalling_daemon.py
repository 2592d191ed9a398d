"""Starts Spark's Python workers, in which a store removes some payloads, and then no more.

What a sweep is in the middle of stays so until it is killed. `spark.python.daemon.module` names this module.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from threading import Event

from pyspark.daemon import manager

from stores.filesystem import FilesystemStore
from stores.store import PayloadInfo, Removal

_REMOVED = 50  # in each task

_delete_unchanged = FilesystemStore.delete_unchanged


def _stalling(store: FilesystemStore, payloads: Iterable[PayloadInfo]) -> Iterator[Removal]:
    yield from _delete_unchanged(store, itertools.islice(payloads, _REMOVED))
    Event().wait()


if __name__ == "__main__":
    FilesystemStore.delete_unchanged = _stalling  # type: ignore[assignment, method-assign]
    manager()  # type: ignore[no-untyped-call]
