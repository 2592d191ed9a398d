"""The payloads in the store: tasks list and remove them, with one client of the store each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta

from stores.registry import STORE_CLASS, open_store
from stores.store import Delete, DeleteUnchanged, List, PayloadInfo, PayloadStore, Removal, Stat
from transforms.errors import ConfigurationError, PayloadNotFoundError, PayloadStoreError
from transforms.orphans import Listed

LISTED = "path string, topic string, stored long, modified_us long"
"""The columns of a `Listed`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def require(store: PayloadStore, *capabilities: type) -> None:
    """Makes sure that the store has each of the capabilities.

    Raises:
        ConfigurationError: it lacks one.
    """
    for capability in capabilities:
        if not isinstance(store, capability):
            raise ConfigurationError(
                STORE_CLASS, f"{capability.__name__} is needed, which this store does not offer; see wideload.stores"
            )


def microseconds(when: datetime) -> int:
    """A time as microseconds since 1970."""
    return (when - _EPOCH) // _MICROSECOND


def listed(config: Mapping[str, object], topics: Iterable[str]) -> Iterator[Listed]:
    """Every payload of the topics."""
    with closing(open_store(config)) as store:
        assert isinstance(store, List)
        for topic in topics:
            for info in store.list(topic):
                yield Listed(info.path, topic, info.size, microseconds(info.modified))


def removed(config: Mapping[str, object], payloads: Iterable[tuple[str, int, int]]) -> Iterator[Removal]:
    """Removes payloads, given by path, stored bytes and time, that have not changed since they were listed."""
    infos = (PayloadInfo(path, stored, _EPOCH + modified_us * _MICROSECOND) for path, stored, modified_us in payloads)
    with closing(open_store(config)) as store:
        yield from store.delete_unchanged(infos) if isinstance(store, DeleteUnchanged) else _one_by_one(store, infos)


def _one_by_one(store: PayloadStore, payloads: Iterable[PayloadInfo]) -> Iterator[Removal]:
    """`DeleteUnchanged` for a store without it."""
    assert isinstance(store, Stat)
    assert isinstance(store, Delete)
    for payload in payloads:
        try:
            if store.stat(payload.path).modified != payload.modified:
                yield Removal(payload, "changed")
                continue
            store.delete(payload.path)
        except PayloadNotFoundError:
            yield Removal(payload, "gone")
        except PayloadStoreError as exc:
            yield Removal(payload, "failed", str(exc))
        else:
            yield Removal(payload, "deleted")
