"""Python commands without the start of an interpreter: forked from a process that has imported what they need.

What such a command does, prints and returns is what a new process would. Where the guarantee is about the process
itself, as with what acts before Python runs (LD_PRELOAD, MALLOC_…, PYTHON…), a test starts one with `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.fork_server import SIZE, STATUS

_ROOT = Path(__file__).parent.parent
_ANSWER_S = 60
_BEFORE_PYTHON = ("LD_", "MALLOC_", "GLIBC_", "PYTHON")
_HEEDED = "PYTHONPATH"


class Forked:
    """A running command, with what tests use of `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], pid: int, told: int) -> None:
        self.args = command
        self.pid = pid
        self.returncode: int | None = None
        self._told = told

    def __del__(self) -> None:
        if self.returncode is None:
            os.close(self._told)

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, or minus the number of the signal, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it runs longer.
        """
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._told, select.POLLIN)
            if not waiting.poll(None if timeout is None else max(0.0, timeout) * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            status = os.read(self._told, STATUS.size)
            os.close(self._told)
            # Nothing is reported if the server and its children were killed.
            self.returncode = STATUS.unpack(status)[0] if status else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Server:
    """The other process, of which there is one while this one runs."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._connection, theirs = socket.socketpair()
        self._connection.settimeout(_ANSWER_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(theirs.fileno()), *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=_ROOT,
            )
        atexit.register(self.close)

    def close(self) -> None:
        """Ends it, if it is this process's own."""
        self._connection.close()
        if self.owner == os.getpid():
            self._process.wait(_ANSWER_S)

    def alive(self) -> bool:
        """Whether it runs, and is not that of the process from which this one was forked."""
        return self.owner == os.getpid() and self._process.poll() is None

    def fork(self, request: Mapping[str, object], files: Sequence[int]) -> int:
        """Forks a command, and returns its process id."""
        body = json.dumps(request).encode()
        try:
            socket.send_fds(self._connection, [SIZE.pack(len(body))], files)
            self._connection.sendall(body)
            answer = self._connection.recv(SIZE.size, socket.MSG_WAITALL)
        except BaseException:
            # An answer that came later would be taken for that to the next request.
            self._connection.close()
            self._process.kill()
            self._process.wait()
            raise
        assert len(answer) == SIZE.size, "the server of forks has ended"
        pid: int = SIZE.unpack(answer)[0]
        return pid


_servers: list[_Server] = []
arguments: list[str] = []
"""Of the server when it is started: none, or that it imports nothing ahead."""


def fork(
    command: Sequence[str | os.PathLike[str]],
    *,
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes],
    stderr: IO[bytes],
    environ: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    constants: Mapping[str, object] | None = None,
) -> Forked:
    """Begins `[sys.executable, "-m", MODULE, …]` or `[sys.executable, PATH, …]`; `-W ACTION` may come before.

    Args:
        command: what `Popen` would be given.
        stdin: a file; nothing unless it is given.
        stdout: a file.
        stderr: a file.
        environ: the whole environment of the process; that of this one unless it is given.
        folder: its working directory; by default the current one.
        constants: other values, by "module:name", of what no user can set, as how often something is looked at.
    """
    interpreter, *rest = [os.fspath(each) for each in command]
    assert interpreter == sys.executable
    environ = dict(os.environ if environ is None else environ)
    told = {
        name
        for name, value in environ.items()
        if name.startswith(_BEFORE_PYTHON) and name != _HEEDED and os.environ.get(name) != value
    }
    assert not told, f"{told} act when an interpreter starts: use subprocess"
    actions = []
    while rest[0] == "-W":
        _, action, *rest = rest
        actions.append(action)
    what = ["module", *rest[1:]] if rest[0] == "-m" else ["path", *rest]
    request = {
        "command": what,
        "constants": dict(constants or {}),
        "environ": environ,
        "folder": os.fspath(folder or Path.cwd()),
        "warnings": actions,
    }
    if not _servers or not _servers[-1].alive():
        _servers[:] = [_Server()]
    ours, theirs = os.pipe()
    try:
        with contextlib.ExitStack() as stack:
            given = stdin or stack.enter_context(Path(os.devnull).open("rb"))
            files = [given.fileno(), stdout.fileno(), stderr.fileno(), theirs]
            return Forked([interpreter, *rest], _servers[-1].fork(request, files), ours)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    environ: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    given: str | bytes = b"",
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run(command, capture_output=True, text=True, check=False)`; `given` is its standard input.

    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout` seconds, and was killed.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(given.encode() if isinstance(given, str) else given)
        stdin.seek(0)
        process = fork(command, stdin=stdin, stdout=stdout, stderr=stderr, environ=environ, folder=folder)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(process.args, status, stdout.read().decode(), stderr.read().decode())
