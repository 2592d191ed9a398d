"""The source of small records: what they are, and a topic that has them in batches of a given kind."""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from aiokafka.partitioner import DefaultPartitioner
from confluent_kafka import KafkaError, Message, Producer

from benchmarks.digests import Digester, Digests, Header

VALUE_BYTES = 1024
_FILLER_BYTES = 6 * 2**20
_DRAWN_BYTES = 320  # of a value; the rest says the same in each
_FULL_MS = 2_000  # so long a batch waits to become full; only the last one does
_STATISTICS_MS = 100
_ROOM = 500_000
_FLUSH_S = 120.0
_POLL_EVERY = 1_000

Keyed = tuple[bytes, bytes, list[Header]]


@dataclass(frozen=True, slots=True)
class Batches:
    """The kind of the batches.

    Attributes:
        size: the most bytes of a batch, before it is compressed.
        codec: "none", "zstd" or "lz4".
    """

    size: int
    codec: str


def records(count: int) -> Iterator[Keyed]:
    """Keys, values and headers, the same ones each time: one header each, values of JSON of 1 KB.

    A batch of them compresses to about a third, as JSON does: what is drawn repeats only after 26,000 records.
    """
    filler = base64.b64encode(random.Random(0).randbytes(_FILLER_BYTES)).decode()  # noqa: S311  # the same each time
    spans = len(filler) // _DRAWN_BYTES
    for number in range(count):
        at = number % spans * _DRAWN_BYTES
        drawn = filler[at : at + _DRAWN_BYTES]
        text = (
            f'{{"order":{number},"customer":{{"id":"{drawn[:24]}","name":"{drawn[24:48]}","country":"DE",'
            f'"language":"de","newsletter":false,"verified":true}},"currency":"EUR","channel":"web","status":"confirmed",'
            f'"items":[{{"article":"{drawn[48:72]}","description":"{drawn[72:128]}","quantity":1,"price":"19.90",'
            f'"discount":null,"tax":"0.19"}},{{"article":"{drawn[128:152]}","description":"{drawn[152:208]}","quantity":2,'
            f'"price":"4.50","discount":null,"tax":"0.19"}}],"shipping":{{"method":"parcel","street":"{drawn[208:240]}",'
            f'"city":"{drawn[240:264]}","postcode":"10115","country":"DE","instructions":null}},"payment":{{"method":'
            f'"invoice","reference":"{drawn[264:300]}","paid":false}},"note":"{drawn[300:]}'
        )
        value = f'{text}{" " * (VALUE_BYTES - 2 - len(text))}"}}'.encode()
        yield f"key-{number:07d}".encode(), value, [("trace-id", b"%016x" % number)]


def fill(bootstrap: str, topic: str, partitions: int, count: int, batches: Batches) -> tuple[Digests, float]:
    """Writes `count` records, each to the partition that its key decides, in batches that are full.

    Returns:
        What `benchmarks.digests.read` finds in a topic that has the same records, and how many records a batch has on
        average.

    Raises:
        RuntimeError: the broker refused a record, or took too long.
    """
    digester, partition_of, numbers = Digester(), DefaultPartitioner(), list(range(partitions))
    failed: list[KafkaError] = []
    sent = [0, 0]  # records and batches

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    def statistics(text: str) -> None:
        window = json.loads(text)["topics"].get(topic, {}).get("batchcnt", {})
        sent[0] += window.get("sum", 0)
        sent[1] += window.get("cnt", 0)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": batches.codec,
            "batch.size": batches.size,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": max(1_000_000, batches.size),
            "linger.ms": _FULL_MS,
            "queue.buffering.max.messages": _ROOM,
            "statistics.interval.ms": _STATISTICS_MS,
            "stats_cb": statistics,
            "delivery.report.only.error": True,
            "log_level": 3,  # errors; a new broker's coordinator may still be loading
            "on_delivery": delivered,
        }
    )
    for number, (key, value, headers) in enumerate(records(count)):
        partition = partition_of(key, numbers, numbers)
        digester.add(partition, key, value, headers)
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=[*headers])
                break
            except BufferError:
                producer.poll(0.05)
        if number % _POLL_EVERY == 0:
            producer.poll(0)
    left = producer.flush(_FLUSH_S)
    deadline = time.monotonic() + _FULL_MS / 1000
    while sent[0] < count and time.monotonic() < deadline:  # the last window of the statistics
        producer.poll(_STATISTICS_MS / 1000)
    if failed or left:
        raise RuntimeError(f"{topic} could not be filled: {failed[0] if failed else f'{left:,} records are left'}")
    return digester.result(), sent[0] / max(sent[1], 1)
