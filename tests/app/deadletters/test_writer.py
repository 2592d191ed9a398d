"""Dead letters that their topic would not take as they are, and all of them read again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.config.parsing import parse
from app.config.settings import PipelineSettings
from app.deadletters.reader import FoundLetter, LetterReader
from app.deadletters.replay import letter_reader
from app.deadletters.writer import LetterWriter
from app.kafka.source_batch import UnreadBatch
from app.kafka.topics import Topic
from stores.memory import MemoryStore
from stores.registry import open_store
from stores.user import UserStore
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import Chunk, is_chunk
from transforms.errors import (
    BatchTooLargeError,
    EncryptionError,
    MalformedError,
    PayloadStoreError,
    RecordTooLargeError,
    ReferenceRefusedError,
)
from transforms.formats import FORMATS, FormatName
from transforms.keyring import EncryptionSettings
from transforms.letter import BATCH_FORMS, LEAST_BYTES, MARK, REPLAYS, Cause, has_record
from transforms.record import Header, Record
from transforms.reference import Reference
from transforms.wrapper import Wrap

ERROR = ValueError("no")
NAMES = st.sampled_from(["h", "large-message", MARK, "large-message.chunk.uuid", REPLAYS, "\udcfc", ""])
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=40)), max_size=5)
REFERENCE = Reference("file:///s/t/1", 9, "0" * 64, "gzip").headers()
CHUNK = Chunk("u", 0, 2, 9, "0" * 64).headers()
CONTEXT = [("__connect.errors." + name, b"x") for name in ("topic", "partition", "offset")]


@dataclass(frozen=True)
class Source:
    """A record as it was read, or as it stands in the dead-letter topic."""

    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: tuple[Header, ...] = ()
    timestamp: int = 1_700_000_000_123
    topic: str = "raw"
    partition: int = 3
    offset: int = 7
    timestamp_type: int = 0


def pipeline(*, store: bool, context: bool) -> PipelineSettings:
    """A pipeline with a dead-letter topic."""
    table: dict[str, Any] = {"topics": ["raw"], "output.topic": "orders", "transforms": ["chunk"]}
    if store:
        table |= {"transforms": ["inflate"], "large.message.payload.store.class": "memory", "memory.name": "letters"}
    table["errors.deadletterqueue.context.headers.enable"] = context
    return parse({"bootstrap.servers": "nowhere:1", "pipeline": {"p": table}}, {}).pipelines[0]


class Desk:
    """Writes letters for a topic with this limit, and reads them."""

    def __init__(self, limit: int, *, store: bool = True, context: bool = True) -> None:
        self.settings = pipeline(store=store, context=context)
        self.store = open_store(self.settings.store) if store else None
        self.topic = Topic("dlq", 1, limit, "delete")
        self.letters = LetterWriter(self.settings, self.topic, self.store)
        self.reader = LetterReader(self.store, 10_000_000, topics=["dlq"])
        self.cause = Cause(ERROR, pipeline="p", stage="inflate", context=context)

    def write(self, source: Source) -> list[Source]:
        """What goes into the topic, each of which it takes."""
        written = self.letters.any(source, self.cause)
        for record in written:
            assert batch_of_one_bytes(record) <= self.topic.max_message_bytes
            for name, _ in record.headers:
                name.encode()
        return [Source(r.key, r.value, tuple(r.headers), r.timestamp, "dlq", 0, 100 + n) for n, r in enumerate(written)]

    def found(self, written: list[Source]) -> FoundLetter:
        """The letter in them."""
        (found,) = [found for record in written for found in self.reader.add(record)]
        assert found.offsets == tuple(record.offset for record in written)
        return found


def record_of(source: Source) -> Record:
    """The record alone."""
    return Record(source.key, source.value, source.headers, source.timestamp)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([LEAST_BYTES, 1_000, 2_500, 10_000, 1_000_000]),
    st.booleans(),
    st.booleans(),
    st.none() | st.binary(max_size=20) | st.just(b"k" * 3_000),
    st.none() | st.binary(max_size=20) | st.just(b"v" * 20_000),
    HEADERS | st.sampled_from([[*REFERENCE], [*CHUNK], [*CONTEXT], [*CONTEXT, *REFERENCE], [("h", b"x" * 5_000)]]),
)
@example(1_000_000, True, False, b"k", b"file:///s/t/1", [*REFERENCE])
@example(1_000_000, False, False, b"k", b"v", [*CHUNK])
@example(2_500, True, True, b"k", b"v" * 9_000, [("wideload.dead-letter", b"value"), *REFERENCE])
def test_letter_comes_back_as_it_was(  # each is another way to be odd
    limit: int,
    store: bool,  # noqa: FBT001
    context: bool,  # noqa: FBT001
    key: bytes | None,
    value: bytes | None,
    headers: list[Header],
) -> None:
    """Whatever the record and the topic's limit are, the letter fits, and the record comes out of it exactly."""
    source = Source(key, value, tuple(headers))
    desk = Desk(limit, store=store, context=context)
    letter = desk.reader.open(desk.found(desk.write(source)))
    count = letter.replays
    assert letter.record == record_of(source)
    assert letter.origin == (("raw", 3, 7) if context else None)
    assert letter.replayed().headers[0] == (REPLAYS, b"%d" % (count + 1))
    assert letter.replayed().headers[1:] == source.headers[bool(count) :]


