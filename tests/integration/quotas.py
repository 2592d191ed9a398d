"""Quotas of the brokers for the clients of one id."""

from __future__ import annotations

import asyncio

from aiokafka.protocol.types import Boolean, Float64, Int16, Int32

from app.config.settings import ClientSettings
from app.kafka.clients import admin
from app.kafka.queries import TEXT, Query, fields, rows, version

__all__ = ["set_quotas"]

_ENTITY = rows(entity_type=TEXT, entity_name=TEXT)


class _AlterClientQuotas(Query):
    VERSIONS = (
        version(
            49,
            0,
            fields(
                entries=rows(entity=_ENTITY, ops=rows(key=TEXT, value=Float64, remove=Boolean)), validate_only=Boolean
            ),
            fields(throttle_time_ms=Int32, entries=rows(error_code=Int16, error_message=TEXT, entity=_ENTITY)),
            flexible=False,
        ),
    )


def set_quotas(broker: str, client_id: str, **rates: float) -> None:
    """Sets `producer_byte_rate`, `consumer_byte_rate` or `request_percentage` of clients that have this id."""
    ops = [(key, value, False) for key, value in rates.items()]

    async def run() -> None:
        async with admin(ClientSettings(broker)) as connection:
            query = _AlterClientQuotas(entries=[([("client-id", client_id)], ops)], validate_only=False)
            answer = await connection.send(query)
            assert [code for code, *_ in answer.entries] == [0], answer

    asyncio.run(run())
