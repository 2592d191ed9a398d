"""The worker takes wrappers off and puts them on: real broker, and clients that write and read no headers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.integration.limits import set_configs
from tests.integration.topics import Found, Sent, end_offsets, read_all, send
from tests.integration.way import THRESHOLD, MakeWay, Way, reason_of
from tests.integration.worker_process import WorkerProcess, until
from transforms.record import Record
from transforms.wrapper import HeaderTable, Wrap

TIME = 1_700_000_000_000
NAMED = {"wrapper.header.3000001": "trace-id"}
WRAP = Wrap(HeaderTable({3_000_001: "trace-id"}))
HEADERS = (("trace-id", b"t"), ("wrapper.header.77", b""))
SIZES = (0, 1, THRESHOLD, THRESHOLD + 1, 300_000)
RECORDS = [
    *(Record(b"%d" % size, b"v" * size, HEADERS, TIME) for size in SIZES),
    Record(b"tombstone", None, HEADERS, TIME),
    Record(b"no headers", b"v", (), TIME),
    Record(None, None, HEADERS[:1], TIME),
]


@pytest.fixture
def way(make_way: MakeWay) -> Way:
    """Topics of one partition, and a store."""
    return make_way(partitions=1)


def sent(record: Record) -> Sent:
    """The record as it is sent to the only partition."""
    return 0, record.key, record.value, record.headers, record.timestamp


def whole(found: list[Found]) -> list[Record]:
    """What was read, as records."""
    return [Record(each.key, each.value, each.headers, each.timestamp) for each in found]


@contextmanager
def running(way: Way, **pipelines: dict[str, object]) -> Iterator[WorkerProcess]:
    """A worker with these pipelines, given by their keys, which ends well."""
    tables = {
        name: {"group.id": way.group(name), "offset.flush.interval.ms": 200, **NAMED, **keys}
        for name, keys in pipelines.items()
    }
    with WorkerProcess(way.folder, way.settings(), tables) as worker:
        yield worker
        assert worker.terminate() == 0


def piped(source: str, sink: str, *transforms: str, **more: object) -> dict[str, object]:
    """The keys of a pipeline."""
    return {"topics": [source], "output.topic": sink, "transforms": list(transforms), **more}


def stored(way: Way) -> dict[str, object]:
    """The keys of a pipeline that offloads."""
    return {"large.message.threshold.bytes": THRESHOLD, **way.store}


def counts(worker: WorkerProcess) -> dict[str, dict[str, Any]]:
    """What /pipelines says, by pipeline."""
    return {page["name"]: page for page in worker.get("/pipelines")[1]}


def test_wrapped_records_are_offloaded_and_wrapped_again(way: Way) -> None:
    """`unwrap, offload` and `inflate, wrap`: what clients without headers wrote is what those without headers read."""
    wrappers = [WRAP.wrap(record) for record in RECORDS]
    send(way.broker, way.raw, map(sent, wrappers))
    with running(
        way,
        one=piped(way.raw, way.orders, "unwrap", "offload", **stored(way)),
        two=piped(way.orders, way.inflated, "inflate", "wrap", **stored(way)),
    ) as worker:
        until(lambda: way.arrived(len(RECORDS)), "all records have arrived")
        pages = counts(worker)
        metrics = worker.text("/metrics")
    assert whole(read_all(way.broker, way.inflated)[0]) == wrappers
    between = whole(read_all(way.broker, way.orders)[0])
    small = [record for record in RECORDS if len(record.value or b"") <= THRESHOLD]
    assert [record for record in between if ("large-message", b"true") not in record.headers] == small
    assert len(between) == len(RECORDS) == len(small) + 2
    assert (pages["one"]["unwrapped_records"], pages["one"]["offloaded_records"]) == (len(RECORDS), 2)
    assert (pages["two"]["wrapped_records"], pages["two"]["inflated_records"]) == (len(RECORDS), 2)
    for name, pipeline in (("unwrapped", "one"), ("wrapped", "two")):
        assert f'wideload_{name}_records_total{{pipeline="{pipeline}"}} {len(RECORDS)}.0' in metrics


@pytest.mark.parametrize("large", ["offload", "chunk"])
def test_wrappers_carry_what_is_large(way: Way, large: str) -> None:
    """`offload, wrap`, or `wrap, chunk`, and back: all records come back; references need no header between."""
    send(way.broker, way.raw, map(sent, RECORDS))
    first = ["offload", "wrap"] if large == "offload" else ["wrap", "chunk"]
    last = ["unwrap", "inflate"] if large == "offload" else ["assemble", "unwrap"]
    keys = stored(way) if large == "offload" else {"chunk.max.bytes": 10_000}
    one = piped(way.raw, way.orders, *first, **keys)
    two = piped(way.orders, way.inflated, *last, **(stored(way) if large == "offload" else {}))
    with running(way, one=one, two=two):
        until(lambda: way.arrived(len(RECORDS)), "all records have arrived")
    assert whole(read_all(way.broker, way.inflated)[0]) == RECORDS
    between = read_all(way.broker, way.orders)[0]
    if large == "offload":
        assert {found.headers for found in between} == {()}
        assert max(len(found.value or b"") for found in between) < THRESHOLD + 100
    else:
        assert len(between) > len(RECORDS) + 30


def test_wrapped_and_plain_values_mixed(way: Way) -> None:
    """Where plain values may pass, all arrive in order; where not, those that are no wrapper are dead letters."""
    plain = [Record(b"k", value, HEADERS, TIME) for value in (b"plain", b"", b"\0\0\0\0\0\0\0\0", None)]
    expected = [each for pair in zip(RECORDS, itertools.cycle(plain), strict=False) for each in pair]
    mixed = [each if each in plain else WRAP.wrap(each) for each in expected]
    send(way.broker, way.raw, map(sent, mixed))
    with running(
        way,
        passing=piped(way.raw, way.inflated, "unwrap", **{"unwrap.on.plain.value": "pass"}),
        failing=piped(way.raw, way.orders, "unwrap", **way.tolerant),
    ) as worker:
        until(lambda: way.arrived(len(mixed)), "all records have arrived")
        bad = sum(record in plain[:3] for record in mixed)
        until(lambda: end_offsets(way.broker, way.dead)[0] == bad, "the dead letters have arrived")
        until(lambda: end_offsets(way.broker, way.orders)[0] == len(mixed) - bad, "the others have arrived")
        assert counts(worker)["passing"]["unwrapped_records"] == len(RECORDS)
    assert whole(read_all(way.broker, way.inflated)[0]) == expected
    assert whole(read_all(way.broker, way.orders)[0]) == [record for record in expected if record not in plain[:3]]
    assert all(reason_of(found).startswith("malformed wrapper: ") for found in read_all(way.broker, way.dead)[0])


def test_a_topic_that_is_compacted_later_is_refused_then(way: Way) -> None:
    """A pipeline that would keep deleted keys, or lose chunks, waits as soon as the topic is compacted, and says why.

    It goes on once the topic is as it was; what was written before is written once.
    """
    records = [Record(b"%d" % number, b"v", HEADERS, TIME) for number in range(3)]
    piping = {
        "wrapping": piped(way.raw, way.orders, "wrap"),
        "joining": piped(way.orders, way.inflated, "assemble", "unwrap"),
        "passing": piped(way.raw, way.orders, "wrap", **{"wrap.on.null.value": "pass"}),
    }
    rarely = {"offset.flush.interval.ms": 60_000, "errors.retry.delay.max.ms": 500}
    tables = {name: {"group.id": way.group(name), **NAMED, **rarely, **keys} for name, keys in piping.items()}
    worker = WorkerProcess(way.folder, way.settings(), tables)
    worker.constants = {"app.pipeline.topic_watcher:_LOOK_S": 0.25}
    with worker:
        send(way.broker, way.raw, [sent(records[0])])
        until(lambda: way.arrived(2), "the first has come both ways")
        asyncio.run(set_configs(way.broker, way.orders, {"cleanup.policy": "compact"}))
        told = f"topic {way.orders} has cleanup.policy compact"
        for name, reason in (
            ("wrapping", f"wrap.on.null.value: found 'wrap', and {told}"),
            ("joining", f"topics: {told}; the chunks of a value"),
        ):
            until(lambda: str(counts(worker)[name]["last_error"]).startswith(reason), f"{name} is refused")  # noqa: B023
            assert counts(worker)[name]["state"] == "RESTARTING"
        assert told in str(worker.get("/health")[1]["reasons"])
        running_again = 1, "RUNNING"
        until(
            lambda: tuple(counts(worker)["passing"][each] for each in ("restarts", "state")) == running_again,
            "the one that may goes on",
        )
        send(way.broker, way.raw, [sent(records[1])])
        until(lambda: end_offsets(way.broker, way.orders)[0] == 3, "it has written the second")
        asyncio.run(set_configs(way.broker, way.orders, {"cleanup.policy": "delete"}))
        until(lambda: way.arrived(4), "the second has come both ways")
        until(lambda: worker.get("/health")[1]["status"] == "ok", "all is well again")
        assert worker.terminate() == 0
        log = worker.log.read_text()
    assert f"cleanup.policy of topic {way.orders} is compact, and was delete" in log
    assert sorted(found.key or b"" for found in read_all(way.broker, way.inflated)[0]) == [b"0"] * 2 + [b"1"] * 2
