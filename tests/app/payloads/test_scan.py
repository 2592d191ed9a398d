"""Topics, read for the references in their records, and which of these compaction keeps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from aiokafka import AIOKafkaProducer

from app.config.settings import ClientSettings
from app.kafka.range_reader import RecordsLostError
from app.kafka.spans import TopicSpans, described
from app.payloads.engine import Row
from app.payloads.local_engine import LocalEngine
from app.payloads.scan import Found, newest, references
from tests.app.payloads.swept import delete_records, write
from tests.built_batches import PACKERS, built, changed, repacked
from tests.integration.odd_batches import odd_batch, produce
from transforms.chunk import Chunking
from transforms.found_references import HIDDEN, ReferenceFinder
from transforms.record import Record
from transforms.record_batch import pack
from transforms.reference import KEY, Reference
from transforms.wrapper import Wrap

MakeTopic = Callable[..., str]
ROOT = "s3://payloads/base/"
FINDER = ReferenceFinder(root=ROOT)
COMPACT = {"cleanup.policy": "compact"}


def referring(name: str, key: bytes | None = b"k", at: int = 5) -> Record:
    """A record whose value is in the store."""
    reference = Reference(f"{ROOT}t/{name}", 3)
    return Record(key, reference.value(), reference.headers(), at)


def spans(broker: str, *topics: str) -> list[TopicSpans]:
    return list(described(ClientSettings(broker), {"--topic": topics}).values())


def scanned(
    broker: str,
    *topics: TopicSpans,
    finder: ReferenceFinder = FINDER,
    committed: bool = False,
    newest_only: bool = False,
    since_ms: int | None = None,
) -> list[Found]:
    """The references of topics, in the order of the log."""
    with LocalEngine() as engine:
        frames = references(
            engine,
            ClientSettings(broker),
            [(each, finder) for each in topics],
            committed=committed,
            newest_only=newest_only,
            since_ms=since_ms,
        )
        rows = [Found(*row) for frame in frames for each in engine.gathered(frame, list[Row]) for row in each]
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.offset, row.which))


def test_references_have_their_place(broker: str, make_topic: MakeTopic) -> None:
    """Each reference of each partition has its topic, partition, offset, timestamp and key; a topic may be empty."""
    topic, other, empty = make_topic(3), make_topic(1), make_topic(2)
    key = Reference(f"{ROOT}t/key", 7)
    both = Record(key.value(), referring("both").value, (*key.headers(KEY), *referring("both").headers), 9)
    plain = Record(b"p", b"plain", (), 1)
    for number in range(3):
        write(broker, topic, plain, referring(f"a{number}", b"k", 10 + number), plain, partition=number)
    write(broker, other, plain, both)
    assert [(*row[:9], row.error) for row in scanned(broker, *spans(broker, topic, other, empty))] == [
        *(
            (f"{ROOT}t/a{number}", topic, number, 1, 10 + number, b"k", "value", "wideload", 3, None)
            for number in range(3)
        ),
        (f"{ROOT}t/key", other, 0, 1, 9, key.value(), "key", "wideload", 7, None),
        (f"{ROOT}t/both", other, 0, 1, 9, key.value(), "value", "wideload", 3, None),
    ]


def test_compressed_batches_and_what_is_wrapped(broker: str, make_topic: MakeTopic) -> None:
    """A reference is found in a batch of each codec, and inside a wrapper; a batch without any is passed over.

    The first chunk of a message that may be a wrapper with a reference is found, and no plain chunk.
    """
    topic = make_topic(1)
    wrapped = Wrap().wrap(Wrap().wrap(referring("w")))
    for packer in PACKERS:
        records = [Record(b"k", b"plain" * 50), referring(packer), wrapped]
        assert produce(broker, topic, [repacked(built(0, records), packer), repacked(built(0, records[:1]), packer)])
    large = Wrap().wrap(Record(b"k", referring("a").value, [("wrapper.header.7", bytes(900)), *referring("a").headers]))
    write(broker, topic, *Chunking(600).split(large, "u"), *Chunking(600).split(Record(b"k", b"v" * 40_000), "v"))
    *rows, chunk = scanned(broker, *spans(broker, topic))
    assert [row.path for row in rows] == [f"{ROOT}t/{name}" for packer in PACKERS for name in (packer, "w")]
    assert (chunk.offset, chunk.error) == (
        4 * len(PACKERS),
        "is a chunk of a wrapper that may hold a reference: assemble it",
    )


def test_records_that_cannot_be_decoded(broker: str, make_topic: MakeTopic) -> None:
    """They are one reference with an error, in which there may be sound ones; what is behind them is found."""
    topic = make_topic(1, **COMPACT)
    records = b"\x10\0\0\0\2a\2b\0" + b"\x10\0\0\0\2c\2d\0"  # the second one has the offset of the first
    broken = built(0, [Record(b"a", b"b")] * 2)[:61] + records
    broken = changed(broken, ">i", 8, len(broken) - 12)
    many = Record(b"k", b"v", [("x", b"")] * 65_537)
    assert produce(broker, topic, [broken, bytes(pack([many])), bytes(pack([referring("last")]))]) == 3
    for newest_only in (False, True):
        first, second, last = scanned(
            broker, *spans(broker, topic), newest_only=newest_only, finder=ReferenceFinder("bakdata-flag")
        )[-3:]
        assert (first.offset, first.which, first.path) == (1, "value", None)
        assert (first.error or "").startswith(HIDDEN)
        assert "offset of a record" in (first.error or "")
        assert "65,537" in (second.error or "")
        assert last.path == f"{ROOT}t/last"


def test_records_that_kafka_has_deleted(broker: str, make_topic: MakeTopic) -> None:
    """Nobody may say what is live if records went while they were read: an error says which."""
    topic = make_topic(1)
    write(broker, topic, referring("a"), referring("b"))
    (before,) = spans(broker, topic)
    delete_records(broker, topic, 1)
    with pytest.raises(RecordsLostError, match=f"topic {topic} partition 0: offset 0 is not there, the first one is 1"):
        scanned(broker, before)


def test_odd_batches(broker: str, make_topic: MakeTopic) -> None:
    """What strange clients write, and brokers take, ends no scan: of each batch all records are found, or an error."""
    topic, rng = make_topic(1, **COMPACT), random.Random(7)
    assert produce(broker, topic, [odd_batch(rng) for _ in range(300)]) > 50
    (found,) = spans(broker, topic)
    for finder in (FINDER, ReferenceFinder("bakdata-flag")):
        every = scanned(broker, found, finder=finder)
        kept = scanned(broker, found, finder=finder, newest_only=True)
        assert {*kept} <= {*every}
        assert every


def test_transactions(broker: str, make_topic: MakeTopic) -> None:
    """Aborted and open transactions count for a sweep and not for an audit; they overwrite nothing."""
    topic = make_topic(1, **COMPACT)

    async def write_transactions() -> tuple[list[Found], ...]:
        async with AIOKafkaProducer(bootstrap_servers=broker, transactional_id=f"{topic}-t") as producer:
            for name, key, end in (
                ("first", b"a", producer.commit_transaction),
                ("only", b"b", producer.commit_transaction),
                ("aborted", b"a", producer.abort_transaction),
                ("second", b"a", producer.commit_transaction),
                ("aborted-too", b"b", producer.abort_transaction),
                ("open", b"b", None),
            ):
                await producer.begin_transaction()
                record = referring(name, key, 1_000)
                await producer.send_and_wait(topic, record.value, key, 0, 1_000, headers=list(record.headers))
                if end is not None:
                    await end()
            found = await asyncio.to_thread(spans, broker, topic)
            rows = [
                await asyncio.to_thread(
                    scanned, broker, *found, committed=committed, newest_only=newest_only, since_ms=since_ms
                )
                for committed in (True, False)
                for newest_only, since_ms in ((False, None), (True, None), (True, 900))
            ]
            await producer.abort_transaction()
        return tuple(rows)

    names = [[(row.path or "").rpartition("/")[2] for row in rows] for rows in asyncio.run(write_transactions())]
    audit, audit_newest, _, sweep, sweep_newest, sweep_since = names
    assert audit == ["first", "only", "second"]
    assert audit_newest == ["only", "second"]
    assert sweep == ["first", "only", "aborted", "second", "aborted-too", "open"]
    assert sweep_newest == [name for name in sweep if name != "first"]
    assert sweep_since == sweep


def rows_of(log: Sequence[tuple[Record, str]]) -> Iterator[tuple[int, Row]]:
    """What `newest` gets of a partition, in which each record is `committed` or in a transaction that is not."""
    rows: list[Row] = []
    for offset, (record, state) in enumerate(log):
        name = f"at-{offset}" if record.key is None else record.key.decode()
        place = "t", 0, offset, record.timestamp
        if record.key is not None and state == "committed":
            rows.append((name, 2 * offset, *Found(None, *place)))
        for each in FINDER.find(record):
            found = Found(each.path, *place, record.key, each.which)
            rows.append((name, 2 * offset + 1, *found))
    return ((0, row) for row in sorted(rows, key=lambda row: row[:2]))


AGED = [*(referring("v", b"a", at) for at in (10, 20, 30)), Record(b"a", None, (), 40)]
UNDATED = [AGED[0], referring("v", b"a", -1), AGED[2]]
KEYED = [
    *(referring("v", key) for key in (b"a", b"b", None, b"a", b"c", None)),
    Record(b"c", None),
    referring("v", b""),
]


@pytest.mark.parametrize(
    ("log", "since_ms", "late", "kept"),
    [
        (KEYED, None, None, [1, 2, 3, 5, 7]),
        ([], None, None, []),
        (AGED, 41, None, []),
        (AGED, 40, None, [2]),
        (AGED, 30, None, [1, 2]),
        (AGED, 1, None, [0, 1, 2]),
        (AGED, 41, 2, [1, 2]),  # one with an old timestamp behind a record of that time
        (UNDATED, 41, None, [0, 2]),
        (UNDATED, None, None, [2]),
    ],
)
def test_newest(log: Sequence[Record], since_ms: int | None, late: int | None, kept: list[int]) -> None:
    """The last record of each key stays, all without a key, and what was overwritten since a time, for slow readers."""
    rows = rows_of([(record, "committed") for record in log])
    found = newest(rows, since_ms, None if late is None else {("t", 0): late})
    assert sorted(row.offset for row in found) == kept


def test_newest_of_any_log() -> None:
    """Chance: a reference is left out only if the next committed record of its key is there, and is old."""
    rng = random.Random(3)
    for _ in range(300):
        log = [
            (
                referring("v", rng.choice((b"a", b"b", None)), rng.randrange(-1, 40))
                if rng.random() < 0.7
                else Record(b"a", b"", (), 30),
                rng.choice(("committed", "committed", "open")),
            )
            for _ in range(rng.randrange(12))
        ]
        since, late = rng.choice((None, 10, 20)), rng.randrange(14)
        expected = []
        for offset, (record, state) in enumerate(log):
            behind = (
                (at, each.timestamp)
                for at, (each, its) in enumerate(log)
                if at > offset and its == state == "committed" and None is not each.key == record.key
            )
            over = next(behind, None)
            recent = over is None or (since is not None and (over[0] >= late or over[1] < 0 or over[1] >= since))
            if recent and record.value:
                expected.append(offset)
        assert sorted(row.offset for row in newest(rows_of(log), since, {("t", 0): late})) == expected
