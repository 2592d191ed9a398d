"""The reader of dead letters: it makes them from the records of a topic, also from chunks and references."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from app.config.reference_scope import ReferenceScope
from app.kafka.source_batch import UnreadBatch
from stores.payload import download
from stores.registry import STORE_CLASS
from stores.store import PayloadStore, Store
from transforms.chunk import Chunk
from transforms.chunked_message import Assembled, Discarded, Limits
from transforms.errors import (
    DiscardedChunkError,
    MalformedChunkError,
    PayloadStoreError,
    TransformError,
    shown,
)
from transforms.inflate import Inflate
from transforms.keyring import Keyring
from transforms.letter import (
    Letter,
    batch_letter,
    context_of,
    is_bare,
    is_letter_chunk,
    is_letter_reference,
    open_letter,
    replays_of,
)
from transforms.reassembly import Reassembly
from transforms.record import Record, RecordLike, SourceRecord
from transforms.reference import Reference
from transforms.signing import Signing

_PENDING = 10_000  # dead letters of other pipelines may stand between the chunks of one


@dataclass(frozen=True, slots=True)
class FoundLetter:
    """A dead letter in the dead-letter topic, not opened yet.

    Attributes:
        partition: of the dead-letter topic.
        offsets: of its records, in order; a chunked dead letter has several. Of records that are not read, the first
            and the last.
        record: the record of the dead letter, assembled if it was chunked; the first chunk if it cannot be assembled.
        timestamp: of the last record.
        error: why it cannot be assembled; None if nothing is wrong.
    """

    partition: int
    offsets: tuple[int, ...]
    record: RecordLike
    timestamp: int
    error: TransformError | None = None

    @property
    def offset(self) -> int:
        """The offset of its first record."""
        return self.offsets[0]

    @property
    def spans(self) -> Sequence[range]:
        """All its offsets, in ranges: those of records that are not read may be hundreds of millions."""
        if isinstance(self.record, UnreadBatch):
            return (range(self.record.first, self.record.offset + 1),)
        return [range(offset, offset + 1) for offset in self.offsets]


@dataclass(frozen=True, slots=True)
class LetterSummary:
    """What `dlq list` shows of a dead letter.

    Attributes:
        letter: without its value if that is in the store; None if it cannot be read.
        form: `whole`, `store` or `chunks`: where its value is.
        size: bytes of the value, or of the dead letter if that is stored whole; None for a null.
        error: why it cannot be read; None if it can.
    """

    letter: Letter | None
    form: str
    size: int | None
    error: str | None = None


class LetterReader:
    """Assembles dead letters from chunks, and downloads them from the store.

    Args:
        store: of the pipeline; None if it has none.
        max_bytes: the largest dead letter that is read.
        signing: the keys of signed references; None if references need no signature.
        keyring: opens encrypted payloads; None if there is no key.
        topics: the topics whose payloads dead letters may refer to.
    """

    # State that changes: `_reassembly` and `_incomplete`. One caller at a time of `add` and `incomplete`; the other
    # methods may be called by threads.

    def __init__(
        self,
        store: PayloadStore | None,
        max_bytes: int,
        signing: Signing | None = None,
        *,
        keyring: Keyring | None = None,
        topics: Collection[str] = (),
    ) -> None:
        self.max_bytes = max_bytes
        self._keyring = keyring
        self._store = store
        self._inflate = Inflate(max_bytes, signing=signing)
        # A forged dead letter must not copy payloads of other topics to a source, even if inflate may read these.
        self._scope = ReferenceScope(store.root, frozenset(topics)) if isinstance(store, Store) else None
        limits = Limits(messages=_PENDING, pending_bytes=2 * max_bytes, message_bytes=max_bytes, expire_ms=0)
        self._reassembly = Reassembly(limits)
        self._incomplete: dict[tuple[int, str], list[SourceRecord]] = {}

    @property
    def pending(self) -> int:
        """How many dead letters lack chunks."""
        return len(self._incomplete)

    @property
    def duplicates(self) -> int:
        """How many chunks have come twice: their writer restarted after an error."""
        return self._reassembly.counts.duplicates

    def add(self, record: SourceRecord) -> Iterator[FoundLetter]:
        """Adds the next record of a partition, in the order of offsets; yields the dead letters complete now.

        Records that are not read are one dead letter.
        """
        if isinstance(record, UnreadBatch):
            offsets = (record.offset,) if record.first == record.offset else (record.first, record.offset)
            yield FoundLetter(record.partition, offsets, record, record.timestamp, record.error)
            return
        if not is_letter_chunk(record):
            yield FoundLetter(record.partition, (record.offset,), record, record.timestamp)
            return
        duplicates = self.duplicates
        events = self._reassembly.receive(record.partition, record)
        uuid = _uuid(record)
        if uuid is not None and duplicates == self.duplicates:
            self._incomplete.setdefault((record.partition, uuid), []).append(record)
        for event in events:
            if isinstance(event, Assembled):
                assert uuid is not None, "it is complete"
                chunks = self._incomplete.pop((record.partition, uuid))
                yield FoundLetter(record.partition, _offsets(chunks), event.record, record.timestamp)
            elif isinstance(event, Discarded):
                yield self._discarded(event)

    def _discarded(self, event: Discarded) -> FoundLetter:
        chunks = cast("Sequence[SourceRecord]", event.records)
        self._incomplete.pop((chunks[0].partition, event.uuid or ""), None)
        error = DiscardedChunkError(event.uuid, event.reason, event.detail)
        return FoundLetter(chunks[0].partition, _offsets(chunks), chunks[0], chunks[0].timestamp, error)

    def incomplete(self) -> Iterator[FoundLetter]:
        """The dead letters that lack chunks after the last record was added. They are returned once, and forgotten."""
        letters, self._incomplete = self._incomplete, {}
        for partition in {partition for partition, _ in letters}:
            self._reassembly.clear(partition)
        for (partition, uuid), chunks in letters.items():
            error = DiscardedChunkError(uuid, "expired", "its other chunks are not in what was read")
            yield FoundLetter(partition, _offsets(chunks), chunks[0], chunks[0].timestamp, error)

    def open(self, found: FoundLetter) -> Letter:
        """The dead letter, with its value downloaded if it is in the store. Blocks.

        Raises:
            TransformError: it cannot be read.
            PayloadStoreError: the store failed, or the reference is to a payload of another topic; or the dead letter
                is in a store, and the pipeline has none, or one that cannot verify whose payload a path leads to.
        """
        if found.error is not None:
            raise found.error
        record = found.record
        if is_letter_reference(record):
            if self._store is None:
                raise PayloadStoreError(f"{STORE_CLASS} is missing, and the dead-letter record is in a store")
            inflation = self._inflate.begin(record)
            if self._scope is None:
                raise PayloadStoreError(
                    f"reference {shown(inflation.reference.path)} is refused: it must lead to a payload of a "
                    f"dead-letter record, and the class of {STORE_CLASS} cannot verify that"
                )
            self._scope.check_letter(inflation.reference.path)
            record = self._inflate.finish(
                record, inflation, download(self._store, inflation.reference, self._inflate, self._keyring)
            )
        return open_letter(record)

    def summarize(self, found: FoundLetter) -> LetterSummary:
        """The summary of the dead letter. Downloads the payload only if the context is not in the headers. Blocks."""
        record = found.record
        form = "chunks" if is_letter_chunk(record) or len(found.spans) > 1 else "whole"
        size = None if record.value is None else len(record.value)
        if is_letter_reference(record):
            form = "store"
        try:
            if form == "store":
                reference, headers = Reference.parse(record)
                size = reference.size
                own, context = context_of(headers[:-1])  # the last one is the mark
                if context and not is_bare(headers[-1]):
                    valueless = Record(record.key, None, own, record.timestamp)
                    return LetterSummary(Letter(valueless, context, replays_of(own)), form, size)
            letter = self.open(found)
        except (TransformError, PayloadStoreError) as exc:
            return LetterSummary(batch_letter(record), form, size, str(exc))
        return LetterSummary(letter, form, None if letter.record.value is None else len(letter.record.value))


def _offsets(chunks: Sequence[SourceRecord]) -> tuple[int, ...]:
    return tuple(chunk.offset for chunk in chunks)


def _uuid(record: SourceRecord) -> str | None:
    try:
        return Chunk.parse(record)[0].uuid
    except MalformedChunkError:
        return None
