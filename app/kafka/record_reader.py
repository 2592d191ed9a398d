"""Reads records for commands: within bounds of memory, whatever is in their batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from aiokafka import TopicPartition

from app.kafka.consumer_controls import ConsumerControls
from app.kafka.fetched import FetchedBatches, Unlimited
from transforms.record import SourceRecord

__all__ = ["RecordReader"]

_MOST_BYTES = 268_435_456  # of a batch before compression: the default of in.flight.bytes
_ALLOWED = "256 MiB, where a command reads"
_GIVEN_BYTES = 33_554_432  # so that 500 records of one batch after the other do not fill the memory
_HEADER_BYTES = 100  # of one as an object, at least


class RecordReader:
    """Reads the records of one consumer. Belongs to its event loop.

    Names of headers may be any bytes; see `transforms/record_format.py`. A batch that holds more than 256 MiB comes as
    one `Unopened`, as does a record with more headers than the worker reads.

    Args:
        controls: of a consumer that has started and was not polled yet.
    """

    # State that changes: `_assignment`, in `poll`; one poll at a time.

    def __init__(self, controls: ConsumerControls) -> None:
        self._controls = controls
        self._assignment: Any = None
        FetchedBatches(controls, Unlimited())

    @property
    def held(self) -> bool:
        """Whether what the last poll gave is still this consumer's: no rebalance has begun since."""
        return self._controls.assignment is self._assignment and not self._controls.rebalancing

    async def poll(
        self, *partitions: TopicPartition, timeout_ms: int, most: int
    ) -> AsyncIterator[tuple[TopicPartition, Sequence[SourceRecord]]]:
        """What one poll gives: records of a partition, some at a time. It ends early at a rebalance.

        The position of the consumer is behind all of them from the beginning.

        Args:
            partitions: of which something may be read; none for all that are assigned.
            timeout_ms: how long to wait for records.
            most: the most records at a time.

        Raises:
            KafkaError: the cluster failed, or a batch is damaged.
        """
        polled = await self._controls.consumer.getmany(*partitions, timeout_ms=timeout_ms, max_records=most)
        self._assignment = self._controls.assignment
        for partition, batches in polled.items():
            given: list[SourceRecord] = []
            size = 0
            for batch in batches:
                for record in batch.opened(_MOST_BYTES, _ALLOWED):
                    given.append(record)
                    size += _size(record)
                    if len(given) >= most or size >= _GIVEN_BYTES:
                        yield partition, given
                        given, size = [], 0
                        if not self.held:
                            return
                await asyncio.sleep(0)  # to look into a batch may have taken long
            if given:
                yield partition, given
                if not self.held:
                    return


def _size(record: SourceRecord) -> int:
    headers = sum(_HEADER_BYTES + len(value or b"") for _, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers
