"""Requests for metadata of our clients: none of them creates a topic."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.metadata import MetadataRequest

from app.kafka.admin import AdminClient
from app.kafka.metadata_requests import create_no_topics

ROOT = Path(__file__).parents[3]
# Clients that applications configure: their library's habit stays.
OF_APPLICATIONS = ("app/serializers/", "app/chunks/", "app/kafka/configured_batches.py")
CLIENTS = {AIOKafkaConsumer.__name__, AIOKafkaProducer.__name__, AIOKafkaAdminClient.__name__}


class Connection:
    """One that keeps what is sent by it, as a broker with these versions of the request gets it."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def send(self, request: Any, expect_response: bool = True) -> None:  # noqa: FBT001, FBT002  # as aiokafka's
        self.sent.append(request.prepare({MetadataRequest.API_KEY: (0, 12)}))


@pytest.mark.parametrize("make", [AIOKafkaConsumer, AIOKafkaProducer, AdminClient])
async def test_no_request_creates_a_topic(make: Any) -> None:
    """Whatever the client asks for by name, a topic that does not exist stays so."""
    made, connection = make(), Connection()
    client: AIOKafkaClient = made.client if make is AIOKafkaProducer else made._client

    async def connect(_: int) -> Connection:
        return connection

    client._get_conn = connect
    create_no_topics(made)
    reached = await client._get_conn(1)
    await reached.send(MetadataRequest(["deleted"]))
    await (made.close() if make is AdminClient else made.stop())
    (request,) = connection.sent
    assert (request.topics, request.allow_auto_topic_creation) == (["deleted"], False)


def test_each_client_of_ours_is_made_so() -> None:
    """Where one is made, it goes to `create_no_topics` in the same function."""
    missing = []
    for path in (path for folder in ("app", "jobs") for path in (ROOT / folder).rglob("*.py")):
        place = str(path.relative_to(ROOT))
        if place.startswith(OF_APPLICATIONS):
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                called = {getattr(each.func, "id", "") for each in ast.walk(function) if isinstance(each, ast.Call)}
                if called & CLIENTS and create_no_topics.__name__ not in called:
                    missing.append(f"{place}: {function.name}")
    assert missing == []
