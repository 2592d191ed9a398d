"""Topics as brokers describe them to aiokafka, with their ids; and clients of which no request creates a topic.

By default brokers create a topic that somebody asks for by name (`auto.create.topics.enable`), and aiokafka asks by
name whenever its metadata is old. A topic that a user misspelt, or deleted while a task reads it, shall not come to be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiokafka.errors as kafka_errors
from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

__all__ = ["Described", "client_of", "creating_nothing", "described"]

_NO_ID = (0, 0)
_TEXT = CompactString("utf-8")


@dataclass(frozen=True, slots=True)
class Described:
    """A topic.

    Attributes:
        partitions: their numbers; none if there is an error.
        id: a topic that is deleted and created again has another; None from brokers before Kafka 2.8.
        error: why it is not described; None if it is.
    """

    partitions: Sequence[int]
    id: str | None
    error: type[kafka_errors.KafkaError] | None


def client_of(consumer: AIOKafkaConsumer) -> AIOKafkaClient:
    """The client behind a consumer."""
    return consumer._client  # noqa: SLF001  # aiokafka has no public name for it


def creating_nothing(client: AIOKafkaClient) -> None:
    """Lets no request of a client, which has not been started, create a topic."""
    connect = client._get_conn  # noqa: SLF001  # each request goes through here, and none has an option for this

    async def connected(*place: Any, **options: Any) -> Any:
        connection = await connect(*place, **options)
        if connection is not None and "send" not in vars(connection):
            send = connection.send

            def sent(request: Any, *more: Any, **named: Any) -> Any:
                if isinstance(request, MetadataRequest):
                    request._allow_auto_topic_creation = False  # noqa: SLF001  # the client makes the request
                return send(request, *more, **named)

            connection.send = sent
        return connection

    client._get_conn = connected  # noqa: SLF001


async def described(client: AIOKafkaClient, topics: Sequence[str]) -> dict[str, Described]:
    """The topics by name, as a broker describes them now.

    Raises:
        aiokafka.errors.KafkaError: no broker answers.
    """
    answer = (await client.send(client.get_random_node(), _Describe(topics))).to_object()
    found = {}
    for topic in answer["topics"]:
        number = topic.get("id_high", 0), topic.get("id_low", 0)
        found[topic["topic"]] = Described(
            [] if topic["error_code"] else [each["partition"] for each in topic["partitions"]],
            None if number == _NO_ID else f"{number[0] % 2**64:016x}{number[1] % 2**64:016x}",
            kafka_errors.for_code(topic["error_code"]) if topic["error_code"] else None,
        )
    return found


def _rows(*fields: tuple[str, Any]) -> CompactArray:
    return CompactArray(*fields, ("tags", TaggedFields))


class _Answer(Response):  # type: ignore[misc]  # aiokafka tells no types
    """Metadata, version 10, as in Apache Kafka's `clients/src/main/resources/common/message`, up to the topics."""

    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", _rows(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT))),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            _rows(
                ("error_code", Int16),
                ("topic", _TEXT),
                ("id_high", Int64),
                ("id_low", Int64),
                ("is_internal", Boolean),
                (
                    "partitions",
                    _rows(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
    )


class _Request(RequestStruct):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(
        ("topics", _rows(("id_high", Int64), ("id_low", Int64), ("topic", _TEXT))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _Describe:
    """The request in the newest version that the broker knows, as `AIOKafkaClient.send` takes requests."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> RequestStruct:
        least, most = versions.get(_Request.API_KEY, (0, -1))
        if not least <= _Request.API_VERSION <= most:
            return MetadataRequest(list(self._topics), allow_auto_topic_creation=False).prepare(dict(versions))
        names: list[tuple[Any, ...]] = [(*_NO_ID, name, {}) for name in self._topics]
        return _Request(names, False, False, False, {})
