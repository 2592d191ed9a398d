"""What can be simulated, by the name that `--play` has for it."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.chunks_play import ChunksPlay
from tests.simulation.play import Play
from tests.simulation.replay_play import ReplayPlay
from tests.simulation.world import World

__all__ = ["ALL", "MIX", "PLAYS"]

PLAYS: Mapping[str, type[World | Play]] = {"worker": World, "chunks": ChunksPlay, "replay": ReplayPlay}

ALL = "all"
"""Stands for all of them, by turns."""

MIX = ("worker", "worker", "worker", "worker", "chunks", "worker", "worker", "worker", "worker", "replay")
"""What a seed is of, by its last digit, if all are run."""
