"""The worker between bakdata's serializers and ours: a real broker and S3 server, and the bytes of their releases."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from tests.forks import run
from tests.integration.topics import Found, Sent, read_all, send
from tests.integration.way import THRESHOLD, Way, digests, expected, mixed
from tests.integration.worker_process import WorkerProcess, until
from tests.s3_server import S3Server, S3UnavailableError, s3_server
from tests.vectors.bakdata import BakdataCase, bakdata_cases
from transforms.compression import CODECS
from transforms.formats import FORMATS, FormatName
from transforms.record import Record

FOREIGN: tuple[FormatName, ...] = ("bakdata-headers", "bakdata-flag")
TIME = 1_700_000_000_000

pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with the bucket that the vectors name."""
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(s3_server("versitygw", tmp_path_factory.mktemp("s3")))
        except S3UnavailableError as exc:
            pytest.skip(str(exc))


@pytest.fixture
def make_s3_way(make_way: Callable[..., Way], server: S3Server) -> Callable[..., Way]:
    """As `make_way`, with the server for a store."""

    def make(prefix: str) -> Way:
        way = make_way(partitions=1)
        way.store = {"large.message.payload.store.class": "s3", **server.config(prefix)}
        return way

    return make


def store_theirs(server: S3Server, cases: list[BakdataCase]) -> None:
    """Puts the objects of the vectors where their records say."""
    with contextlib.closing(server.client()) as client:
        for path, data in (case.stored for case in cases if case.stored is not None):
            bucket, _, key = path.removeprefix("s3://").partition("/")
            client.put_object(Bucket=bucket, Key=key, Body=data)


def sent(record: Record) -> Sent:
    """The record as it is sent to the only partition."""
    return 0, record.key, record.value, record.headers, TIME


def whole(found: Found) -> Record:
    """What was read, as a record."""
    return Record(found.key, found.value, found.headers, found.timestamp)


def plain(case: BakdataCase) -> Record:
    """What a vector should come to, with the time at which it was sent."""
    return Record(case.plain.key, case.plain.value, case.plain.headers, TIME)


def command(worker: WorkerProcess, *arguments: str) -> tuple[int, list[dict[str, object]]]:
    """Status and JSON lines of a command, run with the worker's configuration."""
    done = run([sys.executable, "-m", "app.cli", *arguments, "-c", str(worker.config)])
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def named(pipelines: Mapping[str, dict[str, object]], suffix: str) -> dict[str, dict[str, object]]:
    """The pipelines, with names of their own among those of other ways."""
    return {f"{name}-{suffix}": keys for name, keys in pipelines.items()}


def test_worker_inflates_what_bakdata_wrote(make_s3_way: Callable[[str], Way], server: S3Server) -> None:
    """A topic as their producer writes it comes out as its producer meant it, and can be looked at on the way."""
    ways: dict[FormatName, Way] = {}
    pipelines: dict[str, dict[str, object]] = {}
    cases = {name: [case for case in bakdata_cases() if case.format == name] for name in FOREIGN}
    for name in FOREIGN:
        store_theirs(server, cases[name])
        way = ways[name] = make_s3_way("base")
        send(way.broker, way.orders, [sent(case.wire) for case in cases[name]])
        pipelines |= named(way.inflate(**{"reference.format": name}), name)
    with WorkerProcess(way.folder, way.settings(), pipelines) as worker:
        for name, way in ways.items():
            until(partial(way.arrived, len(cases[name])), "all records have arrived")
            stored = sum(case.stored is not None for case in cases[name])
            own = "--pipeline", f"inflate-{name}", "--json"
            (page,) = [page for page in worker.get("/pipelines")[1] if page["name"] == f"inflate-{name}"]
            assert (page["records_in"], page["inflated_records"]) == (len(cases[name]), stored)
            status, (*_, last) = command(worker, "inspect", way.orders, *own)
            summary: Any = last["summary"]
            assert (status, summary["references"], summary["payloads"]) == (0, stored, {"ok": stored})
            status, lines = command(worker, "consume", way.orders, "--from-beginning", "-e", "--inflate", *own)
            sizes = [None if case.plain.value is None else len(case.plain.value) for case in cases[name]]
            assert (status, [line["size"] for line in lines]) == (0, sizes)
            assert sum(bool(line["inflated"]) for line in lines) == stored
        assert worker.terminate() == 0
    for name, way in ways.items():
        assert [whole(found) for found in read_all(way.broker, way.inflated)[0]] == [
            plain(case) for case in cases[name]
        ]


@pytest.mark.parametrize("name", FOREIGN)
def test_worker_offloads_for_bakdata(make_s3_way: Callable[[str], Way], name: FormatName) -> None:
    """Mixed records are all written in the format, small ones too, and come out identical, with every codec."""
    records: list[Sent] = [
        *mixed(200, seed=7, partitions=1),
        (0, b"k", b"line\n" * THRESHOLD, [], 1),
        (0, b"k", None, [], 1),
    ]
    ways: dict[str, Way] = {}
    pipelines: dict[str, dict[str, object]] = {}
    for codec in ("none", *CODECS):
        way = ways[codec] = make_s3_way(f"offloaded-{codec}")
        send(way.broker, way.raw, records)
        keys = {"reference.format": name, "large.message.compression.type": codec}
        pipelines |= named({**way.offload(**keys), **way.inflate(**keys)}, codec)
    with WorkerProcess(way.folder, way.settings(), pipelines) as worker:
        for way in ways.values():
            until(partial(way.arrived, len(records)), "all records have arrived")
        assert worker.terminate() == 0
    form = FORMATS[name]
    for way in ways.values():
        assert digests(read_all(way.broker, way.inflated)) == expected(records)
        for found, (_, _, value, _, _) in zip(read_all(way.broker, way.orders)[0], records, strict=True):
            record = whole(found)
            assert form.wants(record) is (value is not None)
            assert form.refers(record) is (value is not None and len(value) > THRESHOLD)
