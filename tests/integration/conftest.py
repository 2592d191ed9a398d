"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.way import PARTITIONS, MakeTopic, Way


@pytest.fixture
def make_way(broker: str, make_topic: MakeTopic, tmp_path: Path, least_session_ms: int) -> Callable[..., Way]:
    """Makes the topics and the configuration of one test."""

    def make(partitions: int = PARTITIONS, large: int = 2_000_000) -> Way:
        return Way(broker, make_topic, tmp_path, partitions=partitions, large=large, session_ms=least_session_ms)

    return make
