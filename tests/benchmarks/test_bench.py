from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from app.local import spark_start
from benchmarks.chunks import PENDING_MIB
from benchmarks.memory import BUDGET_MIB
from benchmarks.result import TARGETS

_REPOSITORY = Path(__file__).resolve().parents[2]
_CELLS = ("passthrough.zstd.1m.1p", "passthrough.none.16k.4p")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "passthrough": (*_CELLS, "passthrough.vs_faust_agent"),
    "exactly_once": ("exactly_once.1p",),
    "s3clients": ("s3clients.*.64k", "s3clients.https.ranges"),
}
_RECORDS = {
    "passthrough": 3_000,
    "exactly_once": 3_000,
    "latency": 100,
    "offload": 6,
    "s3clients": 1,
    "chunks": 5,
    "clients": 10,
    "memory": 12,
    "batches": 250,
    "sweep": 400,
    "spark_inflate": 3,
}
_CORES = os.cpu_count() or 1
_LIMIT_S = 3_600  # a guard against hanging


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("WIDELOAD_BENCH" not in os.environ, reason="only with `make bench-test`"),
]


@dataclass(frozen=True)
class _Measured:
    """What one run of the benchmark gave: the results by name, and what it printed."""

    rows: Mapping[str, Mapping[str, float]]
    printed: str

    def of(self, scenario: str) -> Mapping[str, Mapping[str, float]]:
        """The results of a scenario."""
        return {name: row for name, row in self.rows.items() if name.startswith(f"{scenario}.")}

    def said(self, contender: str, speed: str) -> bool:
        """Whether the line of a contender has the speed."""
        line = rf"^  {re.escape(contender)} +{re.escape(speed)} "
        return re.search(line, self.printed, re.MULTILINE) is not None


@pytest.fixture(scope="module")
def measured(broker: str, tmp_path_factory: pytest.TempPathFactory) -> _Measured:
    """The scenarios in one process, with few records; the command ends with 1 where one of them moved wrong data."""
    folder = tmp_path_factory.mktemp("bench")
    output = folder / "bench.json"
    wanted = [part for name in _RECORDS for part in _PARTS.get(name, (name,))]
    options = [part for each in wanted for part in ("--only", each)]
    options += [part for name, count in _RECORDS.items() for part in ("--records", f"{name}={count}")]
    (folder / "spark-defaults.conf").write_text(
        "spark.python.daemon.module tests.spark_daemon\nspark.sql.shuffle.partitions 1\nspark.ui.enabled false\n"
        "spark.sql.codegen.wholeStage false\nspark.sql.codegen.factoryMode NO_CODEGEN\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", *options, "--repeat", "1", "--output", str(output)],
        cwd=_REPOSITORY,
        env={
            **os.environ,
            "KAFKA_BOOTSTRAP_SERVERS": broker,
            "SPARK_CONF_DIR": str(folder),
            **spark_start.environ(short_run=True),
        },
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads((folder / "bench-machine.json").read_text())["cores"] == os.cpu_count()
    rows = json.loads(output.read_text())
    return _Measured({row["name"]: row for row in rows}, ended.stdout)


def test_bench_results(measured: _Measured) -> None:
    """Each result is in the file and in the table; of one round, the ratio is that of both numbers."""
    scenarios = {name.partition(".")[0] for name in measured.rows}
    assert scenarios - {"inflate"} == {"spark" if name == "spark_inflate" else name for name in _RECORDS}
    for name, row in measured.rows.items():
        assert set(row) == {"name", "value", "unit", "against", "ratio"}
        assert name in measured.printed
        assert (row["against"] is None) is (row["ratio"] is None)
        if row["ratio"] is not None:
            ratio = row["value"] / row["against"]
            assert row["ratio"] == pytest.approx(1 / ratio if name.startswith("clients.") else ratio)
        assert row["value"] > 0 or name in {"batches.split_percent", "latency.added_p99_ms"}


