"""The notes, keys and results of clients with chunks, without a broker."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import RecordMetadata

from app.chunks.keys import CONSUMER_KEYS, PRODUCER_KEYS, apart, limits
from app.chunks.producer import ChunkedRecordMetadata
from app.kafka.arguments import Arguments
from transforms.chunked_message import ChunkMessageId, Limits
from transforms.commit_metadata import Noted, note, noted
from transforms.errors import ConfigurationError


def test_note_is_read_back() -> None:
    """Also without the end that librdkafka cuts off; nothing else is taken for a note."""
    assert note(5, 5, ()) == ""
    assert noted(note(5, 9, ())) == noted(note(5, 9, ())[:-1]) == Noted(9)
    others = [None, "", "mine", "wideload:delivered=", "wideload:delivered=-1", note(0, 1, ("t",))[:-1] + ",", "torn=x"]
    assert [noted(text) for text in others] == [None] * len(others)


def test_keys_apart() -> None:
    """Our keys are read, strings as what they mean, the client's are left, and what nobody knows is refused."""
    client = Arguments({"client_id": "x"})
    given: dict[str, object] = {
        "client.id": "me",
        "max.pending.chunked.message": "7",
        "max.pending.chunked.bytes": "10",
        "chunk.max.message.bytes": 9,
        "expire.time.of.incomplete.chunked.message.ms": 8,
        "auto.ack.oldest.chunked.message.on.queue.full": "true",
    }
    values, rest = apart(CONSUMER_KEYS, client, given)
    assert (limits(values), rest) == (Limits(7, 10, 9, 8, drops_oldest=True), {"client.id": "me"})
    assert limits(apart(CONSUMER_KEYS, client, {})[0]) == Limits()
    with pytest.raises(ConfigurationError, match=r"did you mean max\.pending\.chunked\.bytes\?"):
        apart(CONSUMER_KEYS, client, {"max.pending.chunk.bytes": 1})
    with pytest.raises(ConfigurationError, match="allowed is 1 or more"):
        apart(PRODUCER_KEYS, client, {"chunk.max.bytes": 0})


def test_metadata_is_that_of_the_last_chunk() -> None:
    """The result is a `RecordMetadata`: the broker's time where it set one, else the producer's."""
    first = RecordMetadata("t", 0, TopicPartition("t", 0), 3, -1, 0, 0)
    last = RecordMetadata("t", 0, TopicPartition("t", 0), 9, -1, 0, 0)
    found = ChunkedRecordMetadata.of(first, last, 55)
    assert isinstance(found, RecordMetadata)
    assert (found.offset, found.timestamp, found.chunk_message_id) == (9, 55, ChunkMessageId(3, 9))
    stamped = last._replace(timestamp=77, timestamp_type=1)
    assert ChunkedRecordMetadata.of(first, stamped, 55).timestamp == 77
