"""The offset reset: finds where to read a partition whose committed offset is missing, or not in its log.

No record that is there is passed over in silence. `auto.offset.reset` decides for a group that has committed nothing.
If an offset is out of range, or the topic was recreated, reading starts at the first record, and the reason is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from app.config.settings import PipelineSettings
from app.kafka.clients import ClusterError
from app.kafka.consumer import GroupConsumer
from app.kafka.errors import GroupMovedOnError, NoOffsetForPartitionError, OffsetOutOfRangeError
from app.kafka.structs import TopicPartition
from app.pipeline.lane import Lane
from app.pipeline.lanes import Lanes
from app.pipeline.stats import PipelineStats
from transforms.commit_metadata import note, noted
from transforms.epoch_history import Cut
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

_LEADERS_S = 5.0  # an unclean election changes the leaders of many partitions, one after the other


class OffsetReset:
    """Finds where to begin. Belongs to the event loop of the flow.

    `renewed` are the topics that were created again since their offsets were committed.
    """

    # State that changes: `_renewed`, `_known`; on the event loop, between two awaits.

    def __init__(
        self,
        source: GroupConsumer,
        settings: PipelineSettings,
        lanes: Lanes,
        *,
        stats: PipelineStats,
        renewed: Collection[str],
    ) -> None:
        self._source = source
        self._name = settings.name
        self._reset = settings.consumer["consumer.auto.offset.reset"] or "earliest"
        self._lanes = lanes
        self._stats = stats
        self._renewed = frozenset(renewed)
        self._known: dict[str, bool] = {}

    @property
    def renewing(self) -> bool:
        """True until partitions of the topics that were created again begin at their first record."""
        return bool(self._renewed)

    async def renew(self, lanes: Iterable[Lane]) -> None:
        """Begins topics that were created again at their first records; those offsets are committed for the old ones.

        Raises:
            GroupMovedOnError: the group assigns its partitions again; what it assigns then begins at its first record.
            KafkaError: the cluster did not answer.
        """
        fresh = [lane for lane in lanes if lane.partition.topic in self._renewed]
        for lane in fresh:
            _, first, _ = await self._look(lane.partition)
            if not await self._begin(lane, first):
                raise GroupMovedOnError(f"the next owners of topic {lane.partition.topic} begin it")
            log.warning(
                "pipeline %s: topic %s was deleted and created again; partition %d is read from its first record, at "
                "offset %d",
                self._name,
                *lane.partition,
                first,
            )
        if fresh:  # else another worker may be late, and leave them to this one
            self._renewed = frozenset()

    async def find(self, error: NoOffsetForPartitionError | OffsetOutOfRangeError) -> None:
        """Finds where to read on in the partition that the error of a poll names.

        Raises:
            ClusterError: the log has changed since the flow began to read it, so that the records in flight must not
                be committed; or the log was cut, and `consumer.auto.offset.reset` is `none`.
            KafkaError: `consumer.auto.offset.reset` is `none`, or the cluster did not answer.
        """
        unknown = isinstance(error, NoOffsetForPartitionError)
        for partition, offset in ({error.args[0]: 0} if unknown else error.args[0]).items():
            cut = None if unknown else self._source.cut(partition)
            if cut is not None:
                await self._go_back(partition, offset, cut)
            elif self._reset == "none":
                raise error
            elif unknown:
                await self._find_first(partition)
            else:
                await self._find_again(partition, offset)

    async def _look(self, partition: TopicPartition) -> tuple[Lane | None, int, int]:
        """The lane, and the bounds of its log; no lane if the group has moved on: its new owner looks for itself."""
        lane = self._lanes.get(partition)
        first, end = await self._source.bounds(partition)
        return lane if lane is not None and self._lanes.has(lane) else None, first, end

    async def _find_first(self, partition: TopicPartition) -> None:
        lane, first, end = await self._look(partition)
        # Another owner may have committed after the poll that found nothing; the next poll finds it. Or a transaction
        # that held the offset has ended.
        if lane is None or await self._source.commits([partition]) or self._source.position(partition) is not None:
            return
        # The offset is committed before the first record is written: if the worker is killed, the next start knows that
        # the group has begun, and was allowed to.
        if self._reset == "earliest":
            await self._begin(lane, first)
            return
        # Asked once: the offsets that this flow itself commits at its first look do not count.
        if partition.topic not in self._known:
            self._known[partition.topic] = await self._source.known(partition.topic)
        if not self._known[partition.topic]:
            await self._begin(lane, end)
        # The group has read other partitions of the topic: it commits each of them at the first look.
        elif await self._begin(lane, first):
            what = "pipeline %s: topic %s, partition %d is new, and read from its first record"
            log.warning(what, self._name, *partition)

    async def _find_again(self, partition: TopicPartition, offset: int) -> None:
        lane, first, end = await self._look(partition)
        if lane is None or first <= offset <= end:
            return
        place, gone = f"topic {partition.topic}, partition {partition.partition}", max(0, first - offset)
        if gone and lane.delivered <= end:
            # What is in flight was before that, and stays valid, as does what was delivered above the commit.
            begins = self._source.begin(partition, first)
            lane.read_to = first  # the next commit
        elif lane.tracker is None:
            begins = await self._begin(lane, first)
        else:
            raise ClusterError(
                f"{place}: was read up to offset {offset:,}, and has records from {first:,} to {end:,} now: it was "
                "created again, or records were lost in the cluster",
                retriable=True,
            )
        if begins:
            self._stats.expired_records += gone
            log.warning(
                "pipeline %s: %s: offset %s %s, and there are records from %s to %s: %s; all that are there are read, "
                "from the first",
                self._name,
                place,
                f"{offset:,}",
                "is committed" if lane.tracker is None else "is the next one",
                f"{first:,}",
                f"{end:,}",
                f"{gone:,} records were deleted before they were read"
                if gone
                else "the topic was created again, or records were lost in the cluster",
            )

    async def _go_back(self, partition: TopicPartition, offset: int, cut: Cut) -> None:
        """Restarts where a log was cut: the reset policy decides whether, not where, as for Kafka's own consumer.

        Raises:
            ClusterError: see `find`. All partitions that are known to be cut are logged before.
        """
        text = _cut_text(partition, cut)
        if self._reset == "none":
            raise ClusterError(f"{text}; consumer.auto.offset.reset is none", retriable=False)
        if not await self._begin_at_cut(partition, offset, cut):
            return
        # The flow ends. The next one does not learn of a log that was cut where nothing was committed yet.
        read = {lane: self._source.position(lane.partition) for lane in self._lanes if lane.tracker is not None}
        await self._source.compare({lane.partition: at for lane, at in read.items() if at is not None}, _LEADERS_S)
        for lane in self._lanes:
            elsewhere = self._source.cut(lane.partition)
            if lane.tracker is not None and elsewhere is not None:
                await self._begin_at_cut(lane.partition, elsewhere.read, elsewhere)
        raise ClusterError(text, retriable=True)

    async def _begin_at_cut(self, partition: TopicPartition, offset: int, cut: Cut) -> bool:
        """Logs what is gone, and commits where the log parts; True if the flow ends, with what it has read of it."""
        lane, first, _ = await self._look(partition)
        if lane is None:
            return False
        parts, tracker = max(first, cut.offset), lane.tracker
        # What the metadata of a commit says was delivered of the log that was lost must not be committed again.
        delivered = max(lane.delivered, found.delivered if (found := noted(lane.noted)) is not None else 0)
        begin = max(first, min(offset, cut.offset)) if tracker is None else min(parts, tracker.committed)
        # What is below the cut was delivered. It is no longer than the metadata that the brokers have accepted.
        metadata = note(begin, min(delivered, parts), ())
        if tracker is None:
            begins = await self._begin(lane, begin, metadata)
        else:
            self._lanes.discard([partition])  # nothing of the log that was lost may be committed any more
            right = tracker.committed <= parts and delivered <= parts
            begins = right or await self._commit(partition, begin, metadata)
        if begins:
            self._stats.truncated_records += cut.read - cut.offset
            log.warning(
                "pipeline %s: %s; it is read again from there; %s records are gone, or have others in their place",
                self._name,
                _cut_text(partition, cut),
                f"{cut.read - cut.offset:,}",
            )
        return tracker is not None

    async def _begin(self, lane: Lane, offset: int, metadata: str = "") -> bool:
        """Reads from an offset, and commits it, so that the old offset does not come back with the next start.

        False if the lane has been discarded: the commit of another worker must not be written over.
        """
        if not self._lanes.has(lane):
            return False
        lane.restart_at(offset)
        if metadata:
            lane.resume(offset, metadata, self._name)
        return await self._commit(lane.partition, offset, metadata) and self._lanes.has(lane)

    async def _commit(self, partition: TopicPartition, offset: int, metadata: str) -> bool:
        """Reads from an offset, and commits it; False if the partition is not this worker's any more."""
        if not self._source.begin(partition, offset):
            return False
        try:
            await self._source.commit({partition: (offset, metadata)})
        except GroupMovedOnError:
            return False
        return True


def _cut_text(partition: TopicPartition, cut: Cut) -> str:
    return (
        f"topic {partition.topic}, partition {partition.partition}: the cluster has lost the end of the log, as by an "
        f"unclean election: it was read up to offset {cut.read:,}, and parts from what was read at {cut.offset:,}"
    )
