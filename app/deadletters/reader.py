"""Reading letters: records of a dead-letter topic become letters again, whether they are whole, stored or chunks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from app.config.reference_scope import ReferenceScope
from app.kafka.topic_reader import TopicRecord
from stores.payload import download
from stores.registry import STORE_CLASS
from stores.store import PayloadStore, Store
from transforms.assembly import Assembled, Assembler, Discarded, Limits
from transforms.chunk import Chunk
from transforms.errors import (
    ConfigurationError,
    DiscardedChunkError,
    MalformedChunkError,
    PayloadStoreError,
    TransformError,
)
from transforms.inflate import Inflate
from transforms.letter import Letter, context_of, is_bare, is_letter_chunk, is_letter_reference, open_letter, replays_of
from transforms.record import Record, RecordLike
from transforms.reference import Reference
from transforms.signing import Signing

__all__ = ["Found", "LetterReader", "Summary"]

_PENDING = 10_000  # letters of other pipelines may lie between the chunks of one


@dataclass(frozen=True, slots=True)
class Found:
    """A letter as it stands in the topic.

    Attributes:
        partition: of the dead-letter topic.
        offsets: of its records there, in order; a chunked letter has several.
        record: put together from its chunks.
        timestamp: that of the topic.
        error: why it cannot be put together; None where it is.
    """

    partition: int
    offsets: tuple[int, ...]
    record: RecordLike
    timestamp: int
    error: TransformError | None = None

    @property
    def offset(self) -> int:
        """The place of the letter: that of its first record."""
        return self.offsets[0]


@dataclass(frozen=True, slots=True)
class Summary:
    """What is told of a letter.

    Attributes:
        letter: without its value where that is in the store; None where it cannot be read.
        form: `whole`, `store` or `chunks`: where its value is.
        size: bytes of the value; of a letter that is stored as one, of the letter; None for a null.
        error: what is in the way of reading it; None where nothing is.
    """

    letter: Letter | None
    form: str
    size: int | None
    error: str | None = None


class LetterReader:
    """Puts letters together, and fetches them.

    Args:
        store: of the pipeline; None where it has none.
        max_bytes: the largest letter that is read.
        signing: says which references are genuine; None where all are taken.
        topics: below whose names the store has payloads of letters: that of the letters.
    """

    # State that changes: `_assembler`. One caller at a time of `add` and `rest`; the others may be called by threads.

    def __init__(
        self,
        store: PayloadStore | None,
        max_bytes: int,
        signing: Signing | None = None,
        *,
        topics: Collection[str] = (),
    ) -> None:
        self._store = store
        self._inflate = Inflate(max_bytes, signing=signing)
        # Whoever writes letters may not have payloads of other topics copied to a source, whatever inflate may read.
        self._reach = ReferenceScope(store.root, frozenset(topics)) if isinstance(store, Store) else None
        limits = Limits(messages=_PENDING, pending_bytes=2 * max_bytes, message_bytes=max_bytes, expire_ms=0)
        self._assembler = Assembler(limits)
        self._incomplete: dict[tuple[int, str], list[TopicRecord]] = {}

    @property
    def pending(self) -> int:
        """Letters of which chunks are missing."""
        return len(self._incomplete)

    @property
    def duplicates(self) -> int:
        """Chunks so far that were there already: their writer began again in the middle."""
        return self._assembler.counts.duplicates

    def add(self, record: TopicRecord) -> Iterator[Found]:
        """Takes the next record of a partition, in the order of offsets; gives the letters that are complete now."""
        if not is_letter_chunk(record):
            yield Found(record.partition, (record.offset,), record, record.timestamp)
            return
        duplicates = self.duplicates
        events = self._assembler.add(record.partition, record, 0)
        uuid = _uuid(record)
        if uuid is not None and duplicates == self.duplicates:
            self._incomplete.setdefault((record.partition, uuid), []).append(record)
        for event in events:
            if isinstance(event, Assembled):
                assert uuid is not None, "it is whole"
                chunks = self._incomplete.pop((record.partition, uuid))
                yield Found(record.partition, _offsets(chunks), event.record, record.timestamp)
            else:
                yield self._discarded(event)

    def _discarded(self, event: Discarded) -> Found:
        chunks = cast("Sequence[TopicRecord]", event.records)
        self._incomplete.pop((chunks[0].partition, event.uuid or ""), None)
        error = DiscardedChunkError(event.uuid, event.reason, event.detail)
        return Found(chunks[0].partition, _offsets(chunks), chunks[0], chunks[0].timestamp, error)

    def rest(self) -> Iterator[Found]:
        """The letters of which chunks are missing at the end of what was read."""
        for (partition, uuid), chunks in self._incomplete.items():
            error = DiscardedChunkError(uuid, "expired", "its other chunks are not in what was read")
            yield Found(partition, _offsets(chunks), chunks[0], chunks[0].timestamp, error)

    def open(self, found: Found) -> Letter:
        """The letter, its value fetched from the store where it is there. Blocks.

        Raises:
            TransformError: it cannot be read.
            PayloadStoreError: the store; `retriable` says whether to try again. Or the payload is none of a letter's.
            ConfigurationError: it is in a store, and the pipeline has none.
        """
        if found.error is not None:
            raise found.error
        record = found.record
        if is_letter_reference(record):
            if self._store is None:
                raise ConfigurationError(STORE_CLASS, "is missing, and the letter is in a store")
            inflation = self._inflate.begin(record)
            if self._reach is not None:
                self._reach.check_letter(inflation.reference.path)
            record = self._inflate.finish(record, inflation, download(self._store, inflation.reference, self._inflate))
        return open_letter(record)

    def look(self, found: Found) -> Summary:
        """What can be told of the letter; the store is asked only where nothing else says what is wrong. Blocks."""
        record = found.record
        form = "whole" if len(found.offsets) == 1 and not is_letter_chunk(record) else "chunks"
        size = None if record.value is None else len(record.value)
        if is_letter_reference(record):
            form = "store"
        try:
            if form == "store":
                reference, headers = Reference.parse(record)
                size = reference.size
                own, context = context_of(headers[:-1])  # behind them is the mark
                if context and not is_bare(headers[-1]):
                    bare = Record(record.key, None, own, record.timestamp)
                    return Summary(Letter(bare, context, replays_of(own)), form, size)
            letter = self.open(found)
        except (TransformError, PayloadStoreError, ConfigurationError) as exc:
            return Summary(None, form, size, str(exc))
        return Summary(letter, form, None if letter.record.value is None else len(letter.record.value))


def _offsets(chunks: Sequence[TopicRecord]) -> tuple[int, ...]:
    return tuple(chunk.offset for chunk in chunks)


def _uuid(record: TopicRecord) -> str | None:
    try:
        return Chunk.parse(record)[0].uuid
    except MalformedChunkError:
        return None
