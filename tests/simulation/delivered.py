"""What has come of the messages: values in the sink, dead letters; what was lost; whether that is as it should be."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.messages import Message
from tests.simulation.partition_log import PartitionLog
from tests.simulation.scenario import WRAPPED_HEADER
from tests.simulation.storm import TEXT
from transforms.chunk import is_chunk
from transforms.chunked_message import Assembled, Limits
from transforms.commit_metadata import noted
from transforms.letter import PREFIX
from transforms.reassembly import Reassembly
from transforms.record import Record, RecordLike
from transforms.reference import Reference, is_reference
from transforms.wrapper import HeaderTable, Unwrap

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

_UNWRAP = Unwrap(HeaderTable({WRAPPED_HEADER: "n"}))


class UnreadableError(ValueError): ...


class Reader:
    """The application: it resolves references, puts chunks together and takes wrappers off, of one partition."""

    def __init__(self, world: World, log: PartitionLog) -> None:
        self.log, self._payloads = log, world.store.payloads
        self._unwraps = "wrap" in world.scenario.work.kind.transforms
        self._torn = world.losses.kept  # keys of messages whose first chunks may be in a topic that is deleted
        self._assembler = Reassembly(Limits(1_000, 1 << 30, 1 << 30, 0))
        self._next = 0
        self.read: list[RecordLike] = []
        """What it has got."""
        self.assembled: set[bytes | None] = set()
        """The keys of messages that came as chunks: if they come again, the application gets nothing."""

    @property
    def pending(self) -> int:
        return self._assembler.pending

    def go_on(self) -> Sequence[RecordLike]:
        stable = self.log.stable
        for offset, record in self.log.committed(self._next):
            if offset >= stable:
                break
            self._next = offset + 1
            self._take(record)
        return self.read

    def _take(self, record: Any) -> None:
        if not is_chunk(record.headers):
            self.read.append(self._opened(record))
            return
        for event in self._assembler.receive(0, record):
            if not isinstance(event, Assembled):
                if event.reason == "missing-first" and record.key in self._torn:
                    continue
                raise UnreadableError(f"offset {record.offset}: {event.reason}: {event.detail}")
            self.assembled.add(event.record.key)
            self.read.append(self._opened(event.record))

    def _opened(self, record: RecordLike) -> RecordLike:
        if self._unwraps:
            record = _UNWRAP.unwrap(record)
        if is_reference(record.headers):
            reference, own = Reference.parse(record)
            value = self._payloads.get(reference.path)
            if value is None or len(value) != reference.size:
                raise UnreadableError(f"{record.key!r}: there is no payload {reference.path}")
            record = Record(record.key, value, own, record.timestamp)
        return record


class Losses:
    """What a history takes away: it may be missing in the end, or need not be in order any more."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.gone: set[bytes] = set()  # the keys that need not come out: they left the source before they were durable
        self.kept: set[bytes] = set()  # the keys that were in a sink that was deleted
        # Whether source and sink have had different numbers of partitions, so that the key has decided
        self.rerouted = False
        # The source partitions whose offsets mean something else than before: a commit proves nothing there
        self.unsteady: set[int] = set()
        # The source partitions of topics that were created again, whose records may come twice
        self.repeated: set[int] = set()

    def source_lost(self, number: int, first: int, last: int) -> None:
        """A source partition has lost the records from the offset `first` to before `last`."""
        self.gone |= {
            message.key
            for message in self._world.source.began[number]
            if any(first <= offset < last for offset in message.offsets)
        }
        damaged = self._world.source.damaged
        kept = [each for each in damaged[number] if not first <= each[0] < last]
        for offset, data in damaged[number]:
            end = int.from_bytes(data[:8], "big") + int.from_bytes(data[23:27], "big")
            if first <= offset < last <= end:  # the log still has the batch, of which the rest cannot be decoded
                kept.append((last, data))
        damaged[number] = kept

    def sink_lost(self, log: PartitionLog) -> None:
        """A partition of the sink or of the dead letters is gone."""
        self.kept |= {record.key for record in log.records() if record.key is not None}
        damaged = self._world.promises.damaged
        damaged.kept += [record.value for record in log.records()]
        damaged.read += [record.value for _, record in log.committed()]

    def spares(self, key: bytes) -> bool:
        """Whether a message need not come out."""
        return key in self.gone or key in self.kept


