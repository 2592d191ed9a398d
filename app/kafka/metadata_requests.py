"""Requests for metadata: those of our clients create no topic.

Brokers with `auto.create.topics.enable = true`, which is Kafka's default, create a topic that does not exist when a
client asks for it by name, unless the request forbids that (`allow_auto_topic_creation`, from Kafka 0.11 on). aiokafka
does not forbid it. So a client that still asks for a deleted topic would bring it back, with the brokers' default
number of partitions.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.metadata import MetadataRequest

from app.kafka.watched_client import Send, time_out_in_any_case, watch_sends

__all__ = ["create_no_topics"]

_Client = TypeVar("_Client", AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient)


def create_no_topics(client: _Client) -> _Client:
    """A client that has not been started; from now on, none of its requests for metadata creates a topic.

    Not for clients that an application configures: whether those create topics is for its user to say.
    """
    inner = client.client if isinstance(client, AIOKafkaProducer) else client._client
    time_out_in_any_case(inner)
    watch_sends(inner, _sent)
    return client


def _sent(_: object, request: Any, send: Send) -> Awaitable[Any]:
    if isinstance(request, MetadataRequest):
        request._allow_auto_topic_creation = False
    return send()
