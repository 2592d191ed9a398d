"""Quotas of the brokers for the clients of one id."""

from __future__ import annotations

import asyncio

from app.config.settings import ClientSettings
from app.kafka.clients import admin
from app.kafka.queries import Query, version

__all__ = ["set_quotas"]

_ENTITY = "[entity_type:text entity_name:text]"


class _AlterClientQuotas(Query):
    VERSION = version(
        f"49.0 entries:[entity:{_ENTITY} ops:[key:text value:float64 remove:boolean]] validate_only:boolean",
        f"throttle_time_ms:int32 entries:[error_code:int16 error_message:text entity:{_ENTITY}]",
        flexible=False,
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
