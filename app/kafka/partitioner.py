"""The partitioner of Java's clients, which chooses the partition of a record by its key."""

from __future__ import annotations

from aiokafka.partitioner import murmur2

__all__ = ["partition_of"]


def partition_of(key: bytes, partitions: int) -> int:
    """The partition, of so many, in which records with this key are."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions
