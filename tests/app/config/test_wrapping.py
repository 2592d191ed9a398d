"""Wrappers in the configuration and in a chain: what the keys mean, and what becomes of records."""

from __future__ import annotations

import dataclasses
import tomllib
from typing import Any

import pytest

from app.commands.check import effective
from app.config.parsing import parse
from app.config.settings import Settings
from app.pipeline.chain import Chain, build
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Store, Work
from tests.app.pipeline.chains import ROOMY, apply, begun, chain_of, memory, settings_of, sink
from transforms.batch_size import batch_of_one_bytes
from transforms.errors import MalformedWrapperError, RecordTooLargeError
from transforms.formats import FORMATS
from transforms.record import Record
from transforms.wrapper import HeaderTable, Unwrap, Wrap

NAMED: dict[str, Any] = {"wrapper.header.3000001": "trace-id", "wrapper.header.5": "user"}
TABLE = HeaderTable({3_000_001: "trace-id", 5: "user"})
THRESHOLD = 100  # of `settings_of`


def parsed(transforms: list[str], keys: dict[str, Any]) -> Settings:
    """The settings of a worker with one pipeline."""
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": transforms, **keys}
    return parse({"bootstrap.servers": "localhost:1", "pipeline": {"p": table}}, {})


@pytest.mark.parametrize(
    ("transforms", "unwraps", "wraps"),
    [
        (["offload"], False, False),
        (["unwrap", "offload"], True, False),
        (["inflate", "wrap"], False, True),
        (["offload", "wrap"], False, True),
        (["unwrap", "inflate"], True, False),
        (["assemble", "unwrap", "inflate", "offload", "wrap", "chunk"], True, True),
        (["unwrap", "wrap"], True, True),
    ],
)
def test_transforms_decide(transforms: list[str], unwraps: bool, wraps: bool) -> None:  # noqa: FBT001
    """Who takes wrappers off, and who puts them on; each order in which that can be is taken."""
    store = {"large.message.payload.store.class": "memory"} if {"offload", "inflate"} & {*transforms} else {}
    found = parsed(transforms, store).pipelines[0].wrapper
    assert (found.unwraps, found.wraps) == (unwraps, wraps)
    assert (found.unwrap, found.wrap) == (Unwrap(), Wrap())


@pytest.mark.parametrize(
    "text",
    [
        'wrapper.header.3000001 = "trace-id"\nwrapper.header.5 = "user"',
        'wrapper.header = { 3000001 = "trace-id", "5" = "user" }',
        '[wrapper.header]\n3000001 = "trace-id"\n5 = "user"',
        '"wrapper.header.3000001" = "trace-id"\n"wrapper.header.5" = "user"',
    ],
)
def test_keys_are_taken(text: str) -> None:
    """Each key has its place; the table serves both directions, as TOML has it, and as `check --print` writes it."""
    keys = {"unwrap.on.plain.value": "pass", "wrap.on.unmapped.header": "drop", "wrap.on.null.value": "pass"}
    settings = parsed(["unwrap", "wrap"], {**keys, **tomllib.loads(text)})
    found = settings.pipelines[0].wrapper
    assert (found.unwrap, found.wrap) == (Unwrap(TABLE, "pass"), Wrap(TABLE, "drop", "pass"))
    assert parse(tomllib.loads(effective(settings)), {}) == settings
    settings = parsed(["chunk"], tomllib.loads(text))
    assert parse(tomllib.loads(effective(settings)), {}) == settings


# --- chains ----------------------------------------------------------------------------------------------------------


class Pair:
    """Chains on one store."""

    def __init__(self) -> None:
        self.store = memory()

    def chain(self, *transforms: str, limit: int = ROOMY, **keys: Any) -> Chain:
        """The chain that the worker builds."""
        return chain_of([*transforms], self.store, limit, **NAMED, **keys)

    def work(self, record: Any, *transforms: str) -> Work:
        """The work that a chain has begun on a record."""
        return begun(self.chain(*transforms), record)

    def one(self, record: Any, *transforms: str, **keys: Any) -> Any:
        """What a chain makes of a record."""
        (found,), _ = apply(self.chain(*transforms, **keys), record)
        return found


HEADERS = (("trace-id", b"t"), ("wrapper.header.77", b"n"))
LARGE = Record(b"k", b"v" * (THRESHOLD + 1), HEADERS, 7)
SMALL = Record(b"k", b"v" * THRESHOLD, HEADERS, 7)
TOMBSTONE = Record(b"k", None, HEADERS, 7)


def wrapped(record: Record) -> Record:
    """The record in a wrapper."""
    return Wrap(TABLE).wrap(record)


@pytest.mark.parametrize("record", [SMALL, LARGE, TOMBSTONE], ids=["small", "large", "tombstone"])
def test_wrappers_around_values_that_are_stored(record: Record) -> None:
    """It is the value in the wrapper that is offloaded, by its own size; inflated, it comes in one as it was."""
    pair = Pair()
    found = pair.one(wrapped(record), "unwrap", "offload")
    assert found == pair.one(record, "offload")
    assert (found == record) == (record is not LARGE)
    assert pair.one(found, "inflate", "wrap") == wrapped(record)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_wrapper_carries_references(form: str, codec: str) -> None:
    """A reference passes a topic without headers in a wrapper, and is inflated behind it; in each format."""
    pair = Pair()
    keys = {"reference_format": form, "large_message_compression_type": codec}
    s3 = {"large_message_payload_store_class": "s3", "s3_bucket": "payloads"}
    writer = build(settings_of(["offload", "wrap"], **s3, **keys, **NAMED), pair.store, sink(), PipelineStats())
    for record in (SMALL, LARGE, TOMBSTONE):
        (carried,), _ = apply(writer, record)
        assert carried.headers == ()
        assert pair.one(carried, "unwrap", "inflate", **keys) == record


