"""Moves records with aiokafka, and values to S3 or from there with boto3 in threads, as a careful user would.

    python boto3_loop.py offload|inflate BOOTSTRAP SOURCE SINK COUNT ENDPOINT BUCKET THREADS

Credentials and region come in the environment, for command lines are public.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from botocore.config import Config

_UNLIMITED_BYTES = 2**31 - 1
_FETCH_BYTES = 16 * 2**20


def storing(
    endpoint: str, bucket: str, threads: int, session: boto3.session.Session | None = None
) -> tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]:
    """Puts a value and gives its path; gets the value of a path. Any thread may call them.

    Args:
        endpoint: of the server.
        bucket: where the values go.
        threads: that call them.
        session: has credentials and region; by default, the environment has them.
    """
    # Neither a signature nor a CRC over the value: both cost more than sending it.
    config = Config(
        max_pool_connections=threads,
        s3={"addressing_style": "path", "payload_signing_enabled": False},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        proxies={},
    )
    client = (session or boto3.session.Session()).client("s3", endpoint_url=endpoint, config=config)
    prefix = f"s3://{bucket}/"

    def put(value: bytes) -> bytes:
        key = f"boto3/{uuid.uuid4().hex}"
        client.put_object(Bucket=bucket, Key=key, Body=value)
        return f"{prefix}{key}".encode()

    def get(path: bytes) -> bytes:
        return client.get_object(Bucket=bucket, Key=path.decode().removeprefix(prefix))["Body"].read()

    return put, get


async def move(
    bootstrap: str, source: str, sink: str, count: int, work: Callable[[bytes], bytes], threads: int
) -> None:
    """Moves `count` records, partition to partition and in order, and waits for SIGTERM."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    consumer = AIOKafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=f"{sink}-boto3",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, max_request_size=_UNLIMITED_BYTES
    )
    waiting: deque[tuple[Any, asyncio.Future[bytes]]] = deque()

    async def send(limit: int) -> None:
        while len(waiting) > limit:
            record, worked = waiting.popleft()
            await producer.send(
                sink,
                await worked,
                record.key,
                partition=record.partition,
                timestamp_ms=record.timestamp,
                headers=list(record.headers),
            )

    with ThreadPoolExecutor(threads) as pool:
        async with consumer, producer:
            moved = 0
            while moved < count:
                for records in (await consumer.getmany(timeout_ms=1000, max_records=threads)).values():
                    for record in records:
                        waiting.append((record, loop.run_in_executor(pool, work, record.value)))
                        await send(2 * threads)
                    moved += len(records)
            await send(0)
            await producer.flush()
            await consumer.commit()
            await ended.wait()


def main(
    mode: str, bootstrap: str, source: str, sink: str, count: str, endpoint: str, bucket: str, threads: str
) -> None:
    """See the docstring of the module."""
    put, get = storing(endpoint, bucket, int(threads))
    asyncio.run(move(bootstrap, source, sink, int(count), put if mode == "offload" else get, int(threads)))


if __name__ == "__main__":
    main(*sys.argv[1:])
