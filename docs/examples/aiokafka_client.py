"""aiokafka: a large value is sent and read back; a record whose payload is gone is skipped.

Needs a topic and a bucket:

    export KAFKA_BOOTSTRAP_SERVERS=localhost:9092 S3_BUCKET=payloads
    export AWS_ENDPOINT_URL=http://127.0.0.1:7070 AWS_ACCESS_KEY_ID=me AWS_SECRET_ACCESS_KEY=a-long-password
    python docs/examples/aiokafka_client.py orders
"""

import asyncio
import json
import os
import sys

from aiokafka import ConsumerRecord, TopicPartition

from wideload.serializers import (
    LargeMessageDeserializer,
    LargeMessageSerializer,
    PayloadNotFoundError,
    RecordDeserializationError,
)
from wideload.serializers.aiokafka import DeserializingConsumer, SerializingProducer

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
    "group.id": "aiokafka-example",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "value.deserializers": [LargeMessageDeserializer, json.loads],
}


async def read(consumer: DeserializingConsumer) -> ConsumerRecord:
    """The next record that can be restored."""
    while True:
        try:
            return await consumer.getone()
        except RecordDeserializationError as error:
            if isinstance(error.__cause__, PayloadNotFoundError):  # its TTL is over: skip the record
                print(error)
                consumer.seek(TopicPartition(error.topic, error.partition), error.offset + 1)
            elif error.retriable:  # the store is down: the position stays, so the same record comes again
                await asyncio.sleep(1)
            else:
                raise


async def main(topic: str) -> None:
    """Sends 5 MB, and reads until they arrive."""
    order = {"id": os.getpid(), "scan": "x" * 5_000_000}
    async with SerializingProducer(PRODUCER) as producer:
        await producer.send_and_wait(topic, order, key=b"order")
    async with DeserializingConsumer(CONSUMER, topic) as consumer:
        while True:
            record = await read(consumer)
            await consumer.commit()
            print(f"offset {record.offset}: order {record.value['id']}, {len(record.value['scan']):,} characters")
            if record.value == order:
                return


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
