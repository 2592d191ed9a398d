"""Equal keys give equal references, or Kafka would send them to two partitions and compact neither."""

from __future__ import annotations

from typing import Any

import pytest

from app.serializers import LargeMessageSerializer
from tests.app.serializers.conftest import Config
from transforms.compression import CODECS
from transforms.record import Header

KEY = b"customer " * 200  # 1,800 bytes


def serialized(config: dict[str, object], own: list[Header]) -> bytes | None:
    """What stands in a record with these headers as its key."""
    headers: list[Any] = list(own)
    return LargeMessageSerializer(config, is_key=True).serialize("orders", headers, KEY)


@pytest.mark.parametrize("codec", CODECS)
def test_a_key_is_not_compressed(config_of: Config, codec: str) -> None:
    """Producers with different compression, or other versions of it, give a key the same reference."""
    found = serialized(config_of(**{"large.message.compression.type": codec}), [])
    assert found == serialized(config_of(), [])


def test_a_key_is_large_whatever_the_headers(config_of: Config) -> None:
    """Headers count when it is asked whether a value fits the client's limit, but not for a key."""
    given = config_of(**{"large.message.threshold.bytes": 10_000, "max.request.size": 4000})
    assert serialized(given, []) == serialized(given, [("trace", b"x" * 2000)]) == KEY
