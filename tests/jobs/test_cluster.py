"""The jobs on Spark's standalone cluster: executors in their own processes, and one of them killed in the middle.

`make test` runs `backfill`, on a cluster whose master and workers live in the driver. `make cluster-test` runs all, on
one whose master and workers are processes.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from stores.registry import get, open_store, put
from tests.integration.topics import end_offsets, read_all, send
from tests.spark_cluster import Cluster, local_cluster, spark_cluster
from transforms.formats import WIDELOAD
from transforms.inflate import Inflate
from transforms.offload import Offload
from transforms.record import Record
from transforms.reference import Reference, is_reference

pytestmark = [pytest.mark.slow, pytest.mark.chaos]
_WHOLE = "WIDELOAD_CLUSTER" in os.environ
only_whole = pytest.mark.skipif(not _WHOLE, reason="only with `make cluster-test`")

INFLATE = """
import json, sys
from pyspark.sql import SparkSession, functions as F
from wideload.jobs.inflate import inflate

servers, topic, root, output = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true"}
source = spark.read.format("kafka").options(**options).load()
store = {"large.message.payload.store.class": "filesystem", "filesystem.root": root}
inflate(source, store).write.parquet(output)

def where(_):
    import jobs
    return [jobs.__file__]

print(json.dumps(spark.sparkContext.parallelize(range(2), 2).mapPartitions(where).collect()))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers."""
    folder = tmp_path_factory.mktemp("cluster")
    if not _WHOLE:
        yield local_cluster(folder)
        return
    with spark_cluster(folder) as found:
        yield found


def values(count: int) -> list[bytes]:
    chance = random.Random(7)
    return [chance.randbytes(5_000 if number % 2 else 4_000) for number in range(count)]


@only_whole
def test_inflate_loses_executor(cluster: Cluster, broker: str, make_topic: Callable[..., str], tmp_path: Path) -> None:
    """An executor is killed in the middle of `inflate`: each record is in the output once, with its own value."""
    topic, wanted, work = make_topic(4), values(400), Offload(0)
    sent = []
    with closing(open_store(_files(cluster))) as store:
        for number, value in enumerate(wanted):
            payload = work.payload(value)
            reference = payload.reference(put(store, topic, payload.checksum, payload.data))
            record = work.refer(Record(b"%d" % number, value), reference)
            sent.append((number % 4, record.key, record.value, record.headers, 1))
    send(broker, topic, sent)
    (cluster.folder / "programs" / "inflate_topic.py").write_text(INFLATE)
    cluster.close_gate(hashlib.sha256(wanted[201]).hexdigest())
    told = cluster.run("inflate_topic.py", broker, topic, str(cluster.payloads), str(tmp_path / "out"))
    assert all("jobs.zip" in place for place in json.loads(told)), told
    rows = pq.read_table(tmp_path / "out", columns=["key", "value"]).to_pylist()
    assert sorted((int(row["key"]), row["value"]) for row in rows) == list(enumerate(wanted))


@only_whole
def test_sweep_loses_executor(cluster: Cluster, broker: str, make_topic: Callable[..., str]) -> None:
    """An executor is killed while `sweep --delete` removes: every orphan goes, and no live payload does."""
    topic, names = make_topic(2), [hashlib.sha256(b"%d" % number).hexdigest() for number in range(3_000)]
    folder = cluster.payloads / topic
    folder.mkdir(parents=True)
    then = time.time() - 86_400 * 2
    for name in names:
        (folder / name).write_bytes(b"payload")
        os.utime(folder / name, (then, then))
    live = sorted(names[::3])
    records = [WIDELOAD.write_reference(Record(b"k", b"?"), Reference(f"file://{folder}/{name}", 7)) for name in live]
    send(broker, topic, [(number % 2, r.key, r.value, list(r.headers), 1) for number, r in enumerate(records)])
    cluster.close_gate(names[1_001])
    options = ["--bootstrap-servers", broker, "--topic", topic, *cluster.store, "--max-delete-fraction", "0.9"]
    summary = json.loads(cluster.run("sweep.py", *options, "--delete"))
    assert sorted(file.name for file in folder.iterdir()) == live
    assert (summary["status"], summary["topics"][topic]["orphans"]) == ("done", 2_000)
    assert set(summary["outcomes"]) <= {"deleted", "gone"}


def test_backfill_loses_executor(cluster: Cluster, broker: str, make_topic: Callable[..., str], tmp_path: Path) -> None:
    """An executor is killed in the middle of a range of `backfill`, behind records that the sink has already.

    Readers of what is committed find each record once, in order; the store has the payloads of the records alone.
    """
    source, sink, chance = make_topic(2), make_topic(2), random.Random(7)
    # Most go as they are, so that the sink gets a batch of a megabyte before the gate.
    wanted = [chance.randbytes(25_000 if number % 8 > 5 else 20_000) for number in range(400)]
    send(broker, source, [(n % 2, b"%d" % n, value, (), 1_600_000_000_000 + n) for n, value in enumerate(wanted)])
    cluster.close_gate(hashlib.sha256(wanted[399]).hexdigest())
    options = ["--bootstrap-servers", broker, "--source", source, "--sink", sink, "--to", "references", *cluster.store]
    pace = ["--threshold-bytes", "22000", "--max-range-records", "100", "--checkpoint", str(tmp_path / "checkpoint")]

    def uncommitted() -> bool:
        return end_offsets(broker, sink)[1] > 100 + 1  # the first range and its end

    summary = json.loads(cluster.run("backfill.py", *options, *pace, before=uncommitted))
    assert (summary["status"], summary["written"], summary["left"]) == ("done", len(wanted), 0)
    work, found = Inflate(), read_all(broker, sink, "read_committed")
    with closing(open_store(_files(cluster))) as store:
        for number, rows in found.items():
            there = []
            for row in rows:
                record = Record(row.key, row.value, row.headers, row.timestamp)
                if is_reference(record.headers):
                    inflation = work.begin(record)
                    stored = get(store, inflation.reference.path, inflation.stored_limit_bytes)
                    record = work.finish(record, inflation, stored)
                there.append((record.key, record.value, row.timestamp))
            expected = [(b"%d" % n, wanted[n], 1_600_000_000_000 + n) for n in range(number, len(wanted), 2)]
            assert there == expected
    assert len(read_all(broker, sink)[1]) > len(found[1])  # those of the executor that was killed
    payloads = sorted(hashlib.sha256(value).hexdigest() for value in wanted if len(value) > 22_000)
    left = [file.name for file in (cluster.payloads / sink).iterdir() if not file.name.startswith("~")]  # cut writes
    assert sorted(left) == payloads


def _files(cluster: Cluster) -> dict[str, object]:
    """The same store without its gate."""
    root = str(cluster.payloads)
    return {
        "large.message.payload.store.class": "filesystem",
        "filesystem.root": root,
        "filesystem.fsync": False,
    }
