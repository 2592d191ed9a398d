"""Admission: what is let in, by what it takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from app.admission import Admission
from app.budget import Budget, Share
from app.lanes import Lanes
from app.stats import PipelineStats

PARTITION = TopicPartition("raw", 0)


async def test_admit_counts_headers() -> None:
    """Records whose bytes are in their headers fill the budget as others do; the last that is let in fits."""
    share = Share(Budget(10_000))
    lanes = Lanes(share, None)
    lanes.open(PARTITION, 0)
    appended: list[int] = []
    admission = Admission(
        cast(Any, SimpleNamespace(passes=lambda record: True)),
        lanes,
        share,
        assembly=None,
        outlet=cast(Any, SimpleNamespace(append=lambda lane, record, offset, held: appended.append(held))),
        passage=cast(Any, None),
        stats=PipelineStats(),
    )
    headers = (("name", b"v" * 4_000),)
    records: list[Any] = [ConsumerRecord("raw", 0, n, 0, 0, b"k", b"v", None, 1, 1, headers) for n in range(5)]
    admission.add({PARTITION: records})
    admission.admit()
    assert appended == [400 + 2 + 160 + 4_004] * 2
    assert (share.used, admission.waits) == (sum(appended), True)