def test_letter_that_fits_is_whole() -> None:
    """A small record is a letter as it was, with Connect's headers behind its own; the store is not asked."""
    (written,) = Desk(1_000_000).write(Source(headers=(("own", b"1"),)))
    assert (written.key, written.value, written.headers[0]) == (b"k", b"v", ("own", b"1"))
    assert all(name.startswith("__connect.errors.") for name, _ in written.headers[1:])


def test_letter_too_large_goes_to_the_store() -> None:
    """The value alone moves; key, headers and what went wrong stay where everybody can read them."""
    desk = Desk(10_000)
    (written,) = desk.write(Source(value=b"v" * 20_000, headers=(("own", b"1"),)))
    assert isinstance(desk.store, MemoryStore)
    reference, own = Reference.parse(record_of(written))
    assert (reference.size, reference.path.split("/")[-2]) == (20_000, "dlq")
    assert own[0] == ("own", b"1")
    assert own[-1] == ("wideload.dead-letter", b"value")
    summary = desk.reader.summarize(desk.found([written]))
    assert (summary.form, summary.size, summary.error) == ("store", 20_000, None)
    assert summary.letter is not None
    assert summary.letter.origin == ("raw", 3, 7)


class FailingStore(MemoryStore):
    """A store that takes nothing, and counts how often it is asked."""

    asked = 0

    def publish(self, topic: str, data: bytes) -> str:
        """Fails."""
        FailingStore.asked += 1
        raise PayloadStoreError(f"{topic} is full at {len(data)}", retriable=True)

    def put(self, topic: str, object_id: str, data: bytes) -> str:
        """Fails."""
        return self.publish(f"{topic}/{object_id}", data)


def test_letter_goes_as_chunks_where_the_store_fails() -> None:
    """A store that fails is asked once, then left alone for a while; the letters go as chunks, with one uuid each."""
    desk = Desk(10_000)
    now = [0.0]
    FailingStore.asked = 0
    store = FailingStore()
    desk.letters = LetterWriter(desk.settings, desk.topic, store, clock=lambda: now[0])
    sources = [Source(value=b"v" * 20_000, offset=offset) for offset in (1, 2)]
    first, second = (desk.write(source) for source in sources)
    assert FailingStore.asked == 1
    now[0] = 60.0
    again = desk.write(sources[0])
    assert FailingStore.asked == 2
    assert len(first) > 1
    assert again == first, "after a restart readers know the chunks again"
    uuids = {Chunk.parse(record)[0].uuid for record in first + second}
    assert len(uuids) == 2


def test_letter_of_ten_thousand_headers() -> None:
    """Headers that no record of the topic can hold go with the letter, in the store as in chunks."""
    source = Source(headers=tuple((f"h{number}", b"%d" % number) for number in range(10_000)))
    for store in (True, False):
        desk = Desk(20_000, store=store)
        written = desk.write(source)
        assert dict(written[0].headers)["__connect.errors.topic"] == b"raw"
        assert desk.reader.open(desk.found(written)).record == record_of(source)