def test_bench_passthrough(measured: _Measured) -> None:
    """Records of the cells that were asked for pass each contender, arrive as they were, and give the numbers."""
    rows = measured.of("passthrough")
    loops = {"vs_java": "Java", "vs_librdkafka": "librdkafka", "vs_aiokafka": "aiokafka"}
    against = {f"{cell}.{name}": contender for cell in _CELLS for name, contender in loops.items()}
    against["passthrough.vs_faust_agent"] = "Faust agent"
    assert set(rows) == {*against, *(f"{cell}.cpu_vs_librdkafka" for cell in _CELLS)}
    assert measured.printed.count("3,000 records of 1 KiB in batches of ") == len(_PARTS["passthrough"])
    for name, contender in against.items():
        assert measured.said("worker", f"{rows[name]['value']:,.0f} records/s")
        assert measured.said(contender, f"{rows[name]['against']:,.0f} records/s")
    for cell in _CELLS:
        used = rows[f"{cell}.cpu_vs_librdkafka"]["value"] * rows[f"{cell}.vs_java"]["value"] / 1e6
        assert used <= _CORES * 1.1 + 0.1, "the worker cannot take more than the machine has"


def test_bench_exactly_once(measured: _Measured) -> None:
    """Records arrive with each guarantee, and each has its speed."""
    rows = measured.of("exactly_once")
    assert set(rows) == {"exactly_once.1p.vs_at_least_once", "exactly_once.1p.peak_mib"}
    speed = rows["exactly_once.1p.vs_at_least_once"]
    assert measured.said("exactly_once", f"{speed['value']:,.0f} records/s")
    assert measured.said("at_least_once", f"{speed['against']:,.0f} records/s")


def test_bench_latency(measured: _Measured) -> None:
    """Each way is probed, from end to end: a topic alone, each guarantee, and small records beside large ones."""
    rows = measured.of("latency")
    assert {"latency.added_p99_ms", "latency.exactly_once_p50_ms"} <= set(rows)
    assert set(rows) <= {"latency.added_p99_ms", "latency.exactly_once_p50_ms", "latency.small_p99_ms"}
    within = rows["latency.exactly_once_p50_ms"]
    assert measured.said("worker, exactly_once", f"p50 {within['value']:8.2f} ms")
    assert measured.said("direct topic", f"p50 {within['against']:8.2f} ms")
    seen = re.findall(r"^  (direct topic|worker, at_least_once) .* p99 +([\d.]+) ms", measured.printed, re.MULTILINE)
    (_, alone), (_, ours) = seen[2:4]  # behind those of the warm-up
    assert rows["latency.added_p99_ms"]["value"] == pytest.approx(float(ours) - float(alone), abs=0.02)
    if "latency.small_p99_ms" in rows:
        assert f"p99 {rows['latency.small_p99_ms']['value']:8.2f} ms" in measured.printed


@pytest.mark.s3
def test_bench_offload(measured: _Measured) -> None:
    """Large values go to both stores and come back as they were; each way has its numbers, beside the better peer."""
    rows = {**measured.of("offload"), **measured.of("inflate")}
    names = {f"{way}.s3.{what}" for way in ("offload", "inflate") for what in ("vs_best_peer", "cpu_ms")}
    assert {"offload.filesystem"} <= set(rows) <= {"offload.filesystem", "offload.s3.vs_peer", *names}
    assert measured.said("worker, filesystem", f"{rows['offload.filesystem']['value']:,.1f} MiB/s")
    for way, end in (("offload", "S3"), ("inflate", "S3, inflate")):
        row = rows.get(f"{way}.s3.vs_best_peer")
        if row is not None:
            assert measured.said(f"worker, {end}", f"{row['value']:,.1f} MiB/s")
            assert any(measured.said(f"{peer}, {end}", f"{row['against']:,.1f} MiB/s") for peer in ("bakdata", "boto3"))


@pytest.mark.s3
def test_bench_s3clients(measured: _Measured) -> None:
    """Both clients put and get the same bytes, with and without TLS, and each part has its numbers."""
    rows = measured.of("s3clients")
    cells = [
        f"{scheme}.{verb}.64k.{threads}t"
        for scheme in ("http", "https")
        for verb in ("put", "get")
        for threads in (1, 8)
    ]
    ranges = [f"https.ranges.{client}" for client in ("boto3", "obstore")]
    wanted = {f"s3clients.{part}.{what}_ms" for part in (*cells, *ranges) for what in ("cpu", "wall")}
    assert set(rows) in (wanted, set())
    for name, row in rows.items():
        if name.startswith("s3clients.http.") and name.endswith(".cpu_ms"):
            part = name.removeprefix("s3clients.").removesuffix(".cpu_ms")
            assert measured.said(f"{part}, boto3", f"{row['value']:.2f} ms CPU")


