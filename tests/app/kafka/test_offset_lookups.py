"""Lookups of offsets that a broker refuses, as it does not lead the partition."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest, OffsetResponse_v3

from app.kafka.offset_lookups import follow_leaders


@pytest.mark.parametrize(("code", "again"), [(0, 0), (1, 0), (6, 1), (3, 1)])
async def test_leaders_are_asked_for_again(code: int, again: int) -> None:
    """Else the same broker would be asked for five minutes."""
    client: Any = AIOKafkaClient()
    asked: list[None] = []
    answer = OffsetResponse_v3(0, [("t", [(0, 0, -1, 7), (1, code, -1, -1)])])

    async def send(*_: object, **__: object) -> Any:
        return answer

    client.send = send
    client.force_metadata_update = lambda: asked.append(None)
    follow_leaders(client)
    request = OffsetRequest(-1, 0, [("t", [(0, -2), (1, -2)])])
    assert await client.send(1, request) is answer
    assert len(asked) == again
    other = FetchRequest(500, 1, 1_000, 1, [("t", [(0, 0, 1_000)])])
    assert await client.send(1, other) is answer
    assert len(asked) == again
