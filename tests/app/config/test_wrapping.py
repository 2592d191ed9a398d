"""Wrappers in the configuration and in a chain: what the keys mean, what cannot work, and what becomes of records."""

from __future__ import annotations

import dataclasses
import itertools
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from app.commands.check import effective
from app.config.parsing import parse
from app.config.settings import PipelineSettings, Settings
from app.pipeline.chain import Chain, build
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Store, Work
from stores.memory import MemoryStore
from stores.registry import open_store
from tests.app.pipeline.chains import apply, begun, sink
from transforms.batch_size import batch_of_one_bytes
from transforms.errors import ConfigurationError, MalformedWrapperError, RecordTooLargeError, WrapError
from transforms.formats import FORMATS
from transforms.record import Record
from transforms.wrapper import HeaderTable, MessageWrapper, Unwrap, Wrap

STORE: dict[str, Any] = {"large.message.payload.store.class": "memory"}
NAMED: dict[str, Any] = {"wrapper.header.3000001": "trace-id", "wrapper.header.5": "user"}
TABLE = HeaderTable({3_000_001: "trace-id", 5: "user"})
ROOMY = 10_000_000
THRESHOLD = 100

_names = itertools.count()


@pytest.fixture(autouse=True)
def _forget_payloads() -> Iterator[None]:
    yield
    MemoryStore.clear()


def parsed(transforms: list[str], keys: dict[str, Any]) -> Settings:
    """The settings of a worker with one pipeline."""
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": transforms, **keys}
    return parse({"bootstrap.servers": "localhost:1", "pipeline": {"p": table}}, {})


def settings_of(*transforms: str, **keys: Any) -> PipelineSettings:
    """A pipeline with these transforms, and a store if they need one; keys have `_` for dots."""
    store = STORE if {"offload", "inflate"} & set(transforms) else {}
    dotted = {name.replace("_", "."): value for name, value in keys.items()}
    return parsed(list(transforms), {**store, **dotted}).pipelines[0]


def refusal_of(*transforms: str, **keys: Any) -> str:
    """The sentence with which it is refused."""
    with pytest.raises(ConfigurationError) as caught:
        settings_of(*transforms, **keys)
    return str(caught.value).removeprefix("[pipeline.p] ")