@given(
    st.none() | st.binary(max_size=60),
    st.sampled_from([b"record", b"bare-record", b"value", b"whole", b"bare-whole", b"other", b"", b"\xff", None]),
    HEADERS,
)
@example(b"\x12\0\0\0\x01\x01\x80\x80\x80\x08", b"record", [])  # headers without end
@example(None, b"record", [(MARK, b"bare-batch")])
def test_letter_that_anybody_wrote(value: bytes | None, mark: bytes | None, headers: list[Header]) -> None:
    """Whatever stands in a dead-letter topic is a letter or one documented error, also in the table and the replay."""
    reader = LetterReader(None, 1_000)
    record = Source(value=value, headers=(*headers, (MARK, mark)), topic="dlq")
    for found in reader.add(record):
        summary = reader.summarize(found)
        batch = any(name == MARK and value in BATCH_FORMS for name, value in record.headers)
        assert (summary.letter is None) == (summary.error is not None) or batch  # it is listed, and not opened
        if summary.letter is not None:
            assert summary.letter.origin is None
            assert len(summary.letter.replayed().headers) <= len(headers) + 1


@pytest.mark.parametrize("context", [True, False])
@pytest.mark.parametrize(("limit", "store"), [(1_000_000, False), (LEAST_BYTES, False), (3_000, True)])
def test_letter_of_records_that_were_not_read(limit: int, store: bool, context: bool) -> None:  # noqa: FBT001
    """Its value is their batch, in the letter, in chunks or in the store. It is listed, and not opened."""
    desk = Desk(limit, store=store, context=context)
    batch = bytes(range(256)) * 20
    error = BatchTooLargeError(5, 7, 100)
    unread = UnreadBatch("raw", 3, 7, 1_700_000_000_123, batch, error, 5, 3)
    cause = Cause(error, pipeline="p", stage="inflate", context=context)
    assert desk.letters.whole(unread, cause) is None
    written = desk.letters.any(unread, cause)
    assert len(written) == 1 or not store
    assert all(batch_of_one_bytes(record) <= limit for record in written)
    sources = [Source(r.key, r.value, tuple(r.headers), r.timestamp, "dlq", 0, n) for n, r in enumerate(written)]
    found = desk.found(sources)
    summary = desk.reader.summarize(found)
    assert summary.letter is not None
    fits = limit > 1_000 and context
    assert summary.letter.origin == (("raw", 3, 7) if fits else None)
    assert summary.letter.record.value is None
    with pytest.raises(MalformedError, match=r"wideload\.dead-letter is 'batch: its records are too large"):
        desk.reader.open(found)
    if not store:
        assert found.record.value == batch
        assert summary.error is not None
        assert "allowed: whole, value or record" in summary.error


def test_letter_reader_tells_of_missing_chunks() -> None:
    """Chunks of a letter that is not whole are told as one, with all their offsets, and what was written twice once."""
    desk = Desk(10_000, store=False)
    written = desk.write(Source(value=b"v" * 40_000))
    assert len(written) > 2
    cut = [*written[:-1], *(replace(record, offset=record.offset + 50) for record in written[:-1])]
    assert [found for record in cut for found in desk.reader.add(record)] == []
    (found,) = desk.reader.incomplete()
    assert found.offsets == tuple(record.offset for record in written[:-1])
    assert "not in what was read" in (desk.reader.summarize(found).error or "")
    assert desk.reader.duplicates == len(written) - 1


def test_letter_for_a_topic_that_takes_nothing() -> None:
    """A limit that is lowered below the least while the pipeline runs is told with both numbers."""
    with pytest.raises(RecordTooLargeError, match=f"{LEAST_BYTES:,}"):
        Desk(100, store=False).write(Source())


@pytest.mark.parametrize("name", [*FORMATS, "wrapper"])
def test_letter_of_a_reference_is_none_that_a_sweep_overlooks(name: str) -> None:
    """Where the topic takes no whole letter, the record goes to the store as one, and a sweep knows such a letter.

    As the payload of a letter the value alone would lead to nothing that a sweep sees, and its own payload would go.
    """
    desk = Desk(9_200)
    path = f"s3://bucket/orders/{'p' * 9_000}"
    format_name: FormatName = "wideload" if name == "wrapper" else cast("FormatName", name)
    desk.letters = LetterWriter(replace(desk.settings, reference_format=format_name), desk.topic, desk.store)
    made = FORMATS[format_name].write_reference(Record(b"k", b"?"), Reference(path))
    if name == "wrapper":
        made = Record(b"k", Wrap().wrap(made).value)
    source = Source(made.key, made.value, tuple(made.headers))
    (letter,) = desk.write(source)
    assert has_record(letter.headers)
    assert desk.reader.open(desk.found([letter])).record == record_of(source)