_DAMAGE = re.compile(r"topic raw, partition (\d+), offset \d+: malformed record: .*?\(offsets (\d+) to")


class Damaged:
    """What must come of the batches that no reader can decode: dead letters, or the end of the pipeline."""

    def __init__(self, world: World) -> None:
        self.kept: list[bytes | None] = []  # the values of dead-letter topics that were deleted
        # Those of them that were committed by then; the others may be written once more in their transaction
        self.read: list[bytes | None] = []
        self._world = world

    def lost(self, number: int, end: int) -> list[int]:
        """The offsets of damage below `end` of a source partition that are no dead letters."""
        batches = [each for each in self._world.source.damaged[number] if each[0] < end]
        values = self.kept + self._values() if batches else []
        return [offset for offset, data in batches if data not in values]

    def twice(self) -> list[int]:
        """The offsets of damage with more than one dead letter."""
        values, repeated = self.read + self._values(), self._world.losses.repeated
        found = [batches for number, batches in self._world.source.damaged.items() if number not in repeated]
        return [offset for batches in found for offset, data in batches if values.count(data) > 1]

    def _values(self) -> list[bytes | None]:
        logs = self._world.cluster.logs("dead")
        return [record.value for log in logs for _, record in log.committed()]

    def stopped(self, worker: Worker) -> bool:
        """Whether a pipeline has ended at a batch that cannot be decoded, be it in the log still or not."""
        text = worker.failed or ""
        return self._world.scenario.tolerance == "none" and "malformed record" in text and "(offsets" in text

    def ended(self, worker: Worker) -> bool:
        """Whether a pipeline has ended as it must if errors are not tolerated, with topic, partition and offset."""
        if worker.tolerates or worker.failed is None:
            return False
        places = [(number, offset) for number, found in self._world.source.damaged.items() for offset, _ in found]
        return any(
            f"topic raw, partition {number}, offset" in worker.failed and f"(offsets {offset} to" in worker.failed
            for number, offset in places
        )

    def lacking(self, worker: Worker) -> str | None:
        """What is not written, or not committed, though it comes before the batch at which a pipeline has ended."""
        found = _DAMAGE.search(worker.failed or "")
        if found is None:
            return None
        number, first = map(int, found.groups())
        world = self._world
        if number in world.losses.unsteady:
            return None
        end = max((each.offset for each in world.source.written[number] if each.offset < first), default=None)
        commit = world.cluster.groups.committed(world.settings.pipelines[0].group_id).get(("raw", number))
        note = None if commit is None else noted(commit.metadata)  # an incomplete message may hold the offset back
        reached = -1 if commit is None else max(commit.offset, 0 if note is None else note.delivered)
        if end is not None and reached <= end:
            return f"raw-{number}: the pipeline has ended at {first}, and what is before it is not committed: {commit}"
        return None


_SHOWN = 5
_PLACE = re.compile(r"topic raw, partition (\d+), offset (\d+):")


class Delivered:
    def __init__(self, world: World) -> None:
        self._world = world
        self._readers: dict[int, Reader] = {}
        self._letters: dict[tuple[int, int], list[Any]] = {}
        self._dead: list[PartitionLog] = []
        self._next = 0

    def _reader(self, number: int) -> Reader:
        found, log = self._readers.get(number), self._world.cluster.log("out", number)
        if found is None or found.log is not log:  # another topic of that name
            found = self._readers[number] = Reader(self._world, log)
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
        """The keys of messages with records below an offset that have come to nothing."""
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
        """What is wrong with a partition when all is done; None for nothing."""
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
        """What has not come out, though it is whole before the record at which a pipeline has ended, by its text."""
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
