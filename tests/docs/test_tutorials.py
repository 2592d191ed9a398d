"""The pages whose commands a reader types: each is run as printed, in order, in one shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.s3_server import free_port

ROOT = Path(__file__).resolve().parents[2]
# What this machine has already, or `tests/jobs` runs.
SET_UP = re.compile(r"^(?:make |\. \.venv|wideload job ).*\n", re.MULTILINE)
BROKER = "python -m app.local.broker --port 9092 &\n"
NO_BROKER = "sleep 300 &\n"


def commands(page: str) -> str:
    """The shell blocks of a page, one after the other."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return "".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("tutorial.md", ["orders: 2 records", "1 references to 3.0 MB: 1 ok", '"file": "values/photo.jpg"']),
        ("dead-letters.md", ["ValueTooLargeError", '"would_replay": 1', '"replayed": 1', '"wideload.replays", "1"']),
    ],
)
def test_commands_do_what_the_page_says(page: str, told: list[str], broker: str, tmp_path: Path) -> None:
    """Each command succeeds, and what is told on the page comes out."""
    script = SET_UP.sub("", commands(page)).replace(BROKER, NO_BROKER)
    if BROKER not in commands(page):
        script = f"{NO_BROKER}broker=$!\n{script}"
    script = f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}"  # whatever fails, nothing is left running
    mark = f"t{free_port()}"
    for topic in ("raw-large", "orders-inflated", "orders-inflate", "orders-offload", "orders-dlq", "orders"):
        script = re.sub(rf"(?<![\w-]){topic}(?![\w-])", f"{mark}-{topic}", script)
    script = script.replace("localhost:9092", broker)
    port = free_port()
    script = script.replace("127.0.0.1:6066", f"127.0.0.1:{port}").replace(
        "\n[pipeline", f"\nweb.port = {port}\n[pipeline", 1
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    shell = ["timeout", "--kill-after=5", "90", "bash", "-e", "-m", "-c", script]
    done = subprocess.run(shell, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    for each in told:
        assert each.replace("orders:", f"{mark}-orders:") in done.stdout
