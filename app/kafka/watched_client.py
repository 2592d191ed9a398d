"""A watched client: others see each try of an aiokafka client to connect, and each of its requests and responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka.client import AIOKafkaClient

__all__ = ["Send", "watch_connections", "watch_requests"]

Send = Callable[[], Awaitable[Any]]


def watch_connections(client: AIOKafkaClient, tell: Callable[[str, bool], None]) -> None:
    """Calls `tell` after each try to connect, with the address of the broker, and whether it was reached.

    Args:
        client: of a consumer or producer that has not been started.
        tell: called as long as the client lives.
    """
    connect = client._get_conn

    async def watched(node_id: Any, **options: Any) -> Any:
        before = client._conns.get((node_id, options.get("group", 0)))
        address = _address(client, node_id)  # asked first: the next metadata may forget it
        connection = await connect(node_id, **options)
        if connection is None or connection is not before:
            tell(address, connection is not None)
        return connection

    client._get_conn = watched


def watch_requests(client: AIOKafkaClient, handle: Callable[[str, Any, Send], Awaitable[Any]]) -> None:
    """Lets `handle` answer each request: it gets the broker's address, the request, and a function that sends it.

    A later handler is around the former ones. Otherwise as `watch_connections`.
    """
    send = client.send

    async def watched(node_id: Any, request: Any, **options: Any) -> Any:
        return await handle(_address(client, node_id), request, lambda: send(node_id, request, **options))

    client.send = watched


def _address(client: AIOKafkaClient, node_id: Any) -> str:
    """Host and port of a broker, for people; its number if the client does not know them."""
    broker = client.cluster.broker_metadata(node_id)
    return f"{broker.host}:{broker.port}" if broker is not None else f"number {node_id}"
