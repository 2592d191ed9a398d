"""The downloads of a client that blocks: how many are under way, what a call may begin, and where errors are raised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import pytest

from app.chunks.allowance import PARALLEL
from app.chunks.downloads import Downloads
from app.chunks.inbox import Entry
from transforms.errors import SerializationError

_LONG_S = 30.0


class Store:
    """Records are numbers. Odd ones are downloaded, each call until `open`; the application's part runs here."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.called: list[int] = []
        self.bad: set[int] = set()
        self.owner = threading.get_ident()

    def restoring(self, record: int) -> Generator[Callable[[], Any], Callable[[], Any], int]:
        assert threading.get_ident() == self.owner
        found: int = (yield partial(self._get, record))()
        assert threading.get_ident() == self.owner
        return 10 * found

    def _get(self, record: int) -> int:
        self.called.append(record)
        assert self.open.wait(_LONG_S)
        if record in self.bad:
            raise SerializationError("t", "value", "bad")
        return record


@pytest.fixture
def store() -> Store:
    """A store."""
    return Store()


@pytest.fixture
def downloads(store: Store) -> Iterator[Downloads[int]]:
    """Its downloads."""
    made = Downloads[int](lambda record: record if record % 2 else None, store.restoring)
    yield made
    store.open.set()
    made.close()


def entries(count: int) -> list[Entry[int]]:
    """The numbers from 1 on."""
    return [Entry(number, number) for number in range(1, count)]


def test_eight_are_under_way(store: Store, downloads: Downloads[int]) -> None:
    """The next ones have begun when the first is restored, in the order of the queue, and each begins once."""
    queue = entries(100)
    store.open.set()
    assert downloads.restore(queue, lambda _: True) == 10
    assert [each.offset for each in queue if each.work] == [3, 5, 7, 9, 11, 13, 15]
    assert [downloads.restore(queue[at:], lambda _: True) for at in (2, 4)] == [30, 50]
    downloads.close()
    assert sorted(store.called) == [*range(1, 2 * (PARALLEL + 2), 2)]


def test_what_a_call_may_begin(store: Store, downloads: Downloads[int]) -> None:
    """Nothing behind a record that may not begin is begun; a first one that may not gives nothing."""
    queue = entries(10)
    store.open.set()
    assert downloads.restore(queue, lambda size: size < 5) == 10
    assert [each.offset for each in queue if each.work] == [3]
    assert downloads.restore(queue[4:], lambda _: False) is None


def test_an_error_keeps_its_place(store: Store, downloads: Downloads[int]) -> None:
    """It is raised when its record is the first, and the next call tries again."""
    queue = entries(10)
    store.open.set()
    store.bad = {3}
    assert downloads.restore(queue, lambda _: True) == 10
    with pytest.raises(SerializationError, match="bad"):
        downloads.restore(queue[2:], lambda _: True)
    store.bad = set()
    assert downloads.restore(queue[2:], lambda _: True) == 30
    assert store.called.count(3) == 2


def test_a_stage_before_the_store(downloads: Downloads[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may leave nothing to download, or fail; either is the outcome of its record, and of no other."""

    def restoring(record: int) -> Generator[Callable[[], Any], Callable[[], Any], int]:
        if record == 3:
            raise SerializationError("t", "value", "bad")
        if record < 0:
            yield partial(int, record)
        return record

    monkeypatch.setattr(downloads, "_restoring", restoring)
    queue = entries(10)
    assert downloads.restore(queue, lambda _: True) == 1
    with pytest.raises(SerializationError, match="bad"):
        downloads.restore(queue[2:], lambda _: True)
    assert downloads.restore(queue[4:], lambda _: True) == 5
