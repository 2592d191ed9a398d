"""How well the batches of a topic compress: the estimate of KIP-126 ("Proposed Changes").

A producer must close a batch before it knows its compressed size. Therefore it uses an estimate for each topic and
compression type, as topics compress differently.

The formulas and numbers of KIP-126 are images; they are those of Kafka's own `CompressionRatioEstimator`. The text once
names 0.005 as COMPRESSION_RATIO_DETERIORATE_STEP, and once the proportion DETERIORATE:IMPROVING = 10:1. Only the second
agrees with its reason (20 batches for an improvement of 0.1, so that few batches are split) and with Kafka: 0.005 is
the step of improving, 0.05 that of deteriorating.
"""

from __future__ import annotations

INITIAL_ESTIMATE = 1.0
IMPROVING_STEP = 0.005
DETERIORATE_STEP = 0.05
ESTIMATION_FACTOR = 1.05
"""A margin: a batch may compress worse than estimated by this factor before it exceeds the limit."""


def next_estimate(estimate: float, observed: float) -> float:
    """The next estimate, after a batch with the ratio `observed`, which is above 0.

    A worse ratio raises the estimate by at least `DETERIORATE_STEP`, and at least to `observed`. A better one lowers it
    by at most `IMPROVING_STEP`, and never below `observed`.
    """
    if observed > estimate:
        return max(estimate + DETERIORATE_STEP, observed)
    if observed < estimate:
        return max(estimate - IMPROVING_STEP, observed)
    return estimate


def estimated_bytes(uncompressed: int, estimate: float) -> float:
    """The estimated compressed size, with the margin."""
    return estimate * uncompressed * ESTIMATION_FACTOR


def room_bytes(batch_bytes: int, estimate: float) -> int:
    """The maximum uncompressed size whose `estimated_bytes` do not exceed `batch_bytes`."""
    room = int(batch_bytes / (estimate * ESTIMATION_FACTOR))
    return room if estimated_bytes(room, estimate) <= batch_bytes else room - 1


class Estimates:
    """The estimates of one producer, or of several that write to common topics. Belongs to one thread."""

    __slots__ = ("_estimates",)

    def __init__(self) -> None:
        self._estimates: dict[tuple[str, str], float] = {}

    def of_topic(self, topic: str) -> dict[str, float]:
        """The estimates of a topic, by codec; none before its first batch."""
        return {codec: estimate for (name, codec), estimate in sorted(self._estimates.items()) if name == topic}

    def of(self, topic: str, codec: str) -> float:
        """The estimate for the next batch."""
        return self._estimates.get((topic, codec), INITIAL_ESTIMATE)

    def observe(self, topic: str, codec: str, ratio: float) -> float:
        """Updates the estimate by the ratio of a batch, and returns it; see `next_estimate`."""
        estimate = self._estimates[topic, codec] = next_estimate(self.of(topic, codec), ratio)
        return estimate

    def reset(self, topic: str, codec: str) -> None:
        """Restarts at `INITIAL_ESTIMATE`, after a batch had to be split."""
        self._estimates.pop((topic, codec), None)
