"""A flow that is paused: what it had is committed, and what comes waits."""

from __future__ import annotations

from tests.integration.line import EARLY, LONG, MakeLine, keys, records


async def test_a_pause_ends_the_transaction(make_line: MakeLine) -> None:
    """With exactly once, what was written before the pause is seen by readers during it."""
    line = make_line(**LONG)
    async with line.life() as life:
        await line.send(records(3))
        await life.until(lambda: life.stats.records_out == 3)
        assert life.stats.transactions == 0
        life.flow.pause(paused=True)
        await life.until(lambda: life.stats.transactions == 1)
        assert (await line.committed())[0] == 3
        await line.send(records(2, start=3))
        life.flow.pause(paused=False)
        await life.until(lambda: life.stats.records_out == 5)
        await life.stop()
    assert keys(await line.found()) == [0, 1, 2, 3, 4]


async def test_what_was_read_ahead_is_read_again(make_line: MakeLine) -> None:
    """Records that waited for room when the pause came take no memory during it, and are not lost."""
    line = make_line(**EARLY, **{"consumer.max.poll.records": 1})
    await line.send(records(2_000, size=20_000))
    async with line.life() as life:
        await life.until(lambda: life.stats.records_in > 0)
        life.flow.pause(paused=True)
        await life.until(lambda: life.flow.paused and life.flow.report.in_flight_bytes == 0)
        assert life.flow.report.read_ahead_bytes == 0
        read = life.stats.records_in
        assert read < 2_000
        life.flow.pause(paused=False)
        await life.until(lambda: life.stats.records_out == 2_000)
        await life.stop()
    assert keys(await line.found()) == list(range(2_000))
