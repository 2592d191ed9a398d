from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.offload import _file_fetch
from benchmarks.result import TARGETS, Result, Target, merge


def _measured(broker: str, folder: Path, scenario: str, records: int) -> Mapping[str, Mapping[str, float]]:
    output = folder / "bench.json"
    options = ["--only", scenario, "--records", str(records), "--repeat", "1", "--output", str(output)]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", *options],
        env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": broker},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    machine = json.loads((folder / "bench-machine.json").read_text())
    assert machine["cores"] == os.cpu_count()
    rows = json.loads(output.read_text())
    assert all(set(row) == {"name", "value", "unit", "against", "ratio"} for row in rows)
    assert all(row["name"] in ended.stdout for row in rows)
    return {row["name"]: row for row in rows}


def test_bench_passthrough(broker: str, tmp_path: Path) -> None:
    """Records pass through the worker, the agent and the loop, arrive as they were, and give the numbers by name."""
    rows = _measured(broker, tmp_path, "passthrough", 3_000)
    assert set(rows) == {
        "passthrough.vs_faust_agent",
        "passthrough.vs_aiokafka",
        "passthrough.vs_aiokafka_default_batch",
        "passthrough.cpu_us_per_record",
    }
    assert all(row["value"] > 0 and row["ratio"] > 0 for row in rows.values())


@pytest.mark.parametrize("server_kind", ["versitygw"])
def test_bench_offload(broker: str, server_kind: str, tmp_path: Path) -> None:
    """Large values go to both stores and come back as they were; each way has its number."""
    del server_kind  # marks the test as one that needs an S3 server
    rows = _measured(broker, tmp_path, "offload", 6)
    assert {"offload.filesystem"} <= set(rows) <= {"offload.filesystem", "offload.s3.vs_peer", "inflate.s3"}
    assert all(row["value"] > 0 for row in rows.values())


def test_bench_chunks(broker: str, tmp_path: Path) -> None:
    """Large values go as chunks and come back, beside copies, and the peak is taken while all that may is pending."""
    rows = _measured(broker, tmp_path, "chunks", 5)
    assert set(rows) == {
        "chunks.chunk.vs_copy",
        "chunks.chunk.cpu_ms_per_value",
        "chunks.assemble.vs_copy",
        "chunks.assemble.cpu_ms_per_value",
        "chunks.memory.peak_mib",
    }
    assert all(row["value"] > 0 and row["ratio"] > 0 for row in rows.values())
    assert rows["chunks.memory.peak_mib"]["against"] == 378


def test_bench_memory(broker: str, tmp_path: Path) -> None:
    """Values larger than the budget allows at once pass; the peak is that of a whole process, against its limit."""
    row = _measured(broker, tmp_path, "memory", 12)["memory.peak_mib"]
    assert 40 < row["value"] < 1_000
    assert row["against"] == 314
    assert row["ratio"] == pytest.approx(row["value"] / 314)


def test_bench_batches(broker: str, tmp_path: Path) -> None:
    """Batches of mixed data arrive as they were sent; few are split, and they are neither empty nor too large."""
    rows = _measured(broker, tmp_path, "batches", 250)
    assert 0 <= rows["batches.split_percent"]["value"] < 10
    assert 10 < rows["batches.fill_percent"]["value"] <= 100


@pytest.mark.slow
def test_bench_sweep(broker: str, tmp_path: Path) -> None:
    """Payloads without a record go and the others stay; time and memory have their numbers."""
    rows = _measured(broker, tmp_path, "sweep", 400)
    assert set(rows) == {"sweep.growth", "sweep.payloads_per_s", "sweep.driver_peak_mib", "sweep.workers_peak_mib"}
    assert all(row["value"] > 0 for row in rows.values())


def test_bench_spark_inflate(broker: str, tmp_path: Path) -> None:
    """Spark and the loop inflate the same values, from the filesystem and, where there is a server, from S3."""
    rows = _measured(broker, tmp_path, "spark_inflate", 8)
    stores = {name.removesuffix(".driver_peak_mib") for name in rows if name.endswith(".driver_peak_mib")}
    assert {"spark.inflate.filesystem"} <= stores
    assert stores <= {"spark.inflate.filesystem", "spark.inflate.s3", "spark.inflate.s3_far"}
    assert set(rows) == {store + end for store in stores for end in ("", ".driver_peak_mib", ".workers_peak_mib")}
    assert all(row["value"] > 0 for row in rows.values())
    assert all(rows[store]["ratio"] == pytest.approx(rows[store]["value"] / rows[store]["against"]) for store in stores)


def test_merge_keeps_other_results(tmp_path: Path) -> None:
    """A run of one scenario replaces its own results in the file, and leaves those of others."""
    path = tmp_path / "build" / "bench.json"
    merge(path, [Result("a", 1.0, "s"), Result("b", 2.0, "s", 4.0, 0.5)], keep=False)
    merge(path, [Result("a", 3.0, "s")], keep=True)
    assert json.loads(path.read_text()) == [
        {"name": "b", "value": 2.0, "unit": "s", "against": 4.0, "ratio": 0.5},
        {"name": "a", "value": 3.0, "unit": "s", "against": None, "ratio": None},
    ]


@pytest.mark.parametrize(
    ("at", "ratio", "reached"),
    [("least", 7.99, False), ("least", 8.0, True), ("most", 8.0, True), ("most", 8.01, False), ("least", None, None)],
)
def test_target_reached(at: str, ratio: float | None, *, reached: bool | None) -> None:
    """The bound itself reaches the target; a number that is missing says nothing."""
    assert (
        Target("ratio", "least" if at == "least" else "most", 8.0).reached(Result("x", 1.0, "", 1.0, ratio)) is reached
    )


def test_targets_are_those_of_the_issue() -> None:
    """Each target stands beside a result that a scenario gives."""
    assert {name: str(target) for name, target in TARGETS.items()} == {
        "passthrough.vs_faust_agent": "≥ 8×",
        "passthrough.vs_aiokafka": "≥ 0.8×",
        "offload.s3.vs_peer": "≥ 1.3×",
        "chunks.chunk.vs_copy": "≥ 0.7×",
        "chunks.assemble.vs_copy": "≥ 0.7×",
        "chunks.memory.peak_mib": "≤ 1×",
        "memory.peak_mib": "≤ 1×",
        "batches.split_percent": "≤ 5",
        "sweep.growth": "≤ 12×",
        "audit.growth": "≤ 12×",
        "spark.inflate.s3": "≥ 1.2×",
    }


def test_file_fetch_decodes_paths(tmp_path: Path) -> None:
    """A payload is found by its reference, whatever its folder is called."""
    path = tmp_path / "a b%" / "payload"
    path.parent.mkdir()
    path.write_bytes(b"value")
    assert _file_fetch(path.as_uri()) == b"value"
