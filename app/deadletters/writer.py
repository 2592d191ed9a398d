"""The writer of dead letters: it brings them, however large, into a form that their topic accepts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from app.config.settings import PipelineSettings
from app.kafka.source_batch import UnreadBatch
from app.kafka.topics import Topic
from stores.encryption import open_keyring
from stores.payload import publish
from stores.store import PayloadStore, Store
from transforms import record_format
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import Chunking, checksum
from transforms.errors import ChunkError, PayloadStoreError, RecordTooLargeError, TransformError
from transforms.letter import LEAST_BYTES, Cause, dead_letter, is_ambiguous, mark_of, may_refer, replays_of
from transforms.logger_name import logger_name
from transforms.offload import Offload
from transforms.record import Header, Record, SourceRecord
from transforms.reference import Encryption, Reference

log = logging.getLogger(logger_name(__name__))

_AVOID_S = 5.0  # how long dead letters are sent as chunks after the store has failed
_LONGEST_PATH = "p" * 1_024  # of S3's keys; if a store has longer paths, its dead letters are sent as chunks
_LONGEST_KEY_ID = "k" * 128  # an ARN has some 90 characters
_DATA_KEY_BYTES = 80 + 512  # with the token of AWS KMS, of some 200 bytes


class LetterWriter:
    """Makes the dead letters of a pipeline. Several threads may call its methods concurrently.

    Args:
        settings: of the pipeline.
        topic: the dead-letter topic.
        store: of the pipeline; None if it has none.
        clock: monotonic seconds.
    """

    # State that changes: `_avoid_until_s`. A thread may read an old value.

    def __init__(
        self,
        settings: PipelineSettings,
        topic: Topic,
        store: PayloadStore | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        self._settings = settings
        self._store = store
        self._by_digest = settings.store.get("large.message.id.generator", "sha256") == "sha256"
        self._keyring = open_keyring(settings.encryption, settings.store_timeout_ms)
        encrypts = self._keyring is not None and self._keyring.writes
        self._encryption = Encryption(_LONGEST_KEY_ID, bytes(12), bytes(_DATA_KEY_BYTES)) if encrypts else None
        self._clock = clock
        self._avoid_until_s = 0.0
        self._limit = topic.max_message_bytes
        self._offload = Offload(0, self._limit, settings.codec, signing=settings.signing)
        self._chunking = Chunking(self._limit)

    def whole(self, source: SourceRecord, cause: Cause) -> Record | None:
        """The whole dead letter; None if the topic would not accept it, or if no client can write it."""
        if isinstance(source, UnreadBatch) or not record_format.is_writable(source):
            return None
        context = cause.headers(source)
        letter = dead_letter(source, context)
        if not context and is_ambiguous(source):
            letter = _with_header(letter, mark_of("whole"))
        return letter if batch_of_one_bytes(letter) <= self._limit else None

    def any(self, source: SourceRecord, cause: Cause) -> Sequence[Record]:
        """The dead letter in the first form that the topic accepts. A large one may be stored, which blocks.

        Raises:
            RecordTooLargeError: the topic takes less than `LEAST_BYTES`.
        """
        letter = self.whole(source, cause)
        if letter is not None:
            return (letter,)
        unread = isinstance(source, UnreadBatch)
        own_value = source.value and not unread and record_format.is_writable(source)
        if own_value and not (is_ambiguous(source) or self._may_refer(source)):
            context = cause.headers(source)
            value = (_with_header(dead_letter(source, context), mark_of("value", context)),)
            letters = self._stored(value) or self._chunks(value, source)
            if letters:
                return letters
        records = _batches(source, cause) if unread else _records(source, cause)
        for record in records:
            if batch_of_one_bytes(record) <= self._limit:
                return (record,)
        letters = self._stored(records) or self._chunks(records, source)
        if not letters:
            raise RecordTooLargeError(self.topic.name, LEAST_BYTES, self._limit)
        return letters

    def _may_refer(self, source: SourceRecord) -> bool:
        return may_refer(source, self._settings.reference_format)

    def _stored(self, forms: Sequence[Record]) -> Sequence[Record]:
        store = self._store
        # A reader must be able to see whose payload a path leads to, or a forged dead letter would copy any.
        if not isinstance(store, Store) or self._clock() < self._avoid_until_s:
            return ()
        for form in forms:
            assert form.value
            probe = self._offload.refer(
                form, Reference(_LONGEST_PATH, len(form.value), "0" * 64, "snappy", encryption=self._encryption)
            )
            if batch_of_one_bytes(probe) > self._limit:
                continue
            try:
                payload = self._offload.payload(form.value)
                reference = publish(store, self.topic.name, payload, by_digest=self._by_digest, keyring=self._keyring)
                letter = self._offload.refer(form, reference)
            except (PayloadStoreError, TransformError) as exc:
                self._avoid_until_s = self._clock() + _AVOID_S
                log.warning(
                    "pipeline %s: dead letters go to topic %s as chunks, because the store failed: %s",
                    self._settings.name,
                    self.topic.name,
                    exc,
                )
                return ()
            return (letter,) if batch_of_one_bytes(letter) <= self._limit else ()
        return ()

    def _chunks(self, forms: Sequence[Record], source: SourceRecord) -> Sequence[Record]:
        origin = (self._settings.group_id, "dead-letter", source.topic, source.partition, source.offset)
        for form in forms:
            assert form.value
            digest = checksum(form.value)
            try:
                return tuple(self._chunking.split(form, self._chunking.uuid(form, digest, origin), digest))
            except ChunkError:
                continue
        return ()


def _records(source: SourceRecord, cause: Cause) -> Sequence[Record]:
    """The dead letter as a value, in several forms; each has fewer headers than the one before."""
    context = cause.headers(source)
    data = record_format.serialize(dead_letter(source, context))
    mark = mark_of("record", context)
    headers = (*source.headers[: bool(replays_of(source.headers))], *context, mark)
    return (
        Record(source.key, data, headers, source.timestamp),
        Record(None, data, headers, source.timestamp),
        Record(None, data, (mark,), source.timestamp),
    )


def _batches(source: SourceRecord, cause: Cause) -> Sequence[Record]:
    """The dead letter of records that were not read, in two forms; the second has fewer headers."""
    context = cause.headers(source)
    mark = mark_of("batch", context)
    return (
        Record(None, source.value, (*context, mark), source.timestamp),
        Record(None, source.value, (mark,), source.timestamp),
    )


def _with_header(record: Record, header: Header) -> Record:
    return Record(record.key, record.value, (*record.headers, header), record.timestamp)