def test_bench_chunks(measured: _Measured) -> None:
    """Large values go as chunks and come back, beside copies, and the peak is taken while all that may is pending."""
    rows = measured.of("chunks")
    assert set(rows) == {
        "chunks.chunk.vs_copy",
        "chunks.chunk.cpu_ms_per_value",
        "chunks.assemble.vs_copy",
        "chunks.assemble.cpu_ms_per_value",
        "chunks.memory.peak_mib",
    }
    copies = ["bare copy of values", "bare copy of chunks"]
    for name in ("chunk", "assemble"):
        speed = rows[f"chunks.{name}.vs_copy"]
        assert measured.said(f"worker, {name}", f"{speed['value']:,.1f} MiB/s")
        assert any(measured.said(copy, f"{speed['against']:,.1f} MiB/s") for copy in copies)
    memory = rows["chunks.memory.peak_mib"]
    assert memory["against"] == 378
    # What is pending is in memory, and all that is in memory is below the limit.
    assert PENDING_MIB < memory["value"] <= memory["against"]


def test_bench_clients(measured: _Measured) -> None:
    """Each client writes and reads by each of its calls, ours and bare; one that ours lacks is reported missing."""
    missing = re.findall(r"^  (\S+) +ours missing", measured.printed, re.MULTILINE)
    found = {*measured.of("clients"), *(f"clients.{call}.vs_bare" for call in missing)}
    without_s3 = {name for name in TARGETS if name.startswith("clients.") and ".references." not in name}
    assert {name for name in found if ".references." not in name} == without_s3


def test_bench_memory(measured: _Measured) -> None:
    """Values larger than the budget allows at once pass; the peak is that of a whole process."""
    row = measured.rows["memory.peak_mib"]
    assert row["against"] == 214
    assert row["value"] > BUDGET_MIB


def test_bench_batches(measured: _Measured) -> None:
    """Batches of mixed data arrive as they were sent; few are split, and they are neither empty nor too large."""
    rows = measured.of("batches")
    tried = [
        (int(split.replace(",", "")), int(of.replace(",", "")))
        for split, of in re.findall(r"^batches, .+: ([\d,]+) of ([\d,]+) split", measured.printed, re.MULTILINE)
    ]
    assert len(tried) == 5
    assert all(of >= 50 for _, of in tried)
    split, of = map(sum, zip(*tried, strict=True))
    assert rows["batches.split_percent"]["value"] == pytest.approx(100 * split / of)
    assert split / of < 0.1
    assert 30 < rows["batches.fill_percent"]["value"] <= 100


@pytest.mark.spark
def test_bench_sweep(measured: _Measured) -> None:
    """Payloads without a record go and the others stay; time and memory have their numbers, with Spark and without."""
    rows = measured.of("sweep")
    assert set(rows) == {f"sweep.{size}{end}" for size in ("few", "some", "many") for end in ("", "_cpu", "_mib")}
    assert "sweep: 400 payloads on the filesystem, one in 2 of them live" in measured.printed
    most = psutil.virtual_memory().total / 2**20
    assert 20 < rows["sweep.many_mib"]["value"] < rows["sweep.many_mib"]["against"] < most


@pytest.mark.spark
def test_bench_spark_inflate(measured: _Measured) -> None:
    """Spark and the loop inflate the same values, from the filesystem and, where there is a server, from S3."""
    rows = measured.of("spark.inflate")
    stores = {name.removesuffix(".driver_peak_mib") for name in rows if name.endswith(".driver_peak_mib")}
    assert {"spark.inflate.filesystem"} <= stores
    assert stores <= {"spark.inflate.filesystem", "spark.inflate.s3", "spark.inflate.s3_far"}
    assert set(rows) == {
        store + end for store in stores for end in ("", ".pool", ".driver_peak_mib", ".workers_peak_mib")
    }
    for store in stores:
        times = 3 if store.endswith("far") else 9
        assert (
            f"spark_inflate: {_RECORDS['spark_inflate'] * times} references to 1 MiB on {store.rpartition('.')[2]}"
            in measured.printed
        )
        said = f"Spark {rows[store]['value']:8.1f} MiB/s  loop {rows[store]['against']:8.1f} MiB/s"
        assert said in measured.printed
