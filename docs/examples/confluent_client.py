"""confluent-kafka: a large value is sent and read back; a record whose payload is gone is skipped.

Needs a topic and a bucket:

    export KAFKA_BOOTSTRAP_SERVERS=localhost:9092 S3_BUCKET=payloads
    export AWS_ENDPOINT_URL=http://127.0.0.1:7070 AWS_ACCESS_KEY_ID=me AWS_SECRET_ACCESS_KEY=a-long-password
    python docs/examples/confluent_client.py orders
"""

import json
import os
import sys
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.error import ValueDeserializationError

from wideload.serializers import (
    LargeMessageDeserializer,
    LargeMessageSerializer,
    PayloadNotFoundError,
    RecordDeserializationError,
)
from wideload.serializers.confluent import DeserializingConsumer, SerializingProducer

COMMON = {
    "bootstrap.servers": os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "localhost:9092"),
    "large.message.payload.store.class": "s3",
    "s3.bucket": os.environ.get("S3_BUCKET", "payloads"),
}


def to_json(value: object) -> bytes:
    """The application's own serializer, before the large-message one."""
    return json.dumps(value).encode()


PRODUCER = {**COMMON, "acks": "all", "value.serializers": [to_json, LargeMessageSerializer]}
CONSUMER = {
    **COMMON,
    "group.id": "confluent-example",
    "auto.offset.reset": "earliest",
    # Otherwise librdkafka stores an offset before its record is deserialized, and a commit passes failed records.
    "enable.auto.offset.store": False,
    "value.deserializers": [LargeMessageDeserializer, json.loads],
}


def delivered(error: KafkaError | None, _: Message) -> None:
    """Raises an error for a record that Kafka rejects, which `flush` passes on; without it, the record is lost."""
    if error is not None:
        raise KafkaException(error)


def read(consumer: DeserializingConsumer) -> Message:
    """The next record that can be restored."""
    while True:
        try:
            message = consumer.poll(1.0)
        except ValueDeserializationError as error:
            failed = error.exception
            if not isinstance(failed, RecordDeserializationError):
                raise
            if isinstance(failed.__cause__, PayloadNotFoundError):  # its TTL is over: skip the record
                print(failed)
                consumer.store_offsets(offsets=[TopicPartition(failed.topic, failed.partition, failed.offset + 1)])
            elif failed.retriable:  # the store is down: read the record again
                time.sleep(1)
                consumer.seek(TopicPartition(failed.topic, failed.partition, failed.offset))
            else:
                raise
        else:
            if message is not None:
                return message


def main(topic: str) -> None:
    """Sends 5 MB, and reads until they arrive."""
    order = {"id": os.getpid(), "scan": "x" * 5_000_000}

    with SerializingProducer(PRODUCER) as producer:
        producer.produce(topic, key=b"order", value=order, on_delivery=delivered)
        producer.flush()

    with DeserializingConsumer(CONSUMER) as consumer:
        consumer.subscribe([topic])
        while True:
            message = read(consumer)
            value: Any = message.value()  # what json.loads has made; confluent-kafka's type of it is bytes
            consumer.store_offsets(message)
            print(f"offset {message.offset()}: order {value['id']}, {len(value['scan']):,} characters")
            if value == order:
                break


if __name__ == "__main__":
    main(sys.argv[1])
