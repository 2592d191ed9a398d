"""Runs histories in processes of their own: what one leaves behind, no other one finds.

Nothing of a killed worker may be collected while a history runs, as coroutines that are collected clean up. So there is
no garbage collection, and a process ends after some histories.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import pickle
import selectors
import signal
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.simulation.chunks_play import ChunksPlay
from tests.simulation.confluent_play import ConfluentPlay
from tests.simulation.kafka_python_play import KafkaPythonPlay
from tests.simulation.outcome import Cuts, Outcome
from tests.simulation.play import Play
from tests.simulation.promises import Broken
from tests.simulation.replay_play import ReplayPlay
from tests.simulation.world import World

PLAYS: Mapping[str, type[World | Play]] = {
    "worker": World,
    "chunks": ChunksPlay,
    "replay": ReplayPlay,
    "kafka-python": KafkaPythonPlay,
    "confluent": ConfluentPlay,
}

ALL = "all"  # stands for all of them, by turns

MIX = ["worker", "worker", "kafka-python", "worker", "chunks", "worker", "worker", "confluent", "worker", "replay"]
"""What a seed is of, by its last digit, if all are run."""


_MOST_CPU_S = 60.0  # a callback that never ends is no step of the loop


@dataclass(frozen=True, slots=True)
class Detail:
    """What is noted of each history beside whether it broke a promise."""

    tally: bool = False  # how often each thing happened
    history: bool = False  # in words, with the requests that matter


def played(seed: int, cuts: Cuts, detail: Detail) -> Outcome:
    """Runs one history in this process, which must be one of those of `outcomes`."""
    began_s = time.process_time()
    world = PLAYS[cuts.play](seed, cuts, tallies=detail.tally, aloud=detail.history)
    broken: str | None = None
    try:
        world.run()
    except Broken as exc:
        broken = str(exc)
    except _TooLongError:
        broken = f"a callback did not end in {_MOST_CPU_S:.0f} s of CPU:\n{traceback.format_exc()}"
    except Exception:  # noqa: BLE001  # of the simulation, or of the worker: of this seed
        broken = f"the simulation failed:\n{traceback.format_exc()}"
    digest = hashlib.sha256(repr((world.told, world.requests, world.loop.steps, world.loop.now_s, broken)).encode())
    return Outcome(
        seed,
        cuts,
        broken,
        digest.hexdigest()[:16],
        tuple(world.happened),
        world.loop.steps,
        world.loop.now_s - 1_000,
        time.process_time() - began_s,
        world.scenario.workers,
        world.scenario.records,
        world.tally,
        tuple(world.told) if detail.history else (),
    )


class _TooLongError(KeyboardInterrupt):
    """Raised wherever the process is; the loop and its tasks let it pass as they do what a user sends."""


def _too_long(*_: Any) -> None:
    raise _TooLongError


@dataclass(slots=True)
class _Child:
    number: int
    jobs: list[tuple[int, Cuts]]
    data: bytearray

    def outcomes(self) -> Iterator[Outcome]:
        """What it has sent; what it has not stays in `jobs`."""
        at = 0
        while at < len(self.data):
            size = int.from_bytes(self.data[at : at + 4], "big")
            data = self.data[at + 4 : at + 4 + size]
            if len(data) < max(size, 1):
                return  # it died within
            yield pickle.loads(data)  # noqa: S301  # of a child of this process
            self.jobs.pop(0)
            at += 4 + size


def outcomes(
    jobs: Iterable[tuple[int, Cuts]], processes: int, detail: Detail = Detail(), chunk: int = 1
) -> Iterator[Outcome]:
    """Runs histories, so many at a time; what came of each, those of a process together."""
    jobs = iter(jobs)
    gc.collect()
    gc.freeze()  # what is there now is never looked at again, nor copied
    with selectors.DefaultSelector() as pipes:
        running = 0
        while True:
            while running < processes and (mine := [*itertools.islice(jobs, chunk)]):
                reader, child = _forked(mine, detail)
                pipes.register(reader, selectors.EVENT_READ, child)
                running += 1
            if not running:
                return
            for key, _ in pipes.select():
                data = os.read(key.fd, 1 << 16)
                if data:
                    key.data.data += data
                    continue
                pipes.unregister(key.fd)
                os.close(key.fd)
                running -= 1
                _, status = os.waitpid(key.data.number, 0)
                yield from key.data.outcomes()
                if key.data.jobs:
                    (seed, cuts), *rest = key.data.jobs
                    code = os.waitstatus_to_exitcode(status)
                    yield Outcome(seed, cuts, f"the process of the history ended with status {code}", "")
                    jobs = itertools.chain(rest, jobs)


def _forked(jobs: list[tuple[int, Cuts]], detail: Detail) -> tuple[int, _Child]:
    reader, writer = os.pipe()
    number = os.fork()
    if number:
        os.close(writer)
        return reader, _Child(number, jobs, bytearray())
    status = 1
    try:
        os.close(reader)
        gc.disable()
        signal.signal(signal.SIGPROF, _too_long)
        for seed, cuts in jobs:
            signal.setitimer(signal.ITIMER_PROF, _MOST_CPU_S)
            data = pickle.dumps(played(seed, cuts, detail))
            signal.setitimer(signal.ITIMER_PROF, 0)
            with os.fdopen(os.dup(writer), "wb") as pipe:
                pipe.write(len(data).to_bytes(4, "big") + data)
        status = 0
    except KeyboardInterrupt:
        status = 130
    finally:
        os._exit(status)
