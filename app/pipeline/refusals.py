"""Stages that refuse records: they make nothing of a record but an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from app.cluster.preflight import CLOCKS_APART_MS
from app.kafka.topics import Topic
from app.pipeline.stages import NoLimit
from transforms.claims import Claim, claim, may_hold_claims
from transforms.errors import RecordUnfitError, ReferenceClaimedError
from transforms.record import RecordLike, SourceRecord
from transforms.record_batch import RecordBatch

__all__ = ["ClaimStage", "UnfitStage"]


class _Refusal(NoLimit):
    """A stage that only raises errors."""

    def moves(self, record: RecordLike) -> bool:  # noqa: ARG002
        return False

    blocks = moves
    asks_store = moves

    def reserve_bytes(self, record: RecordLike) -> int:  # noqa: ARG002
        return 0


class ClaimStage(_Refusal):
    """Fails the records that claim to be references or chunks. Goes in the place of `offload` where nothing is stored.

    Then such a record cannot be stored as it is, so that readers would not follow it.

    `splits` says of a record whether it goes on as chunks.
    """

    name = "claim"

    def __init__(self, splits: Callable[[RecordLike], bool]) -> None:
        self._splits = splits

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:  # noqa: ARG002
        return may_hold_claims(batch)

    def wants(self, record: RecordLike) -> bool:
        return bool(record.headers) and self._claimed(record) is not None

    def _claimed(self, record: RecordLike) -> Claim | None:
        claimed = claim(record)
        return claim(record, split=True) if claimed == "chunk" and self._splits(record) else claimed

    def apply(self, record: RecordLike, source: RecordLike) -> Sequence[RecordLike]:  # noqa: ARG002
        claimed = self._claimed(record)
        assert claimed is not None
        raise ReferenceClaimedError(claimed)


class UnfitStage(_Refusal):
    """Fails the records that the sink has refused for what they are. Goes before all other stages.

    Each refusal lets the pipeline begin again. So this stage fails other records beforehand: those with a timestamp
    that the sink would refuse.

    `refused` has the reasons, by topic, partition and offset. `clock` are seconds since 1970.
    """

    name = "sink"

    def __init__(
        self, refused: Mapping[tuple[str, int, int], RecordUnfitError], sink: Topic, clock: Callable[[], float]
    ) -> None:
        self._refused = refused
        self._sink = sink
        self._clock = clock

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:  # noqa: ARG002
        # The header of a batch does not have the least timestamp.
        if self._refused or self._sink.oldest_ms is not None:
            return True
        return not self._sink.takes_timestamp(batch.latest_timestamp, self._clock(), -CLOCKS_APART_MS)

    def wants(self, record: RecordLike) -> bool:
        taken = self._sink.takes_timestamp(record.timestamp, self._clock(), -CLOCKS_APART_MS)
        return not taken or _place(record) in self._refused

    def apply(self, record: RecordLike, source: RecordLike) -> Sequence[RecordLike]:  # noqa: ARG002
        error = self._refused.get(_place(record))
        raise error or RecordUnfitError(self._sink.name, f"its timestamp is {record.timestamp}, as others it refused")


def _place(record: RecordLike) -> tuple[str, int, int]:
    source = cast(SourceRecord, record)  # no stage has changed it yet
    return source.topic, source.partition, source.offset
