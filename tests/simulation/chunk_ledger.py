"""What applications were given of a topic with chunks, and whether that keeps the promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.partition_log import PartitionLog
from tests.simulation.play import Play
from tests.simulation.promises import Broken
from transforms.chunked_message import Discarded
from transforms.commit_metadata import noted

_HEADERS = "large-message.chunk."


@dataclass(slots=True)
class Logged:
    """A message as the log has it: whole, or not."""

    key: bytes  # of the message
    first: int  # the offset of its first record
    last: int  # the offset of its last record
    whole: bool  # whether all chunks are there, in order
    numbers: list[int] = field(default_factory=list)


def logged(log: PartitionLog) -> list[Logged]:
    """The messages of a log, by an own reading of the format: a message is whole if its chunks are 0 to count - 1."""
    found: dict[object, Logged] = {}
    for offset, record in log.committed():
        headers = dict(record.headers)
        uuid = headers.get(_HEADERS + "uuid")
        if uuid is None:
            found[offset] = Logged(record.key, offset, offset, whole=True)
            continue
        number, count = int(headers[_HEADERS + "id"]), int(headers[_HEADERS + "count"])
        message = found.setdefault(uuid, Logged(record.key, offset, offset, whole=False))
        message.numbers.append(number)
        message.last = offset
        message.whole = message.numbers == [*range(count)]
    return [*found.values()]


_EXPIRED = {"expired", "missing-first"}  # after a restart behind the first chunk, too


@dataclass(frozen=True, slots=True)
class Given:
    """A record that an application got, or a message that it was told is not whole (`reason`)."""

    partition: int
    offset: int
    key: bytes
    value: bytes | None
    first: int
    reason: str | None = None


def given_up(discarded: Discarded) -> Given:
    if discarded.gone is not None:
        partition: Any = discarded.gone.partition
        return Given(partition[1], discarded.last, b"", None, discarded.first, discarded.reason)
    first: Any = discarded.records[0]
    return Given(first.partition, discarded.last, first.key, None, discarded.first, discarded.reason)


class Ledger:
    def __init__(
        self,
        play: Play,
        log: Callable[[int], PartitionLog],
        values: Callable[[], Mapping[bytes, bytes]],
        *,
        expires: bool,
    ) -> None:
        self.play, self._log, self._values, self._expires = play, log, values, expires
        self._got: dict[int, dict[int, Given]] = {}
        self._commits: dict[int, tuple[int, str]] = {}

    def give(self, given: Given) -> None:
        self._got.setdefault(given.partition, {}).setdefault(given.offset, given)

    def commit(self, number: int, offset: int, metadata: str) -> None:
        """Takes in a commit: all whole messages below it have been given."""
        self.play.tell(f"committed {number}: {offset} {metadata!r}")
        self._commits[number] = offset, metadata
        below = self.least(number)
        self._check_given(number, below, f"{number} is committed up to {below}")

    def least(self, number: int) -> int:
        """The least offset that may come after an assignment: what is below was given, as the commit says."""
        offset, metadata = self._commits.get(number, (0, ""))
        note = noted(metadata)
        return max(offset, 0 if note is None else note.delivered)

    def left(self, number: int) -> object:
        """The commit and the end of a partition; None if all is committed."""
        end, (offset, metadata) = self._log(number).end, self._commits.get(number, (0, ""))
        return None if offset >= end else (number, offset, metadata, end)

    def _check_given(self, number: int, below: int, what: str) -> None:
        got = self._got.get(number, {})
        for message in logged(self._log(number)):
            if message.whole and message.last < below and message.last not in got:
                self.play.breaks(f"{what}, and {message.key!r} ({message.first}-{message.last}) was not given")

    def check_end(self, number: int) -> None:
        """Raises `Broken` if not all whole messages of a partition were given, or others, or with another value."""
        self._check_given(number, self._log(number).end, f"{number} has ended")
        whole = {each.key for each in logged(self._log(number)) if each.whole}
        values = self._values()
        for given in self._got.get(number, {}).values():
            if given.reason is not None:
                if given.key in whole and not (given.reason in _EXPIRED and self._expires):
                    raise Broken(f"{given.key!r} is whole in the log, and was discarded: {given.reason}")
            elif values.get(given.key) != given.value:
                raise Broken(f"{given.key!r} was given with another value")
            elif given.key not in whole:
                raise Broken(f"{given.key!r} was given, and is not whole in the log")


class Reading:
    """What one consumer was given since its partitions came: in order, and nothing that its commit says was given."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger, self._name = ledger, name
        self.last: dict[int, int] = {}  # by partition, the offset of the last record
        self.seen: dict[int, list[Given]] = {}  # by partition, the records, in order
        self._least: dict[int, int] = {}

    def assigned(self, numbers: Iterable[int]) -> None:
        """Takes in which partitions have come, each to be read from its commit."""
        names = sorted(numbers)
        self._ledger.play.tell(f"{self._name} has partitions {names}")
        for number in names:
            self.forget(number)
            self._least[number] = self._ledger.least(number)

    def distrust(self, number: int) -> None:
        """Notes that the client could not read the commit: records may repeat, and a warning was logged."""
        self._least.pop(number, None)

    def forget(self, number: int) -> None:
        """Takes in that a partition has gone, or is read from elsewhere."""
        for each in (self.last, self._least, self.seen):
            each.pop(number, None)

    def give(self, given: Given) -> None:
        play, number = self._ledger.play, given.partition
        what = f"{given.key!r}: {number} at {given.first}-{given.offset}"
        if given.reason is not None:
            play.tell(f"{self._name} is told that it is {given.reason}: {what}")
        else:
            play.tell(f"{self._name} got {what}")
            if given.offset <= self.last.get(number, -1):
                play.breaks(f"{self._name} got {what}, behind {self.last[number]}")
            if given.offset < self._least.get(number, 0):
                play.breaks(f"{self._name} got {what} again: below {self._least[number]} all was given")
            self.last[number] = given.offset
            self.seen.setdefault(number, []).append(given)
        self._ledger.give(given)
