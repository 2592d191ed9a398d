"""Moves records with librdkafka's Python client, as a careful user would: in lists, with large batches.

python librdkafka_loop.py BOOTSTRAP SOURCE SINK COUNT BATCH_BYTES CODEC
"""

from __future__ import annotations

import signal
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

_READ = 1_000  # records at a time
_WAIT_S = 0.05
_COMMIT_S = 5.0
_ROOM_KIB = 65_536


def move(bootstrap: str, source: str, sink: str, count: int, batch_bytes: int, codec: str) -> None:
    """Moves `count` records, partition to partition, and waits for SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda _, __: ended.set())
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{sink}-librdkafka",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": codec,
            "batch.size": batch_bytes,
            "linger.ms": 5,
            "queue.buffering.max.kbytes": _ROOM_KIB,
            "delivery.report.only.error": True,  # a callback for each record would be half of the CPU
            "on_delivery": delivered,
        }
    )
    consumer.subscribe([source])
    moved, committed = 0, time.monotonic()
    while moved < count:
        messages = consumer.consume(_READ, _WAIT_S)
        for message in messages:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            _send(producer, sink, message)
        moved += len(messages)
        producer.poll(0)
        if moved >= count or time.monotonic() - committed >= _COMMIT_S:
            producer.flush()
            if failed:
                raise KafkaException(failed[0])
            consumer.commit(asynchronous=False)
            committed = time.monotonic()
    ended.wait()
    consumer.close()


def _send(producer: Producer, sink: str, message: Message) -> None:
    while True:
        try:
            producer.produce(
                sink,
                message.value(),
                message.key(),
                message.partition() or 0,
                timestamp=message.timestamp()[1],
                headers=message.headers(),
            )
            return
        except BufferError:  # it holds as much as it may
            producer.poll(_WAIT_S)


if __name__ == "__main__":
    move(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
