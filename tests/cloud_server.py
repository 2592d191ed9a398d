"""What the emulators of clouds in the tests have in common: a process that answers, and the keys of a store on it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app.local.watchdog import watched
from tests.s3_server import free_port

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class CloudServer:
    """A server that answers, with one empty bucket.

    Attributes:
        start: the first word of the store's keys.
        endpoint: its URL.
        keys: of a store on it.
    """

    start: str
    endpoint: str
    keys: Mapping[str, object] = field(repr=False)

    def config(self, prefix: str = "") -> dict[str, object]:
        """The keys of a store below `prefix`, without the store's class."""
        return {**self.keys, f"{self.start}.prefix": prefix}


def answering(path: str) -> Callable[[str], bool]:
    """Whether a server at an address answers a request for `path`, with whatever status."""
    # No proxy of the environment may stand between a test and its own machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def answers(address: str) -> bool:
        try:
            with opener.open(f"http://{address}{path}", timeout=1):
                return True
        except urllib.error.HTTPError as exc:
            exc.close()
            return True
        except OSError:
            return False

    return answers


@contextlib.contextmanager
def running(
    command: Callable[[int], list[str]],
    directory: Path,
    answers: Callable[[str], bool],
    environ: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Runs the command for a free port until the end; its address.

    Raises:
        RuntimeError: the server did not answer in time; the message has the end of its log.
    """
    port = free_port()
    address = f"127.0.0.1:{port}"
    log_path = directory / "server.log"
    with log_path.open("wb") as log:
        # It ends with the tests, also where they are killed.
        process = watched(command(port), output=log, environ=environ)
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not answers(address):
                if process.poll() is not None or time.monotonic() > deadline:
                    end = log_path.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{command(port)[0]} did not answer on {address}:\n{end}")
                time.sleep(0.05)
            yield address
        finally:
            process.signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
