"""The committed offsets: what waits for them, and what becomes of a look-up that fails or is overtaken."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import OffsetAndMetadata

from app.pipeline.committed_offsets import CommittedOffsets
from app.pipeline.lane import Lane
from app.pipeline.termination import DefectError
from tests.app.pipeline.outputs import parts_of

PARTITION = TopicPartition("raw", 0)


class Bench:
    """The offsets of one lane, and the answers of a cluster."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[int]] = []
        parts = parts_of(partitions=[0])
        (self.lane,), self.termination = parts.lanes, parts.termination
        self.offsets = CommittedOffsets(parts, self._fetch)

    async def _fetch(self, lanes: Sequence[Lane]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        self.answers.append(asyncio.get_running_loop().create_future())
        offset = await self.answers[-1]
        return {lane.partition: OffsetAndMetadata(offset, "") for lane in lanes}

    async def asked(self, times: int) -> None:
        """Waits until the cluster has been asked so often."""
        async with asyncio.timeout(10):
            while len(self.answers) < times:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0)


async def test_offsets_are_waited_for() -> None:
    """Nothing is read before they are known; a rebalance lets it wait again."""
    bench = Bench()
    offsets = bench.offsets
    for times, offset in ((1, 7), (2, 9)):
        offsets.look_up()
        await bench.asked(times)
        assert not offsets.known
        bench.answers[-1].set_result(offset)
        await offsets.known_within(10)
        assert (offsets.known, bench.lane.committed) == (True, offset)
        offsets.forget()
    assert not offsets.known


@pytest.mark.parametrize("defect", [False, True])
async def test_offsets_that_cannot_be_taken_end_the_flow(*, defect: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the group; a defect is as loud, as the flow would wait for ever."""
    bench = Bench()

    def refuse(*_: object) -> None:
        raise IndexError("a note that nobody has thought of")

    bench.offsets.look_up()
    await bench.asked(1)
    if defect:
        monkeypatch.setattr(Lane, "resume", refuse)
        bench.answers[-1].set_result(7)
    else:
        bench.answers[-1].set_exception(KafkaConnectionError("gone"))
    assert bench.offsets._looking_up is not None
    await asyncio.wait([bench.offsets._looking_up], timeout=10)
    error = bench.termination.error
    assert isinstance(error, DefectError) if defect else "reading offsets of group" in str(error)
    assert not bench.offsets.known


async def test_look_up_that_a_rebalance_overtakes() -> None:
    """Its answer is not taken for that of the next one, which begins when it has ended."""
    bench = Bench()
    bench.offsets.look_up()
    await bench.asked(1)
    bench.offsets.forget()
    bench.offsets.look_up()
    await bench.asked(2)
    assert bench.answers[0].cancelled()
    assert (bench.lane.committed, bench.offsets.known) == (None, False)
    bench.answers[1].set_result(3)
    await bench.offsets.known_within(10)
    assert bench.lane.committed == 3
