"""The worker between bakdata's serializers and ours: a real broker and S3 server, and the bytes of their releases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.integration.command_line import lines, wideload
from tests.integration.topics import Found, Sent, read_all, send
from tests.integration.way import THRESHOLD, Way, digests, expected, mixed
from tests.integration.worker_process import WorkerProcess, until
from tests.s3_server import S3Server, s3_server_or_skip
from tests.vectors.bakdata import BakdataCase, bakdata_cases
from transforms.formats import FORMATS, FormatName
from transforms.record import Record

FOREIGN: tuple[FormatName, ...] = ("bakdata-headers", "bakdata-flag")
TIME = 1_700_000_000_000

pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with the bucket that the vectors name."""
    with s3_server_or_skip("versitygw", tmp_path_factory.mktemp("s3")) as server:
        yield server


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


def test_worker_inflates_what_bakdata_wrote(make_s3_way: Callable[[str], Way], server: S3Server) -> None:
    """A topic as their producer writes it comes out as its producer meant it, and can be looked at on the way."""
    ways: dict[FormatName, Way] = {}
    pipelines: dict[str, dict[str, object]] = {}
    cases = {name: [case for case in bakdata_cases() if case.format == name] for name in FOREIGN}
    for name in FOREIGN:
        store_theirs(server, cases[name])
        way = ways[name] = make_s3_way("base")
        send(way.broker, way.orders, [sent(case.wire) for case in cases[name]])
        pipelines[f"inflate-{name}"] = way.inflate(**{"reference.format": name})["inflate"]
    with WorkerProcess(way.folder, way.settings(), pipelines) as worker:
        for name, way in ways.items():
            until(partial(way.arrived, len(cases[name])), "all records have arrived")
            stored = sum(case.stored is not None for case in cases[name])
            own = "--pipeline", f"inflate-{name}", "--json", "-c", worker.config
            (page,) = [page for page in worker.get("/pipelines")[1] if page["name"] == f"inflate-{name}"]
            assert (page["records_in"], page["inflated_records"]) == (len(cases[name]), stored)
            summary = lines(wideload("inspect", way.orders, *own))[-1]["summary"]
            assert (summary["references"], summary["payloads"]) == (stored, {"ok": stored})
            shown = lines(wideload("consume", way.orders, "--from-beginning", "-e", "--inflate", *own))
            sizes = [None if case.plain.value is None else len(case.plain.value) for case in cases[name]]
            assert [line["size"] for line in shown] == sizes
            assert sum(bool(line["inflated"]) for line in shown) == stored
        assert worker.terminate() == 0
    for name, way in ways.items():
        assert [whole(found) for found in read_all(way.broker, way.inflated)[0]] == [
            plain(case) for case in cases[name]
        ]


@pytest.mark.parametrize("name", FOREIGN)
def test_worker_offloads_for_bakdata(make_s3_way: Callable[[str], Way], name: FormatName) -> None:
    """Mixed records are all written in the format, small ones too, and come out identical."""
    records: list[Sent] = [
        *mixed(200, seed=7, partitions=1),
        (0, b"k", b"line\n" * THRESHOLD, [], 1),
        (0, b"k", None, [], 1),
    ]
    way = make_s3_way("offloaded")
    send(way.broker, way.raw, records)
    with way.worker(**{"reference.format": name, "large.message.compression.type": "zstd"}) as worker:
        until(lambda: way.arrived(len(records)), "all records have arrived")
        assert worker.terminate() == 0
    assert digests(read_all(way.broker, way.inflated)) == expected(records)
    form = FORMATS[name]
    for found, (_, _, value, _, _) in zip(read_all(way.broker, way.orders)[0], records, strict=True):
        record = whole(found)
        assert form.wants(record) is (value is not None)
        assert form.refers(record) is (value is not None and len(value) > THRESHOLD)
