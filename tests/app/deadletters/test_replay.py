"""Which letters a replay may pass over for good."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.config.parsing import parse
from app.deadletters.log import Filters
from app.deadletters.reader import FoundLetter
from app.deadletters.replay import Replay
from app.deadletters.replay_offsets import ReplayedOffsets
from app.kafka.source_batch import ReadRecord, UnreadBatch
from app.kafka.topics import Topic
from transforms.errors import (
    BatchTooLargeError,
    DiscardedChunkError,
    MalformedError,
    PayloadNotFoundError,
    PayloadStoreError,
    SignatureError,
)
from transforms.record import Record, SourceRecord


@pytest.mark.parametrize(
    ("error", "skipped"),
    [
        (MalformedError("value", "x", "y"), True),
        (DiscardedChunkError("u", "corrupt", ""), True),
        (DiscardedChunkError("u", "expired", ""), False),
        (PayloadNotFoundError("gone"), True),
        (BatchTooLargeError(3, 4, 9), True),
        (PayloadStoreError("down", retriable=True), False),
        (PayloadStoreError("no store"), False),
        (SignatureError("p", "another key"), False),
        (None, False),
    ],
)
async def test_only_letters_that_nobody_can_read_are_skipped(error: Exception | None, skipped: bool) -> None:  # noqa: FBT001
    """Not those that another key, store or right would open, nor those whose chunks may still come."""

    def opened(_: FoundLetter) -> None:
        if error is not None:
            raise error

    replay = SimpleNamespace(skip_unreadable=True, _unreadable=[])
    found = FoundLetter(0, (3, 4), Record(None, None), 0)
    await Replay._skip_unreadable(cast(Any, replay), cast(Any, SimpleNamespace(open=opened)), found)
    assert replay._unreadable == ([range(3, 4), range(4, 5)] if skipped else [])


MILLIONS = 300_000_000  # of records of seven bytes: a batch of 64 KB may hold so many


def replaying(*, skip_unreadable: bool) -> Replay:
    """A replay of a letter, a batch that is not read, and a letter."""
    error = BatchTooLargeError(1, MILLIONS, 9)
    found: list[SourceRecord] = [
        ReadRecord("dead", 0, 0, 0, b"k", b"v", ()),
        UnreadBatch("dead", 0, MILLIONS, 0, b"batch", error, 1, MILLIONS),
        ReadRecord("dead", 0, MILLIONS + 1, 0, b"k", b"v", ()),
    ]

    async def records(*_: int) -> AsyncIterator[Sequence[SourceRecord]]:
        yield found

    table = {"topics": ["raw"], "output.topic": "o", "transforms": ["offload"]}
    table["large.message.payload.store.class"] = "memory"
    settings = parse({"bootstrap.servers": "nowhere:1", "pipeline": {"p": table}})

    def commit_of(_: int, offsets: ReplayedOffsets) -> ReplayedOffsets:
        return offsets

    log = SimpleNamespace(topic=SimpleNamespace(name="dead"), records=records, commit_of=commit_of)
    replay = Replay(
        settings.client,
        settings.pipelines[0],
        cast(Any, log),
        None,
        Filters(),
        None,
        9,
        lambda _: None,
        skip_unreadable=skip_unreadable,
    )
    topic = SimpleNamespace(
        name="raw", partitions=1, max_message_bytes=1_000_000, cleanup_policy="delete", takes_timestamp=lambda *_: True
    )
    replay._topics["raw"] = cast(Any, topic)
    return replay


@pytest.mark.parametrize("skip_unreadable", [False, True])
async def test_letters_around_a_batch_that_is_not_read_are_replayed(*, skip_unreadable: bool) -> None:
    """It fails alone, once; its offsets stay to be replayed, unless they are passed over, however many they are."""
    commits: list[ReplayedOffsets] = []
    written: list[int] = []

    async def write(records: Sequence[object], commit: ReplayedOffsets) -> None:
        written.append(len(records))
        commits.append(commit)

    replay, replayed = replaying(skip_unreadable=skip_unreadable), ReplayedOffsets(0)
    await replay._replay_partition(cast(Any, SimpleNamespace(write=write)), 0, replayed, MILLIONS + 2)
    assert (written, replay.tally.replayed, replay.tally.failures) == ([2], 2, 1)
    assert (replay.tally.failed[0].offset, "offsets 1 to 300000000" in replay.tally.failed[0].reason) == (1, True)
    assert commits[0].offset == (MILLIONS + 2 if skip_unreadable else 1)
    assert [offset in commits[0] for offset in (1, 5, MILLIONS)] == [skip_unreadable] * 3
    assert MILLIONS + 1 in commits[0]


async def test_a_target_that_accepts_no_records_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and before anything is written: the producer would wait without a word."""
    found = Topic("raw", 1, 1_000_000, "delete", shortage="topic raw, partition 0 accepts no records")

    async def find_topic(*_: object) -> Topic:
        return found

    monkeypatch.setattr("app.deadletters.replay.find_topic", find_topic)
    replay, warned = replaying(skip_unreadable=False), list[str]()
    replay._topics.clear()
    replay.warn = warned.append
    assert [await replay._describe("raw") for _ in range(2)] == [found, found]
    assert warned == [found.shortage]