def test_letter_of_a_value_is_its_payload() -> None:
    """What is longer than a path is in the store as it was, whatever the format of its topic is."""
    desk = Desk(10_000)
    desk.letters = LetterWriter(replace(desk.settings, reference_format="bakdata-flag"), desk.topic, desk.store)
    (letter,) = desk.write(Source(value=b"v" * 20_000))
    assert not has_record(letter.headers)


class OwnStore:
    """A class of the user's own: nobody knows what its paths mean."""

    def __init__(self) -> None:
        self.payloads: dict[str, bytes] = {"salaries/1": b"secret"}

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore`."""
        self.payloads[path := f"{topic}/{len(self.payloads)}"] = data
        return path

    def download(self, full_path: str) -> bytes:
        """See `PayloadStore`."""
        return self.payloads[full_path]


def test_letter_in_a_store_of_the_users_own_is_refused() -> None:
    """A forged letter would have any payload copied. So the worker writes its letters as chunks, which are read."""
    desk = Desk(10_000)
    store = UserStore.wrap(OwnStore(), "OwnStore")
    desk.letters = LetterWriter(desk.settings, desk.topic, store)
    desk.reader = LetterReader(store, 10_000_000, topics=["dlq"])
    headers = (*CONTEXT, (MARK, b"value"), *Reference("salaries/1").headers())
    forged = desk.found([Source(b"k", b"salaries/1", headers, topic="dlq", offset=100)])
    with pytest.raises(
        PayloadStoreError, match=r"the class of large\.message\.payload\.store\.class cannot verify that"
    ):
        desk.reader.open(forged)
    source = Source(value=b"v" * 20_000)
    written = desk.write(source)
    assert all(is_chunk(each.headers) for each in written)
    assert desk.reader.open(desk.found(written)).record == record_of(source)


def test_letter_in_a_store_that_the_pipeline_lacks() -> None:
    """It is an error of this letter, not of the configuration: anybody may have forged it."""
    desk = Desk(10_000, store=False)
    headers = (*CONTEXT, (MARK, b"value"), *Reference("s3://b/dlq/1").headers())
    found = desk.found([Source(b"k", b"s3://b/dlq/1", headers, topic="dlq", offset=100)])
    with pytest.raises(PayloadStoreError, match="is missing, and the dead-letter record is in a store"):
        desk.reader.open(found)


def test_letter_of_anothers_payload_is_refused() -> None:
    """A forged letter gets no payload but that of a letter of the topic, however inflate is configured."""
    desk = Desk(10_000)
    assert desk.store is not None
    path = desk.store.publish("salaries", b"secret")
    headers = (*CONTEXT, (MARK, b"value"), *Reference(path).headers())
    forged = desk.found([Source(b"k", path.encode(), headers, topic="dlq", offset=100)])
    with pytest.raises(ReferenceRefusedError, match=r"the payload of a dead-letter record is below .*/dlq/"):
        desk.reader.open(forged)


def test_letter_in_a_store_is_encrypted() -> None:
    """A letter in the store is encrypted as payloads are, and a replay with the key reads it.

    If the topic has no room for the headers of encryption, the letter goes as chunks, and leaves nothing in the store.
    """
    desk = Desk(5_000)
    named = {"large.message.encryption.key.id": "one", "large.message.encryption.key.secret": "1f" * 32}
    encryption = EncryptionSettings.of(named | {"large.message.encryption.type": "aes-256-gcm"})
    encrypting = replace(desk.settings, encryption=encryption)
    desk.letters = LetterWriter(encrypting, desk.topic, desk.store)
    source = Source(value=b"top secret " * 1_000)
    (written,) = desk.write(source)
    assert "large-message.encryption" in dict(written.headers)
    assert isinstance(desk.store, MemoryStore)
    assert b"top secret" not in desk.store.get((written.value or b"").decode(), 1_000_000)
    assert isinstance(desk.found([written]), FoundLetter)
    with pytest.raises(EncryptionError, match="encrypted with key one, and no key is configured here"):
        desk.reader.open(desk.found([written]))
    reader = letter_reader(desk.store, encrypting, "dlq")
    assert reader.open(desk.found([written])).record.value == source.value
    MemoryStore.clear()
    narrow = Desk(2_500)
    narrow.letters = LetterWriter(encrypting, narrow.topic, narrow.store)
    assert all(is_chunk(record.headers) for record in narrow.write(source))
    assert isinstance(narrow.store, MemoryStore)
    assert list(narrow.store.list()) == []
