"""The least that moves records with aiokafka: read a batch, send each record, flush and commit at the end.

python bare_loop.py BOOTSTRAP SOURCE SINK COUNT BATCH_BYTES [CODEC]
"""

from __future__ import annotations

import asyncio
import signal
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

_UNLIMITED_BYTES = 2**31 - 1


async def move(bootstrap: str, source: str, sink: str, count: int, batch_bytes: int, codec: str = "none") -> None:
    """Moves `count` records, partition to partition, and waits for SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    consumer = AIOKafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=f"{sink}-bare",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        max_batch_size=batch_bytes,
        max_request_size=_UNLIMITED_BYTES,
        compression_type=None if codec == "none" else codec,
    )
    async with consumer, producer:
        moved = 0
        while moved < count:
            for partition, records in (await consumer.getmany(timeout_ms=1000)).items():
                for record in records:
                    await producer.send(
                        sink,
                        record.value,
                        record.key,
                        partition=partition.partition,
                        timestamp_ms=record.timestamp,
                        headers=list(record.headers),
                    )
                moved += len(records)
        await producer.flush()
        await consumer.commit()
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(move(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), *sys.argv[6:]))
