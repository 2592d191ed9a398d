"""aiokafka with chunks: a large value passes through a topic with a lower limit, without a worker or a store.

Needs a topic:

    export KAFKA_BOOTSTRAP_SERVERS=localhost:9092
    python docs/examples/chunks_client.py scans
"""

import asyncio
import os
import sys

from wideload.chunks import AssembledRecord, AssemblingConsumer, ChunkingProducer, Discarded

COMMON = {"bootstrap.servers": os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "localhost:9092")}
CONSUMER = {
    **COMMON,
    "group.id": "chunks-example",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "expire.time.of.incomplete.chunked.message.ms": 60_000,
}


def lost(discarded: Discarded) -> None:
    """A producer stopped midway, or a record is malformed; an application might keep `discarded.records`."""
    print(f"not a message: {discarded.reason}, {discarded.detail}")


async def main(topic: str) -> None:
    """Sends 5 MB, reads until they arrive, and seeks back to them."""
    scan = os.urandom(5_000_000)
    async with ChunkingProducer(COMMON) as producer:
        sent = await producer.send_and_wait(topic, scan, key=b"scan", headers=[("kind", b"x-ray")])
    print(f"sent as {sent.chunk_message_id}")
    async with AssemblingConsumer(CONSUMER, topic, on_discarded=lost) as consumer:
        async for record in consumer:
            await consumer.commit()
            if isinstance(record, AssembledRecord) and record.value == scan:
                print(f"read as {record.chunk_message_id}, {len(record.value):,} bytes, {dict(record.headers)}")
                break
        consumer.seek(sent.topic_partition, sent.chunk_message_id)
        again = await consumer.getone()
        print("and again" if again.value == scan else "something else")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
