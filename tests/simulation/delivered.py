"""What has come of the messages: values in the sink, dead letters; and whether that is as it should be."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.defect import TEXT
from tests.simulation.messages import Message
from tests.simulation.partition_log import PartitionLog
from tests.simulation.reader import Reader
from transforms.letter import PREFIX

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Delivered"]

_SHOWN = 5
_PLACE = re.compile(r"topic raw, partition (\d+), offset (\d+):")


class Delivered:
    """Looks at the topics that a pipeline writes to.

    Args:
        world: of the history.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._unwraps = "wrap" in world.scenario.work.kind.transforms
        self._readers: dict[int, Reader] = {}
        self._letters: dict[tuple[int, int], list[Any]] = {}
        self._dead: list[PartitionLog] = []
        self._next = 0

    def _reader(self, number: int) -> Reader:
        world = self._world
        found, log = self._readers.get(number), world.cluster.log("out", number)
        if found is None or found.log is not log:  # another topic of that name
            found = self._readers[number] = Reader(
                log, world.store.payloads, unwraps=self._unwraps, torn=world.losses.kept
            )
        return found

    def _got(self, number: int) -> Sequence[Sequence[Any]]:
        """What the application has got of a source partition, from each partition of the sink."""
        logs, mine = self._world.cluster.logs("out"), b"p%d-" % number
        places = range(len(logs)) if self._world.losses.rerouted else range(len(logs))[number : number + 1]
        return [
            [each for each in self._reader(place).go_on() if (each.key or b"").startswith(mine)] for place in places
        ]

    def _read_letters(self) -> None:
        logs = self._world.cluster.logs("dead")
        if logs[:1] != self._dead[:1]:  # another topic of that name
            self._dead, self._next = logs[:1], 0
        if self._world.scenario.exactly_once:  # the transactions of other partitions may end later
            self._next, self._letters = 0, {}
        for offset, record in logs[0].committed(self._next) if logs else ():
            self._next = offset + 1
            headers = dict(record.headers)
            place = int(headers[f"{PREFIX}partition"]), int(headers[f"{PREFIX}offset"])
            self._letters.setdefault(place, []).append(record)

    def lacking(self, number: int, below: int) -> Sequence[bytes]:
        """The keys of messages with records below an offset that have come to nothing.

        Raises:
            UnreadableError: the application cannot read what it gets.
        """
        self._read_letters()
        came = {record.key for rows in self._got(number) for record in rows}
        return [
            message.key
            for message in self._world.source.began[number]
            if message.first < below and not self._settled(number, message, below, came)
        ]

    def _settled(self, number: int, message: Message, below: int, came: set[bytes | None]) -> bool:
        if self._world.losses.spares(message.key) or (message.fate != "dead" and message.key in came):
            return True
        if message.fate == "out":
            return False
        if message.fate == "either" and self._world.scenario.drops:
            return True
        return self._world.tolerates and all(
            letters
            for offset, letters in zip(message.offsets, self._of_parts(number, message), strict=False)
            if offset < below
        )

    def _of_parts(self, number: int, message: Message) -> Sequence[Sequence[Any]]:
        """For each record of a message its dead letters; those of a chunk that came twice count for both."""
        by_part: dict[Any, list[Any]] = {}
        for part, offset in zip(message.parts, message.offsets, strict=False):
            letters = self._letters.get((number, offset), [])
            by_part.setdefault(part, []).extend(letter for letter in letters if letter.key == message.key)
        return [by_part[part] for part, _ in zip(message.parts, message.offsets, strict=False)]

    def faults(self, number: int) -> str | None:
        """What is wrong with a partition when all is done; None for nothing.

        Raises:
            UnreadableError: the application cannot read what it gets.
        """
        self._read_letters()
        got = self._got(number)
        pending = sum(each.pending for each in self._readers.values())
        scenario = self._world.scenario
        # At least once, a message may be given up that was written in part before.
        # Or the source has lost it since.
        runs_out = scenario.work.runs_out or bool(self._world.losses.gone)
        gives_up = not scenario.exactly_once and (scenario.work.gives_up or runs_out)
        if pending and not (scenario.falls_back or gives_up or self._world.losses.unsteady):  # lost when half written
            return f"{pending} messages in the sink lack chunks"
        written = self._world.source.written[number]
        return (
            self._wrong_values(number, written, got)
            or self._wrong_order(number, written, got)
            or self._wrong_letters(number)
        )

    def _wrong_values(self, number: int, written: Sequence[Message], got: Sequence[Sequence[Any]]) -> str | None:
        by_key = {message.key: message for message in (*self._world.source.began[number], *written)}
        for record in itertools.chain(*got):
            message = by_key.get(record.key)
            if message is None or message.fate == "dead":
                return f"{record.key[:20]!r} came out, which should not"
            if (record.value, tuple(record.headers)) != (message.value, message.headers):
                return f"{record.key[:20]!r} has another value, or other headers: {record.headers}"
            if len(message.parts) == 1 and record.timestamp != message.timestamp:
                return f"{record.key[:20]!r} has another timestamp: {record.timestamp}, not {message.timestamp}"
        return None

    def _wrong_order(self, number: int, written: Sequence[Message], got: Sequence[Sequence[Any]]) -> str | None:
        found = [record.key for rows in got for record in rows]
        losses = self._world.losses
        sure = [
            message.key
            for message in written
            if message.fate == "out" and (message.key in found or not losses.spares(message.key))
        ]
        # If the source has lost a record of a message that it has twice, the second one counts; and if the sink was
        # deleted that had a message, what is written again of it, at least once. What the source has lost may come out
        # behind the records after it, at least once: with a late batch of a former owner, where the new one lacks it.
        unsure = {message.key for message in written if message.again and losses.spares(message.key)}
        unsure |= losses.gone if losses.unsteady or not self._world.scenario.exactly_once else set()
        unsure |= set() if self._world.scenario.exactly_once else losses.kept
        sure = [key for key in sure if key not in unsure]
        if missing := [key for key in sure if key not in {*found}]:
            return f"lost {missing[:_SHOWN]} of {len(sure)}"
        if losses.rerouted:  # a partition may have the second one alone, behind what was between the two
            sure = [key for key in sure if key not in {message.key for message in written if message.again}]
        if number in losses.repeated:  # the application gets them when they are read first, and others a second time
            assembled = set[bytes | None]().union(*(each.assembled for each in self._readers.values()))
            sure = [key for key in sure if key not in assembled]
        for rows in got:
            there = {record.key for record in rows}
            keys = [record.key for record in rows if record.key in {*sure}]
            first, last = [*dict.fromkeys(keys)], [*dict.fromkeys(reversed(keys))][::-1]
            if number in losses.repeated:  # read from where the former topic was, and then from the first record
                first = last
            # Others may come again to a partition, where those behind them have gone before their way has changed.
            orders = [first, last] if losses.rerouted else [first]
            if [key for key in sure if key in there] not in orders:
                return f"the order is {first}, not {sure}"
        if self._world.scenario.exactly_once and number not in losses.repeated:
            once = {message.key for message in written if not message.again}
            twice = [key for key in dict.fromkeys(found) if key in once and found.count(key) > 1]
            if twice:
                return f"twice {twice[:_SHOWN]} of {len(sure)}"
        return None

    def _wrong_letters(self, number: int) -> str | None:
        came = {record.key for rows in self._got(number) for record in rows}
        for message in self._world.source.began[number]:
            if self._world.losses.spares(message.key):
                continue
            letters = self._of_parts(number, message)
            # The first reading of a repeated source may begin within the chunks of a message.
            within = number in self._world.losses.repeated and len(message.parts) > 1
            if message.fate == "out" and any(letters) and not within:
                return f"{message.key[:20]!r} has come out, and is a dead letter too"
            if message.fate == "either" and (self._world.scenario.drops or message.key in came):
                continue
            if message.fate != "out" and not all(letters):
                return f"{message.key[:20]!r} should be a dead letter, and is none: {[*map(len, letters)]}"
            once = self._world.scenario.exactly_once and number not in self._world.losses.repeated
            if once and message.fate == "dead" and len(letters) == 1 and len(letters[0]) > 1:
                return f"{message.key[:20]!r} is a dead letter {len(letters[0])} times"
        return None

    def poison(self, text: str) -> bool:
        """Whether the text names the place of a message that can never come out."""
        for number, messages in self._world.source.began.items():
            for message in messages:
                if message.fate == "dead" or self._world.losses.spares(message.key):
                    for offset in message.offsets:
                        if f"topic raw, partition {number}, offset {offset}:" in text:
                            return True
        return False

    def held_up(self, text: str) -> str | None:
        """What has not come out, though it is whole before the record at which a pipeline has ended, as the text says.

        Raises:
            UnreadableError: the application cannot read what it gets.
        """
        found, losses = _PLACE.search(text), self._world.losses
        if found is None or self._world.cluster.transactions.open:
            return None
        if TEXT in text and self._world.scenario.exactly_once:
            return None  # its transaction is aborted, with the records before
        number, end = map(int, found.groups())
        if number in losses.unsteady:
            return None
        came = {record.key for rows in self._got(number) for record in rows}
        held = [
            message.key
            for message in self._world.source.written[number]
            if message.offset < end
            and message.fate == "out"
            and message.key not in came
            and not losses.spares(message.key)
        ]
        return f"raw-{number}: the pipeline has ended at {end}, and before it lacks {held[:_SHOWN]}" if held else None
