"""What can be simulated, by the name that `--play` has for it."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.chunks_play import ChunksPlay
from tests.simulation.confluent_play import ConfluentPlay
from tests.simulation.kafka_python_play import KafkaPythonPlay
from tests.simulation.play import Play
from tests.simulation.replay_play import ReplayPlay
from tests.simulation.world import World

__all__ = ["ALL", "MIX", "PLAYS"]

PLAYS: Mapping[str, type[World | Play]] = {
    "worker": World,
    "chunks": ChunksPlay,
    "replay": ReplayPlay,
    "kafka-python": KafkaPythonPlay,
    "confluent": ConfluentPlay,
}

ALL = "all"
"""Stands for all of them, by turns."""

MIX = ["worker", "worker", "kafka-python", "worker", "chunks", "worker", "worker", "confluent", "worker", "replay"]
"""What a seed is of, by its last digit, if all are run."""
