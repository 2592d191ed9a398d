"""The brokers of the cells: a release of Kafka, or kfake, which is not of Kafka's authors."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from app.local import broker as embedded
from app.local import jars
from tests.cloud_server import running
from tests.matrix.broker import RELEASES, OtherBroker
from tests.matrix.result import CellError, NotHereError

_KFAKE = Path(__file__).with_name("kfake")
_QUICK = {"log.cleaner.backoff.ms": "500"}  # as tests/conftest.py has it

NEWEST = "newest"
"""The name of the embedded broker."""


@contextlib.contextmanager
def running_broker(name: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Runs a broker: a release ("2.8"), `NEWEST` or "kfake". Its `bootstrap.servers`, and its version by its name.

    Raises:
        NotHereError: this machine cannot have it.
        CellError: it cannot be made.
        RuntimeError: kfake does not start.
        WideloadError: Kafka does not start, or its jars cannot be fetched.
    """
    if name == "kfake":
        with tempfile.TemporaryDirectory(prefix="wideload-kfake-") as scratch:
            program, version = _built_kfake(Path(scratch))
            with running(lambda port: [program, "--port", str(port)], Path(scratch), _answers) as address:
                yield address, {"kfake": version}
    elif name == NEWEST:
        (jar,) = (each for each in jars.read_lock("kafka") if ":kafka_2.13:" in each.coordinates)
        with embedded.EmbeddedBroker(_QUICK) as broker:
            yield broker.bootstrap_servers, {"Kafka": jar.coordinates.rpartition(":")[2]}
    else:
        with OtherBroker(name, _QUICK) as other:
            mode = " with ZooKeeper" if other.has_zookeeper else ""
            yield other.bootstrap_servers, {"Kafka": RELEASES[name] + mode}


def _answers(address: str) -> bool:
    return embedded._knows_a_broker(int(address.rpartition(":")[2]))


def _built_kfake(folder: Path) -> tuple[str, str]:
    """The program, compiled by Go, which keeps what it has compiled; and the version of the module."""
    if shutil.which("go") is None:
        raise NotHereError("Go is not installed, which compiles kfake")
    program = folder / "kfake"
    module = "github.com/twmb/franz-go/pkg/kfake"
    _go("build", "-o", str(program), ".")
    return str(program), _go("list", "-m", "-f", "{{.Version}}", module).strip()


def _go(*arguments: str) -> str:
    done = subprocess.run(
        ["go", *arguments], cwd=_KFAKE, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise CellError(f"go {arguments[0]} of kfake failed:\n{done.stderr[-2000:]}")
    return done.stdout
