"""What a topic has, as numbers that two topics can be compared by. librdkafka reads it: the worker does not."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

Digests = dict[int, tuple[int, str]]
"""Of each partition that has records: how many, and a SHA-256 over all keys, values and headers in their order."""

Header = tuple[str, bytes]

_LENGTHS = struct.Struct(">iii")
_FETCH_BYTES = 8 * 2**20
_QUEUE_KIB = 64 * 2**10
_SILENCE_S = 30.0


class Digester:
    """Takes the records of a topic, those of a partition in their order."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._hashes: dict[int, hashlib._Hash] = {}

    def add(self, partition: int, key: bytes, value: bytes, headers: Iterable[Header] = ()) -> None:
        """One more record."""
        self._counts[partition] = self._counts.get(partition, 0) + 1
        digest = self._hashes.setdefault(partition, hashlib.sha256())
        parts = [part for name, data in headers for part in (name.encode(), b"\0", data, b"\0")]
        digest.update(b"".join((_LENGTHS.pack(len(key), len(value), len(parts)), key, value, *parts)))

    def result(self) -> Digests:
        """What was taken so far."""
        return {number: (self._counts[number], digest.hexdigest()) for number, digest in sorted(self._hashes.items())}


def read(bootstrap: str, topic: str, partitions: int) -> Digests:
    """Reads every committed record of a topic.

    Raises:
        KafkaException: a partition cannot be read, or nothing came for half a minute.
    """
    digester, left = Digester(), set(range(partitions))
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench-digests",  # it has to be set; no member joins, and nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.message.max.bytes": _FETCH_BYTES,
            "queued.max.messages.kbytes": _QUEUE_KIB,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
        while left:
            message = consumer.poll(_SILENCE_S)
            if message is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic}: no record in {_SILENCE_S:g} s"))  # noqa: SLF001  # that is its public name
            partition, error = message.partition(), message.error()
            assert partition is not None
            if error is None:
                digester.add(partition, message.key() or b"", message.value() or b"", _headers(message.headers()))
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # likewise
                left.discard(partition)
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
    return digester.result()


def _headers(found: object) -> list[Header]:
    assert found is None or isinstance(found, list)
    return found or []
