"""The memory of a worker: what its budget says that it holds, against what it may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.pipeline.lane import RECORD_OVERHEAD_BYTES
from tests.simulation.kinds import MOST_BYTES

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

__all__ = ["excess", "left_over"]

_ONE_RECORD = 5 * (MOST_BYTES + 1_100) + RECORD_OVERHEAD_BYTES
"""The largest record of `Messages`, with the copies that it takes to split and to compress it."""


def excess(worker: Worker) -> str | None:
    """What the worker has held over its limits so far; None for nothing."""
    budget = worker.budget
    if budget.peak > budget.limit + _ONE_RECORD:
        return f"has held {budget.peak:,} bytes of {budget.limit:,} in flight, and one record"
    if min(budget.used, budget.work, budget.ahead) < 0:
        return f"counts {budget.used:,} bytes, {budget.work:,} with work, {budget.ahead:,} read ahead"
    pipeline = worker.pipeline
    held = None if pipeline is None or pipeline.flow is None else pipeline.flow._assembler
    if pipeline is not None and held is not None:
        limits = pipeline.settings.chunks.limits
        if held.pending > limits.messages + _REPEATED or held.pending_bytes > limits.pending_bytes:
            return f"holds {held.pending} messages of chunks, {held.pending_bytes:,} bytes"
    return None


def left_over(worker: Worker) -> str | None:
    """What a worker that has stopped still holds; None for nothing."""
    budget = worker.budget
    if budget.used or budget.work or budget.ahead or budget.shares:
        return f"holds {budget.used:,} bytes, {budget.work:,} with work, {budget.ahead:,} read ahead, in the end"
    return None


_REPEATED = 50  # `pending_messages` has those that come again after they were delivered
