"""kafka-python's clients with serializers that see headers, and that may call a store.

Both have all methods of kafka-python's own clients. One configuration with Kafka's names configures the client,
its serializers and their store.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from kafka import KafkaProducer

from app.chunks.destinations import ESTIMATE_BYTES
from app.kafka.arguments import Arguments
from app.kafka.topics import topic_of
from app.serializers.kafka_python_callbacks import Tokens
from app.serializers.kafka_python_reads import DeserializingConsumer
from app.serializers.kafka_python_writes import WritingProducer
from app.serializers.strategy import Outgoing, byte_count

__all__ = ["DeserializingConsumer", "SerializingProducer"]


_PRODUCER = Arguments(KafkaProducer.DEFAULT_CONFIG, tokens=Tokens).without("serializer")
_RENAMED = {
    "sasl.plain.username": "sasl.username",
    "sasl.plain.password": "sasl.password",
    "ssl.cafile": "ssl.ca.location",
    "ssl.certfile": "ssl.certificate.location",
    "ssl.keyfile": "ssl.key.location",
    "ssl.password": "ssl.key.password",
}


class SerializingProducer(WritingProducer):
    """A `KafkaProducer` that serializes keys and values, for values of any size.

    `large.message.strategy` determines what happens to a value over `large.message.threshold.bytes`, or whose record
    exceeds the topic's `max.message.bytes`. The producer looks up that limit before the first record of more than
    1,024 bytes, and again when the topic has refused one:

        offload   the default: it is stored. Needs a `LargeMessageSerializer`
        chunk     it is sent as chunks, only if the topic would refuse it
        auto      it is stored; while the store is down, it is sent as chunks

    All chunks are sent to one partition, in order; after one that failed, none is sent. With `chunk` and `auto`,
    `enable.idempotence` is true by default, as it is in kafka-python.

    Args:
        config: properties with Kafka's names: the arguments of `KafkaProducer` with dots, `large.message.strategy`,
            `chunk.max.bytes`, `chunk.max.message.bytes`, and those of the serializers and their store.
        options: arguments in place of properties, for values that are not strings: `ssl_context`, `partitioner`.

    Raises:
        ConfigurationError: a property is unknown, missing or wrong, or the strategy does not fit the serializers.
    """

    def __init__(self, config: Mapping[str, object], **options: object) -> None:
        whole = _PRODUCER.merged(config, options)
        # The serializers must know the limit, as they offload what kafka-python would refuse.
        limit = byte_count(whole, "max.request.size", _PRODUCER.defaults["max_request_size"])
        whole.setdefault("max.request.size", limit)
        ask = partial(topic_of, _cluster(whole))
        outgoing = Outgoing(whole, _PRODUCER.keys(), limit - ESTIMATE_BYTES, ask=ask)
        with outgoing.serializers.closed_on_error():
            super().__init__(outgoing, **_PRODUCER.read(outgoing.serializers.client))


def _cluster(config: Mapping[str, object]) -> Mapping[str, object]:
    """The connection with Kafka's names, where kafka-python has others."""
    found = {**config, **{name: config[own] for own, name in _RENAMED.items() if own in config}}
    servers: Any = found.get("bootstrap.servers", KafkaProducer.DEFAULT_CONFIG["bootstrap_servers"])
    return {**found, "bootstrap.servers": servers if isinstance(servers, str) else ",".join(servers or ())}
