"""The intake of a flow: its consumer, and its place in the group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka.structs import ConsumerRecord

from app import clients
from app.clients import ClusterError
from app.ending import RecordError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
    from aiokafka.structs import OffsetAndMetadata

    from app.lane import SourceRecord
    from app.lanes import Lanes
    from app.settings import ClientSettings, PipelineSettings
    from transforms.errors import WideloadError

__all__ = ["Intake"]


class Intake:
    """Reads the topics of a pipeline as a member of its group. Belongs to one event loop.

    Its methods raise aiokafka's errors, unless they say otherwise. Rebalances happen while they are awaited.

    Args:
        client: how to reach the cluster.
        settings: the pipeline's.

    Raises:
        ConfigurationError: a certificate or key cannot be used, or a package is missing.
    """

    def __init__(self, client: ClientSettings, settings: PipelineSettings) -> None:
        self._topics = list(settings.topics)
        interval_ms = settings.consumer["consumer.max.poll.interval.ms"]
        assert isinstance(interval_ms, int)
        self._membership_s = interval_ms / 3000  # a third of it, in seconds
        self._consumer: AIOKafkaConsumer = clients.consumer(client, settings)

    async def start(self, listener: ConsumerRebalanceListener) -> None:
        """Joins the group; `listener` hears of each rebalance, the first one too."""
        self._consumer.subscribe(self._topics, listener=listener)
        await self._consumer.start()

    async def stop(self) -> None:
        """Leaves the group."""
        await self._consumer.stop()

    async def poll(
        self, partitions: Iterable[TopicPartition], timeout_ms: int
    ) -> Mapping[TopicPartition, Sequence[SourceRecord]]:
        """What there is to read, as soon as there is something; nothing where nothing came in time.

        Args:
            partitions: where to read; none for all that are assigned.
            timeout_ms: how long to wait.

        Raises:
            RecordError: a record that the client cannot read. The flow must end: the next poll would skip what was
                before it.
            ClusterError: likewise, where the client does not show which.
        """
        try:
            polled: Mapping[TopicPartition, Sequence[SourceRecord]]
            polled = await self._consumer.getmany(*partitions, timeout_ms=timeout_ms)
        except UnicodeDecodeError as exc:
            raise self._unreadable(exc) from exc
        return polled

    def _unreadable(self, error: UnicodeDecodeError) -> WideloadError:
        reason = f"the name of a header is not UTF-8, as Kafka wants it, and the client cannot read the record: {error}"
        # aiokafka does not say where it was; the partition is the one whose reading has ended before its end.
        for partition, result in self._consumer._fetcher._records.items():  # noqa: SLF001
            records = getattr(result, "_partition_records", None)
            if records is not None and records._records_iterator.gi_frame is None:  # noqa: SLF001
                empty = (None, None, None, -1, -1, ())
                place = ConsumerRecord(partition.topic, partition.partition, records.next_fetch_offset, -1, 0, *empty)
                return RecordError(place, ValueError(reason), "; to go on, move the group's offset behind the record")
        return ClusterError(reason, retriable=False)

    async def keep_membership(self, lanes: Lanes) -> None:
        """Counts as a poll, or the group would take the partitions away after `max.poll.interval.ms`.

        Paused partitions give nothing, and lose what was read ahead; so this is done only when it is due.
        """
        # aiokafka tells nobody else how long ago the last poll was, which is what it goes by itself.
        if self._consumer._subscription.fetcher_idle_time < self._membership_s:  # noqa: SLF001
            return
        paused = [lane.partition for lane in lanes]
        self._consumer.pause(*paused)
        try:
            await self._consumer.getmany(timeout_ms=0)
        finally:
            self._consumer.resume(*(partition for partition in paused if lanes.get(partition) is not None))

    def ends(self) -> dict[TopicPartition, int | None]:
        """For each assigned partition the end of its log; None before the first answer from its leader."""
        return {partition: self._consumer.highwater(partition) for partition in self._consumer.assignment()}

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commits offsets, each with its metadata, if the group has not moved on."""
        await self._consumer.commit(offsets)

    async def committed(self, partition: TopicPartition) -> int | None:
        """The committed offset of an assigned partition; None where there is none."""
        offset: int | None = await self._consumer.committed(partition)
        return offset

    async def commits(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The committed offsets with their metadata, of those partitions that have one."""
        # `committed` keeps the metadata to itself.
        found: Mapping[TopicPartition, OffsetAndMetadata]
        found = await self._consumer._coordinator.fetch_committed_offsets(partitions)  # noqa: SLF001
        return found
