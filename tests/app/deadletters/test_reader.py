"""Letters of which chunks are missing, in a topic of several partitions; no broker, and no store."""

from __future__ import annotations

from collections.abc import Sequence

from app.deadletters.reader import FoundLetter, LetterReader
from app.kafka.source_batch import ReadRecord
from transforms.chunk import Chunking
from transforms.record import Record


def begun(partition: int) -> Sequence[ReadRecord]:
    """The first chunks of a letter, at the end of a partition; the last one is missing."""
    letter = Record(b"k", b"v" * 3_000, (), 1)
    chunks = list(Chunking(1_000).split(letter, f"letter-{partition}"))[:-1]
    return [
        ReadRecord("dead", partition, offset, 1, each.key, each.value, tuple(each.headers))
        for offset, each in enumerate(chunks)
    ]


def read(reader: LetterReader, partition: int) -> list[FoundLetter]:
    """What is found in a partition, as `dlq list` reads it: its records, and then what lacks chunks."""
    found = [letter for record in begun(partition) for letter in reader.add(record)]
    return [*found, *reader.incomplete()]


def test_a_letter_that_lacks_chunks_is_told_once() -> None:
    """At the end of a partition its incomplete letters are told, and not again at the end of the next one."""
    reader = LetterReader(None, 1_000_000)
    assert [[letter.partition for letter in read(reader, number)] for number in range(3)] == [[0], [1], [2]]
    assert reader.pending == 0
    assert list(reader.incomplete()) == []


def test_a_letter_that_was_told_takes_no_room() -> None:
    """Its chunks leave the memory, so that they evict none of another partition, nor are evicted and told again."""
    reader = LetterReader(None, 10_000)  # room for the chunks of two letters
    errors = [(letter.partition, str(letter.error)) for number in range(5) for letter in read(reader, number)]
    assert [partition for partition, _ in errors] == [0, 1, 2, 3, 4]
    assert all("its other chunks are not in what was read" in error for _, error in errors)
