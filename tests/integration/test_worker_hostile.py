"""What anybody may have written to a topic, through the worker: refused before the store is asked, counted, buried."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from tests.built_batches import repacked, rows_of
from tests.integration.odd_batches import produce
from tests.integration.topics import Sent, committed, read_all, send
from tests.integration.way import MakeWay, reason_of
from tests.integration.worker_process import WorkerProcess, until
from tests.stores.scripted_server import Request, Wire, error, scripted_server
from tests.transforms.test_inflate import bomb
from transforms.chunk import Chunk
from transforms.record import Header, Record
from transforms.record_batch import pack
from transforms.reference import KEY, VALUE

STAMP = 1_700_000_000_123
FLAG: Header = (VALUE.flag, b"true")
HERE, THERE = "s3://payloads/ours/", "s3://payloads/theirs/"
BODIES = {"short": b"123", "long": bytes(1_000_000), "bomb": bomb("zstd"), "noise": b"\xff" * 10}


def serve(request: Request, wire: Wire) -> bool:
    """A bucket that is there, with a few payloads that are not what they should be."""
    name = request.path.partition("?")[0].rpartition("/")[2]
    if request.method == "GET" and name in BODIES:
        body = BODIES[name]
        wire.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n%b' % (len(body), body))
        return True
    if request.method == "GET" and name in ("gone", "~wideload-check"):
        return error(404, "NoSuchKey")(request, wire)
    wire.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n')
    return True


def test_worker_buries_hostile_records(make_way: MakeWay) -> None:
    """Each forged record is a dead letter and counted by its reason; only those that may be asked for are asked for."""
    way = make_way(partitions=1)
    own = f"{HERE}{way.orders}/"
    refused = [
        f"s3://other/ours/{way.orders}/id",
        f"{THERE}{way.orders}/id",
        f"{HERE}salaries/id",  # another topic's
        f"{HERE}../{way.orders}/id",
        f"{own}..",
        f"{HERE}%2e%2e/id",
        f"{own}%2e%2e",
        f"{own}id\0",
        f"{own}id?versionId=1",
        f"{own}{'x' * 10_000}",
        "file:///etc/passwd",
        "http://169.254.169.254/latest/meta-data",
    ]
    malformed: list[tuple[bytes, list[Header]]] = [
        (own.encode() + b"x" * 1_000_000, []),
        (b"", []),
        (own.encode() + b"\xff\xfe", []),
        *((f"{own}id".encode(), [(VALUE.size, size)]) for size in (b"-1", b"9" * 20, b"1e3", None)),
        (f"{own}id".encode(), [(VALUE.checksum, b"md5:0")]),
        (f"{own}id".encode(), [(VALUE.size, b"1"), (VALUE.compression, b"brotli")]),
        (f"{own}id".encode(), [(VALUE.compression, b"gzip")]),  # no size, so no bound
    ]
    many: list[Header] = [(f"h{number}", b"x") for number in range(10_000)]
    read: list[tuple[str, list[Header]]] = [
        ("gone", []),
        ("short", [(VALUE.size, b"10")]),
        ("long", [(VALUE.size, b"10")]),
        ("bomb", [(VALUE.size, b"1000"), (VALUE.compression, b"zstd")]),
        ("noise", [(VALUE.size, b"10"), (VALUE.compression, b"snappy")]),
    ]
    records: list[Sent] = [
        (0, b"first", b"v", many, STAMP),
        *((0, b"refused", path.encode(), [*many, FLAG] if not n else [FLAG], STAMP) for n, path in enumerate(refused)),
        *((0, b"malformed", value, [FLAG, *more], STAMP) for value, more in malformed),
        (0, b"admits", f"{own}id".encode(), [FLAG, (VALUE.size, b"9" * 18)], STAMP),
        *((0, name.encode(), f"{own}{name}".encode(), [FLAG, *more], STAMP) for name, more in read),
        (0, b"last", b"v", [], STAMP),
    ]
    send(way.broker, way.orders, records[:9])
    for record in records[9:]:
        send(way.broker, way.orders, [record])
    with scripted_server(serve) as server:
        patient = server.config(s3_prefix="ours") | {"s3.connection.timeout.ms": 9_000, "s3.read.timeout.ms": 9_000}
        way.store = {"large.message.payload.store.class": "s3", "large.message.root": "topic", **patient}
        with WorkerProcess(way.folder, way.settings(), way.inflate(**way.tolerant)) as worker:
            worker.wait_ready()
            done = {0: len(records)}
            until(lambda: committed(way.broker, way.group("inflate"), way.orders) == done, "all are committed")
            page = worker.get("/pipelines")[1][0]
            metrics = worker.text("/metrics")
            assert worker.terminate() == 0
        asked = Counter(request.path.rpartition("/")[2] for request in server.requests if way.orders in request.path)
    assert set(asked) == {"~wideload-check", *(name for name, _ in read)}
    counts = {
        "malformed-reference": len(malformed),
        "payload-corrupt": 4,
        "payload-not-found": 1,
        "payload-too-large": 1,
        "reference-refused": len(refused),
    }
    assert page["failed_records"] == counts
    assert page["dead_letters"] == sum(counts.values())
    refusals = f'wideload_failed_records_total{{pipeline="inflate",reason="reference-refused"}} {len(refused)}.0'
    assert refusals in metrics
    assert [r.key for r in read_all(way.broker, way.inflated)[0]] == [b"first", b"last"]
    letters = read_all(way.broker, way.dead)[0]
    assert [(r.key, r.value, r.headers[: len(sent[3])]) for r, sent in zip(letters, records[1:-1], strict=True)] == [
        (key, value, tuple(headers)) for _, key, value, headers, _ in records[1:-1]
    ]


def test_worker_follows_no_reference_of_a_producer(make_way: MakeWay) -> None:
    """Who writes to the raw topic cannot have a payload read: the record comes out as it went in, or is a letter."""
    way = make_way(partitions=1)
    secret = Path(str(way.store["filesystem.root"]), "salaries", "secret")
    forged = [
        Record(b"forged", secret.as_uri().encode(), (("own", b"1"), FLAG), STAMP),
        Record(b"empty", b"", (FLAG,), STAMP),
        Record(b"chunk", b"v", Chunk("u", 0, 2, 9).headers(), STAMP),
        Record(b"tombstone", None, (FLAG,), STAMP),
        Record(b"small", b"v", (("own", b"1"),), STAMP),
    ]
    worker = WorkerProcess(way.folder, way.settings(), {**way.offload(**way.tolerant), **way.inflate()})
    secret.parent.mkdir()
    secret.write_bytes(b"all of them")
    with worker:
        for record in forged:  # alone in a batch, and together
            send(way.broker, way.raw, [sent(record)])
        send(way.broker, way.raw, [sent(record) for record in forged])
        until(lambda: committed(way.broker, way.group("offload"), way.raw) == {0: 10}, "all are offloaded")
        until(lambda: committed(way.broker, way.group("inflate"), way.orders) == {0: 8}, "all are inflated")
        assert worker.terminate() == 0
    passed = [record for record in forged if record.key != b"chunk"]
    for topic, names in ((way.inflated, passed * 2), (way.dead, [forged[2]] * 2)):
        found = read_all(way.broker, topic)[0]
        assert [
            (each.key, each.value, each.headers[: len(own.headers)]) for each, own in zip(found, names, strict=True)
        ] == [(own.key, own.value, own.headers) for own in names]
    assert reason_of(read_all(way.broker, way.dead)[0][0]) == (
        "the record has the headers of a chunk that this pipeline did not write; if its producer is trusted, put "
        '"assemble" first in transforms, or set offload.on.reference = "pass"'
    )


def test_worker_without_a_store_lets_no_claim_go_on(make_way: MakeWay) -> None:
    """What claims to be a reference or a chunk is a letter where values are split; a forged chunk ends no reader."""
    way = make_way(partitions=1)
    secret = Path(str(way.store["filesystem.root"]), "salaries", "secret")
    path = secret.as_uri().encode()
    forged = [
        Record(b"value", path, (FLAG,), STAMP),
        Record(path, b"v", ((KEY.flag, b"true"),), STAMP),
        Record(path, None, ((KEY.flag, b"true"),), STAMP),
        Record(b"long", path * 20_000, (FLAG,), STAMP),
        Record(b"chunk", b"v", Chunk("u", 0, 2, 9).headers(), STAMP),
    ]
    torn = Record(b"torn", b"v", Chunk("u", 1, 2, 9).headers(), STAMP)  # in the topic of chunks itself
    begin = {"consumer.auto.offset.reset": "earliest"}  # its output topic was written to
    offload = way.offload(**way.tolerant, **begin, **{"large.message.strategy": "chunk"})
    for name in ("large.message.threshold.bytes", *way.store):
        del offload["offload"][name]
    secret.parent.mkdir()
    secret.write_bytes(b"all of them")
    send(way.broker, way.orders, [sent(torn), (0, b"first", b"v", [], STAMP)])
    send(way.broker, way.raw, [*map(sent, forged), (0, b"last", b"v", [], STAMP)])
    with WorkerProcess(way.folder, way.settings(), {**offload, **way.inflate(**way.tolerant)}) as worker:
        until(lambda: committed(way.broker, way.group("inflate"), way.orders) == {0: 3}, "all are inflated")
        pages = {page["name"]: page for page in worker.get("/pipelines")[1]}
        assert worker.terminate() == 0
    assert [record.key for record in read_all(way.broker, way.inflated)[0]] == [b"first", b"last"]
    assert pages["offload"]["failed_records"] == {"reference-claimed": len(forged)}
    assert pages["inflate"]["dead_letters"] == 1
    letters = {(each.key, each.value, each.headers[:1]) for each in read_all(way.broker, way.dead)[0]}
    assert letters == {(each.key, each.value, tuple(each.headers[:1])) for each in (*forged, torn)}


def sent(record: Record) -> Sent:
    """The record, for `send`."""
    return 0, record.key, record.value, record.headers, record.timestamp


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def test_worker_buries_what_would_fill_its_memory(make_way: MakeWay) -> None:
    """A record of a million headers, a batch of KBs that holds 200 MiB: letters, in little memory; the others go on."""
    way = make_way(partitions=1)
    crowded = Record(b"crowded", None, (("", None),) * 1_000_000, STAMP)
    before, behind = Record(b"before", b"v", (), STAMP), Record(b"behind", b"v", (), STAMP)
    bomb = repacked(bytes(pack([before, Record(b"bomb", bytes(200 * 1_048_576), (), STAMP)])), "zstd")
    batches = [bytes(pack([before, crowded, behind])), bomb, bytes(pack([replace(before, key=b"last")]))]
    head = way.settings() | {"in.flight.bytes": 10_000_000}
    with WorkerProcess(way.folder, head, way.offload(**way.tolerant)) as worker:
        worker.wait_ready()
        assert worker.process is not None
        pid = worker.process.pid
        began = peak_bytes(pid)
        assert produce(way.broker, way.raw, batches) == 3
        until(lambda: committed(way.broker, way.group("offload"), way.raw) == {0: 6}, "all are committed")
        page = worker.get("/pipelines")[1][0]
        grown = peak_bytes(pid) - began
        assert worker.terminate() == 0
    assert grown < 100_000_000  # of which 64 MiB are looked at
    assert page["failed_records"] == {"too-many-headers": 1, "batch-too-large": 1}
    assert (page["records_in"], page["dead_letters"]) == (6, 2)
    assert [record.key for record in read_all(way.broker, way.orders)[0]] == [b"before", b"behind", b"last"]
    first, second = read_all(way.broker, way.dead)[0]
    assert (first.key, second.key) == (None, None)
    assert (second.value or b"")[61:] == bomb[61:]  # the broker writes into the header
    ((offset, alone),) = rows_of(first.value or b"")
    assert (offset, alone) == (1, crowded)
    told = [dict(each.headers) for each in (first, second)]
    assert [each["wideload.dead-letter"] for each in told] == [b"batch", b"batch"]
    assert [each["__connect.errors.offset"] for each in told] == [b"1", b"4"]
    assert reason_of(first) == "malformed record: headers is '1,000,000'; allowed: at most 65,536"
    assert reason_of(second) == (
        "the batch of offsets 3 to 4 holds more than 67,108,864 bytes before compression; allowed are "
        "in.flight.bytes, or 64 MiB if that is more"
    )
