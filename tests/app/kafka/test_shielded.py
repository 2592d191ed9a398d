"""Waiting for what goes on if its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from app.kafka.shielded import shielded


async def test_result_of_what_is_shielded() -> None:
    """The result, the error and the cancellation of a future are those of the wait, each as often as it is asked."""
    loop = asyncio.get_running_loop()
    done, failed, cancelled = loop.create_future(), loop.create_future(), loop.create_future()
    waiting = [asyncio.create_task(shielded(each)) for each in (done, failed, cancelled)]
    await asyncio.sleep(0)
    done.set_result(1)
    failed.set_exception(ValueError("no"))
    cancelled.cancel()
    assert await waiting[0] == await shielded(done) == 1
    for each in (waiting[1], shielded(failed)):
        with pytest.raises(ValueError, match="no"):
            await each
    for each in (waiting[2], shielded(cancelled)):
        with pytest.raises(asyncio.CancelledError):
            await each


@pytest.mark.usefixtures("unlogged")
async def test_it_goes_on_and_fails_in_silence() -> None:
    """A caller that is cancelled, or whose time is over, leaves nothing: neither a cancellation nor a log line."""
    future = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(shielded(future))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    with pytest.raises(TimeoutError):
        await shielded(future, 0)
    assert (waiting.cancelled(), future.done()) == (True, False)
    future.set_exception(ValueError("nobody waits"))
