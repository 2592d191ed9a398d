"""Runs histories: `python -m tests.simulation FIRST COUNT`."""

from __future__ import annotations

import gc
import os
import sys

import tests.simulation.clock  # noqa: F401
from tests.simulation.clock import real_s
from tests.simulation.world import run

CHUNK = 50

if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    began = real_s()
    gc.collect()
    gc.freeze()
    gc.disable()
    for at in range(first, first + count, CHUNK):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            continue
        steps = 0
        mine = range(at, min(at + CHUNK, first + count))
        for seed in mine:
            world, broken = run(seed)
            steps += world.loop.steps
            if broken:
                print(seed, world.scenario)
                if count < 3:
                    print("\n".join(world.told))
                print(seed, broken)
            elif count < 3:
                print("\n".join(world.told[-80:]))
        print(round(steps / len(mine)), "steps each", flush=True)
        os._exit(0)
    seconds = real_s() - began
    print(count, "histories", round(seconds, 2), "s")