def test_what_passes() -> None:
    """Tombstones where they are to, and plain values, unless they are errors; plain tombstones always."""
    pair = Pair()
    chains = [
        pair.chain("wrap", wrap_on_null_value="pass"),
        pair.chain("unwrap", unwrap_on_plain_value="pass"),
        pair.chain("unwrap"),
    ]
    records = (TOMBSTONE, SMALL, wrapped(SMALL))
    assert [[each.passes(record) for record in records] for each in chains] == [
        [True, False, False],
        [True, True, False],
        [True, False, False],
    ]
    with pytest.raises(MalformedWrapperError):
        apply(chains[2], SMALL)


@pytest.mark.parametrize(
    ("transforms", "record", "counted"),
    [
        (["unwrap"], wrapped(SMALL), ("unwrap",)),
        (["unwrap", "offload"], wrapped(LARGE), ("unwrap", "offload")),
        (["unwrap", "offload"], TOMBSTONE, ()),
        (["offload", "wrap"], SMALL, ("wrap",)),
    ],
)
def test_both_are_counted(transforms: list[str], record: Record, counted: tuple[str, ...]) -> None:
    """The names of the stages that had work are told, so that they can be counted."""
    assert apply(Pair().chain(*transforms), record)[1] == counted


@pytest.mark.parametrize(
    ("transforms", "record", "blocks"),
    [
        (["unwrap"], wrapped(SMALL), False),
        (["unwrap", "offload"], wrapped(SMALL), False),
        (["unwrap", "offload"], wrapped(TOMBSTONE), False),
        (["unwrap", "offload"], wrapped(LARGE), True),
        (["offload", "wrap"], SMALL, False),
        (["offload", "wrap"], LARGE, True),
        (["wrap"], dataclasses.replace(SMALL, value=b"v" * 65_536), False),
        (["wrap"], dataclasses.replace(SMALL, value=b"v" * 65_537), True),
        (["unwrap"], wrapped(dataclasses.replace(SMALL, value=b"v" * 65_537)), True),
    ],
)
def test_only_the_store_and_long_copies_take_a_thread(transforms: list[str], record: Record, blocks: bool) -> None:  # noqa: FBT001
    """A small record is wrapped and unwrapped at once, also before a stage that may call the store."""
    assert (Pair().work(record, *transforms).step is not None) is blocks


def test_a_wrapped_reference_takes_a_thread_and_room() -> None:
    """What is to be downloaded is seen through the wrapper: by the one who sets memory aside, too."""
    pair = Pair()
    record = Record(b"k", b"v" * 1_000_000, HEADERS)
    carried = pair.one(record, "offload", "wrap")
    work = pair.work(carried, "unwrap", "inflate")
    assert (isinstance(work.step, Store), work.reserve_bytes) == (True, 1_000_000)
    # A copy that takes a thread is made all the same, or what is behind it would have no room.
    long = dataclasses.replace(record, headers=(("trace-id", b"t" * 100_000),))
    assert pair.work(pair.one(long, "offload", "wrap"), "unwrap", "inflate").reserve_bytes >= 1_000_000
    # Inflated and wrapped at once, the value is there twice.
    assert pair.work(pair.one(record, "offload"), "inflate", "wrap").reserve_bytes == 2_000_000


def test_offload_sees_what_the_wrapper_adds() -> None:
    """A record that would fit but for its wrapper is offloaded; one that fits to the byte is not."""
    pair = Pair()
    limit = batch_of_one_bytes(wrapped(Record(b"k", b"v" * 5_000, HEADERS)))
    for size, offloaded in ((5_000, False), (5_001, True)):
        record = Record(b"k", b"v" * size, HEADERS)
        chain = pair.chain("offload", "wrap", limit=limit, large_message_threshold_bytes=10_000)
        (found,), applied = apply(chain, record)
        assert applied == (("offload", "wrap") if offloaded else ("wrap",))
        assert batch_of_one_bytes(found) <= limit
        assert pair.one(found, "unwrap", "inflate") == record


def test_wrapped_records_that_are_too_large_are_errors_or_chunks() -> None:
    """The sink's limit holds for the wrapper; `chunk` splits it, and it comes back whole."""
    record = Record(b"k", b"v" * 5_000, HEADERS)
    alone, split = (
        build(parsed(transforms, NAMED).pipelines[0], memory(), sink(2_000), PipelineStats())
        for transforms in (["wrap"], ["wrap", "chunk"])
    )
    with pytest.raises(RecordTooLargeError, match="topic orders accepts 2,000"):
        apply(alone, record)
    chunks, applied = apply(split, record)
    assert applied == ("wrap", "chunk")
    assert b"".join(chunk.value or b"" for chunk in chunks) == wrapped(record).value
