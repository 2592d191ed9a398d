"""A short run of `make soak`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.s3_server import s3_server_or_skip
from tests.soak.run import main

VOLUMES = {
    "short": {"minutes": 0.15, "rate": 20, "pause": 3, "scale": 0.05},
    "long": {"minutes": 3, "rate": 60, "pause": 10, "scale": 0.2},
}


@pytest.mark.chaos
@pytest.mark.s3
def test_soak_loses_nothing(seed: int, chaos: str, tmp_path: Path) -> None:
    """While store, brokers and workers are broken by chance, all that is sent on three routes arrives, in order."""
    with s3_server_or_skip("versitygw", tmp_path / "s3"):
        pass  # there is one
    output = tmp_path / "soak.json"
    volume = [f"--{name}={value}" for name, value in VOLUMES[chaos].items()]
    assert main([*volume, f"--seed={seed}", f"--folder={tmp_path / 'soak'}", f"--output={output}"]) == 0
    result = json.loads(output.read_text())
    assert (result["seed"], result["failures"]) == (seed, [])
    assert all(route["received"] == route["sent"] > 0 for route in result["routes"].values())
    assert sum(result["faults"].values()) > 0
