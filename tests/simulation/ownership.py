"""Who writes a partition of the sink: the worker that the group has given the source partition of that number.

What a worker had on its way when it lost the partition may still come, as with any client of Kafka. Nothing else may:
it would come behind what the next owner has written.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

from app.kafka.structs import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

__all__ = ["Ownership"]

_PRODUCE = 0
_STAMP_AT = 43
_CRC_AT = 17
_STAMP = struct.Struct(">qhii")  # producer id, epoch, first sequence number, count of records


class Ownership:
    """Looks at the batches that workers send."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int, int, int], tuple[bytes, int]] = {}
        self._late: Counter[tuple[str, int]] = Counter()

    def sent(self, worker: Worker, request: Any) -> str | None:
        """Notes a request; what is wrong with it, or None."""
        if request.API_KEY != _PRODUCE:
            return None
        for topic, partitions in request.topics:
            for number, data in partitions if topic == "out" else ():
                if (wrong := self._batch(worker, number, bytes(data))) is not None:
                    return wrong
        return None

    def _batch(self, worker: Worker, number: int, data: bytes) -> str | None:
        *stamp, count = _STAMP.unpack_from(data, _STAMP_AT)
        place, crc = (number, *stamp), data[_CRC_AT : _CRC_AT + 4]
        before = self._sent.get(place)
        self._sent[place] = crc, count
        if before is not None and before[0] == crc:
            return None  # sent again
        late = worker.process.name, number
        if self._holds(worker, number):
            self._late[late] = 0
            return None
        self._late[late] += 1
        if before is not None and before[1] == 1:
            return f"{worker.process.name} writes to out-{number} in the place of a refused record of a lost partition"
        if self._late[late] > 1:
            return f"{worker.process.name} begins one batch of out-{number} after the other, which it has lost"
        return None

    def _holds(self, worker: Worker, number: int) -> bool:
        flow = None if worker.pipeline is None else worker.pipeline.flow
        if flow is None or flow._leaving or flow._plan.sink_partition("raw", number) != number:
            return True  # it ends, or the key decides on the partition
        place = TopicPartition("raw", number)
        if flow._lanes.get(place) is not None:
            return True
        source: Any = flow._source
        return place in source.consumer.assignment() and not source.rebalancing
