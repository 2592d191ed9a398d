"""The worker as the first process of a container, where the kernel keeps signals from it that it does not handle."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.worker_process import toml

ALONE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode != 0,
    reason="no process may be the first of a namespace here",
)
def test_sigterm_ends_the_first_process_while_it_waits_for_a_broker(tmp_path: Path) -> None:
    """A pod that is taken away while its worker starts ends at once, and not by SIGKILL after all of its time."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pipeline = {"topics": ["a"], "output.topic": "b", "transforms": ["assemble"]}
        file = tmp_path / "wideload.toml"
        file.write_text(toml({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}, {"p": pipeline}))
        outer = subprocess.Popen([*ALONE, sys.executable, "-m", "wideload", "worker", "-c", file])
        try:
            silent.settimeout(60)
            connection, _ = silent.accept()
            with connection:
                (first,) = psutil.Process(outer.pid).children()
                first.send_signal(signal.SIGTERM)
                assert outer.wait(10) == 128 + signal.SIGTERM
        finally:
            outer.kill()
            outer.wait()
