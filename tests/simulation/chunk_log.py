"""What a log says of messages in chunks, by an own reading of the format."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulation.partition_log import PartitionLog

__all__ = ["Logged", "logged"]

_HEADERS = "large-message.chunk."


@dataclass(slots=True)
class Logged:
    """A message as the log has it: whole, or not.

    Attributes:
        key: of the message.
        first: the offset of its first record.
        last: the offset of its last record.
        chunked: whether it is more than one record.
        whole: whether all chunks are there, in order.
    """

    key: bytes
    first: int
    last: int
    chunked: bool
    whole: bool
    numbers: list[int] = field(default_factory=list)


def logged(log: PartitionLog) -> list[Logged]:
    """The messages of a log, by an own reading of the format: a message is whole if its chunks are 0 to count - 1."""
    found: dict[object, Logged] = {}
    for offset, record in log.committed():
        headers = dict(record.headers)
        uuid = headers.get(_HEADERS + "uuid")
        if uuid is None:
            found[offset] = Logged(record.key, offset, offset, chunked=False, whole=True)
            continue
        number, count = int(headers[_HEADERS + "id"]), int(headers[_HEADERS + "count"])
        message = found.setdefault(uuid, Logged(record.key, offset, offset, chunked=True, whole=False))
        message.numbers.append(number)
        message.last = offset
        message.whole = message.numbers == [*range(count)]
    return [*found.values()]
