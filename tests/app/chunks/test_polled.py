"""The incomplete messages of a consumer that polls one record after the other, without a broker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from app.chunks.discarded import warn
from app.chunks.polled import Place, Polled, Rereads
from app.kafka.source_batch import ReadRecord
from transforms.assembly import Assembled, Discarded, Limits
from transforms.chunk import Chunk

PLACE: Place = ("t", 3)


class Log:
    """What is in a partition, as the consumer sees it that reads again."""

    def __init__(self, *records: ReadRecord) -> None:
        self._records = records

    def first(self, _: Place) -> int:
        return min((each.offset for each in self._records), default=0)

    def records(self, _: Place, start: int, end: int) -> Iterator[ReadRecord | None]:
        return iter([each for each in self._records if start <= each.offset < end])

    def close(self) -> None: ...


def letter(offset: int, uuid: str, text: str, number: int) -> ReadRecord:
    """One chunk of a message of one byte a chunk."""
    return ReadRecord(
        *PLACE, offset, 7, b"k", text[number].encode(), Chunk(uuid, number, len(text), len(text)).headers()
    )


def read_again(polled: Polled, log: Log) -> Assembled | Discarded | None:
    """Reads the next message again that waits for it; what becomes of it."""
    reread = polled.again or polled.discarded.head[1]
    assert not isinstance(reread, Discarded)
    found = Rereads(polled, lambda: log).read(reread, time.monotonic() + 60)
    assert found is not None
    polled.resolve(reread, *found)
    return found[0]


@pytest.mark.parametrize("ends", ["whole", "expired"])
def test_message_that_has_left_the_log(ends: str, caplog: pytest.LogCaptureFixture) -> None:
    """A message that was set aside, and of which nothing is left to read again, is told of like any discarded one."""
    polled = Polled(Limits(messages=1, expire_ms=1_000), lookback=10)
    polled.begin(PLACE, 3)
    for record in (letter(3, "u", "ab", 0), letter(4, "v", "ab", 0)):
        polled.take(record)
    if ends == "whole":
        polled.take(letter(5, "v", "ab", 1))
    else:
        polled.count([PLACE], 1.0)
    read_again(polled, Log())
    place, event = polled.discarded.head
    assert isinstance(event, Discarded)
    last = 5 if ends == "whole" else 4
    reason = "missing-first" if ends == "whole" else "expired"
    assert (place, event.reason, event.uuid, event.records, event.first, event.last) == (
        PLACE,
        reason,
        "v",
        (),
        4,
        last,
    )
    assert polled.safe(PLACE, 6)[0] == 3
    warn(event)
    (line,) = caplog.messages
    assert line.startswith(f"topic t partition 3: a message of chunks was discarded: {reason} (")
    assert line.endswith(f"; its chunks, from offset 4 to {last}, have left the log; its uuid is v")