# --- what the keys mean ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transforms", "unwraps", "wraps"),
    [
        (["offload"], False, False),
        (["unwrap"], True, False),
        (["wrap"], False, True),
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
    found = settings_of(*transforms).wrapper
    assert (found.unwraps, found.wraps) == (unwraps, wraps)
    assert (found.unwrap, found.wrap) == (Unwrap(), Wrap())


def test_keys_are_taken() -> None:
    """Each key of the file has its place, and the table serves both directions."""
    keys = {"unwrap_on_plain_value": "pass", "wrap_on_unmapped_header": "drop", "wrap_on_null_value": "pass", **NAMED}
    found = settings_of("unwrap", "wrap", **keys).wrapper
    assert found.unwrap == Unwrap(TABLE, "pass")
    assert found.wrap == Wrap(TABLE, "drop", "pass")


@pytest.mark.parametrize(
    "text",
    [
        'wrapper.header.3000001 = "trace-id"\nwrapper.header.5 = "user"',
        'wrapper.header = { 3000001 = "trace-id", "5" = "user" }',
        '[wrapper.header]\n3000001 = "trace-id"\n5 = "user"',
        '"wrapper.header.3000001" = "trace-id"\n"wrapper.header.5" = "user"',
    ],
)
def test_the_table_may_be_written_as_toml_has_it(text: str) -> None:
    """Dotted lines, an inline table, a table and quoted names mean the same."""
    assert parsed(["unwrap"], tomllib.loads(text)).pipelines[0] == settings_of("unwrap", **NAMED)


def test_what_is_printed_means_the_same() -> None:
    """`wideload check --print` gives a file that has these settings again."""
    for transforms in (["unwrap"], ["wrap"], ["unwrap", "wrap"], ["chunk"]):
        settings = parsed(transforms, NAMED)
        assert parse(tomllib.loads(effective(settings)), {}) == settings


ORDERS: list[tuple[list[str], str]] = [
    (["offload", "unwrap"], "unwrap goes before offload, which needs the value without its wrapper"),
    (["assemble", "inflate", "unwrap"], "unwrap goes before inflate, which needs the value without its wrapper"),
    (["wrap", "unwrap"], "unwrap goes before wrap, which needs the value without its wrapper"),
    (["wrap", "offload"], "wrap goes after offload, which would get wrapped values"),
    (["wrap", "inflate", "chunk"], "wrap goes after inflate, which would get wrapped values"),
    (["unwrap", "assemble"], "assemble goes first: it assembles the chunks of the source topic"),
    (["chunk", "wrap"], "chunk goes last: a transform after it would get pieces of values"),
    (["chunk", "unwrap"], "chunk goes last: a transform after it would get pieces of values"),
]


@pytest.mark.parametrize(("transforms", "reason"), ORDERS)
def test_order_is_refused(transforms: list[str], reason: str) -> None:
    """What could not work is refused at start, with the reason."""
    assert refusal_of(*transforms) == f"transforms: found {transforms}; {reason}"


@pytest.mark.parametrize(
    ("transforms", "keys", "message"),
    [
        (
            ["unwrap"],
            {"unwrap_on_plain_value": "skip"},
            "unwrap.on.plain.value: found 'skip', allowed is one of: fail, pass",
        ),
        (["wrap"], {"wrapper_header_one": "a"}, "wrapper.header.one: found 'one', allowed behind wrapper.header. is"),
        (["wrap"], {"wrapper_header_01": "a"}, "wrapper.header.01: found '01', allowed behind wrapper.header. is"),
        (["wrap"], {"wrapper_header_-1": "a"}, "wrapper.header.-1: found '-1', allowed behind wrapper.header. is"),
        (
            ["wrap"],
            {"wrapper_header_99999999999": "a"},
            "wrapper.header.99999999999: found '99999999999', allowed behind wrapper.header. is a number from 0 to 2,1",
        ),
        (["wrap"], {"wraper_header_1": "a"}, "wraper.header.1: is not a key that is known here; did you mean wrapper."),
        (
            ["wrap"],
            {"wrapper_headers_1": "a"},
            "wrapper.headers.1: is not a key that is known here; did you mean wrapp",
        ),
        (["wrap"], {"wrapper_header": "a"}, "wrapper.header: is not a key that is known here; did you mean wrapper."),
        (["wrap"], {"wrapper_header_1": "a\udcff"}, "wrapper.header.1: found 'a\\udcff', allowed is a name"),
        (["wrap"], {"wrapper_header_1": 2}, "wrapper.header.1: found 2, allowed is a value of type string"),
        (["wrap"], {"wrapper_header_1": ""}, "wrapper.header.1: found '', allowed is a name"),
        (
            ["wrap"],
            {"wrapper_header_2147483648": "a"},
            "wrapper.header.2147483648: found 2147483648, allowed are 0 to 2,147,483,647",
        ),
        (
            ["wrap"],
            {"wrapper_header_1": "a", "wrapper_header_2": "a"},
            "wrapper.header.2: found 'a', which is the name of key 1 already",
        ),
        (["wrap"], {"wrap_on_nul_value": "pass"}, "wrap.on.nul.value: is not a key that is known here; did you mean"),
    ],
)
def test_wrong_key_is_refused(transforms: list[str], keys: dict[str, Any], message: str) -> None:
    """A key that cannot be heeded, or that nobody heeds, is one sentence."""
    assert refusal_of(*transforms, **keys).startswith(message)


# --- chains ----------------------------------------------------------------------------------------------------------


class Pair:
    """Chains on one store."""

    def __init__(self) -> None:
        self.store = open_store({**STORE, "memory.name": f"wrapping-{next(_names)}"})

    def chain(self, *transforms: str, limit: int = ROOMY, **keys: Any) -> Chain:
        """The chain that the worker builds."""
        if "offload" in transforms:
            keys.setdefault("large_message_threshold_bytes", THRESHOLD)
        return build(settings_of(*transforms, **NAMED, **keys), self.store, sink(limit), PipelineStats())

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
def test_unwrap_then_offload(record: Record) -> None:
    """It is the value in the wrapper that is offloaded, by its own size; a tombstone in it is a true one."""
    pair = Pair()
    found = pair.one(wrapped(record), "unwrap", "offload")
    if record is not LARGE:
        assert found == record
        return
    assert found == pair.one(record, "offload")
    assert pair.one(found, "inflate") == record


def test_inflate_then_wrap() -> None:
    """Whole values reach old consumers, with the record's own headers and none of the reference's."""
    pair = Pair()
    for record in (SMALL, LARGE, TOMBSTONE):
        assert pair.one(pair.one(record, "offload"), "inflate", "wrap") == wrapped(record)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_wrapper_carries_references(form: str, codec: str) -> None:
    """A reference passes a topic without headers in a wrapper, and is inflated behind it; in each format."""
    pair = Pair()
    keys = {"reference_format": form, "large_message_compression_type": codec}
    writing = {**STORE, "large.message.payload.store.class": "s3", "s3.bucket": "payloads"}
    dotted = {name.replace("_", "."): value for name, value in keys.items()}
    numbers = {"large.message.threshold.bytes": THRESHOLD}
    settings = parsed(["offload", "wrap"], {**writing, **dotted, **NAMED, **numbers}).pipelines[0]
    writer = build(settings, pair.store, sink(ROOMY), PipelineStats())
    for record in (SMALL, LARGE, TOMBSTONE):
        (carried,), _ = apply(writer, record)
        assert carried.headers == ()
        assert pair.one(carried, "unwrap", "inflate", **keys) == record


def test_tombstones_pass_wrap_where_they_are_to() -> None:
    """With `wrap.on.null.value = "pass"` a tombstone needs no work."""
    chain = Pair().chain("wrap", wrap_on_null_value="pass")
    assert chain.passes(TOMBSTONE)
    assert not chain.passes(SMALL)


def test_plain_and_wrapped_values_mixed() -> None:
    """Plain values pass, or are errors; plain tombstones always pass."""
    pair = Pair()
    plain = pair.chain("unwrap", unwrap_on_plain_value="pass")
    assert plain.passes(SMALL)
    assert plain.passes(TOMBSTONE)
    assert not plain.passes(wrapped(SMALL))
    strict = pair.chain("unwrap")
    assert strict.passes(TOMBSTONE)
    with pytest.raises(MalformedWrapperError):
        apply(strict, SMALL)


def test_both_are_counted() -> None:
    """The names of the stages that had work are told, so that they can be counted."""
    pair = Pair()
    assert apply(pair.chain("unwrap"), wrapped(SMALL))[1] == ("unwrap",)
    assert apply(pair.chain("unwrap", "offload"), wrapped(LARGE))[1] == ("unwrap", "offload")
    assert apply(pair.chain("unwrap", "offload"), TOMBSTONE)[1] == ()
    assert apply(pair.chain("offload", "wrap"), SMALL)[1] == ("wrap",)


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
    pair = Pair()
    record = Record(b"k", b"v" * 5_000, HEADERS)
    with pytest.raises(RecordTooLargeError, match="topic orders takes 2,000"):
        apply(pair.chain("wrap", limit=2_000), record)
    chunks, applied = apply(pair.chain("wrap", "chunk", limit=2_000), record)
    assert applied == ("wrap", "chunk")
    assert b"".join(chunk.value or b"" for chunk in chunks) == wrapped(record).value


def test_unmapped_headers_fail_or_are_dropped() -> None:
    """A header without a key is an error of the record, or is left out."""
    record = dataclasses.replace(SMALL, headers=(*HEADERS, ("other", b"1")))
    with pytest.raises(WrapError, match=re.escape("the header 'other': no int key has this name")):
        Pair().one(record, "wrap")
    assert Pair().one(record, "wrap", wrap_on_unmapped_header="drop") == wrapped(SMALL)


def test_a_wrapper_in_a_wrapper_loses_one() -> None:
    """Each `unwrap` takes one off."""
    twice = Record(b"k", MessageWrapper({}, wrapped(SMALL).value).serialize(), (), 7)
    assert Pair().one(twice, "unwrap") == wrapped(SMALL)
