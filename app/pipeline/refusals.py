"""Stages that refuse records: they make nothing of a record but an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from app.cluster.preflight import CLOCKS_APART_MS
from app.kafka.topics import Topic
from app.pipeline.stages import NoLimit
from transforms.claims import claim, may_hold_claims
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
    """

    name = "claim"

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:  # noqa: ARG002
        return may_hold_claims(batch)

    def wants(self, record: RecordLike) -> bool:
        return bool(record.headers) and claim(record) is not None

    def apply(self, record: RecordLike, source: RecordLike) -> Sequence[RecordLike]:  # noqa: ARG002
        claimed = claim(record)
        assert claimed is not None
        raise ReferenceClaimedError(claimed)


class UnfitStage(_Refusal):
    """Fails the records that the sink has refused for what they are. Goes before all other stages.

    Each refusal lets the pipeline begin again. So this stage fails other records beforehand: those with a timestamp
    that the sink would refuse.

    `refused` has the reasons, by topic, partition and offset.
    """

    name = "sink"

    def __init__(self, refused: Mapping[tuple[str, int, int], RecordUnfitError], sink: Topic) -> None:
        self._refused = refused
        self._sink = sink

    def wants_any(self, batch: RecordBatch, *, whole: bool) -> bool:  # noqa: ARG002
        # The header of a batch does not have the least timestamp.
        if self._refused or self._sink.oldest_ms is not None:
            return True
        return not self._sink.takes_timestamp(batch.latest_timestamp, -CLOCKS_APART_MS)

    def wants(self, record: RecordLike) -> bool:
        return _place(record) in self._refused or not self._sink.takes_timestamp(record.timestamp, -CLOCKS_APART_MS)

    def apply(self, record: RecordLike, source: RecordLike) -> Sequence[RecordLike]:  # noqa: ARG002
        error = self._refused.get(_place(record))
        raise error or RecordUnfitError(self._sink.name, f"its timestamp is {record.timestamp}, as others it refused")


def _place(record: RecordLike) -> tuple[str, int, int]:
    source = cast(SourceRecord, record)  # no stage has changed it yet
    return source.topic, source.partition, source.offset
