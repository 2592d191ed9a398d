"""A command that ends when its parent ends, for whatever reason.

A small Python process, the watchdog, runs between the two. It holds the read end of a pipe, and only the parent has the
write end. When the pipe closes, even by `kill -9`, the watchdog ends the command and removes the directory that it was
given, if any. Linux's PR_SET_PDEATHSIG does not work on macOS, or when the thread that started the command has ended.
The watchdog runs this file by its path, with the standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_SIGNALLED = 128  # a shell adds this to the number of the signal that ended a command


class Watched:
    """A command that ends when this process ends, or earlier.

    Attributes:
        pid: the process id of the command.
    """

    def __init__(self, watchdog: subprocess.Popen[bytes], pid: int) -> None:
        self.pid = pid
        self._watchdog = watchdog

    def poll(self) -> int | None:
        """The exit status (negative for a signal), or None while the command runs."""
        status = self._watchdog.poll()
        return status if status is None or status <= _SIGNALLED else _SIGNALLED - status

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the command, unless it has ended."""
        # The watchdog reaps the command, so no other process gets the id while the watchdog runs.
        if self._watchdog.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout_seconds: float | None = None) -> int:
        """Waits for the end of the command and returns its exit status.

        Raises:
            subprocess.TimeoutExpired: the command still runs.
        """
        self._watchdog.wait(timeout_seconds)
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
        status = self.poll()
        assert status is not None
        return status

    def kill(self) -> None:
        """Kills the command, as `kill -9` does, and waits for its end."""
        self.signal(signal.SIGKILL)
        self.wait()


def watched(
    command: Sequence[str | Path],
    *,
    output: IO[bytes] | int = subprocess.DEVNULL,
    environ: Mapping[str, str] | None = None,
    remove: Path | None = None,
) -> Watched:
    """Starts a command in its own session: Ctrl-C reaches only the parent, which can then stop the command properly.

    Args:
        command: the command and its arguments.
        output: the target of stdout and stderr.
        environ: the environment; by default that of this process.
        remove: the directory to remove if the parent ends while the command runs.

    Raises:
        OSError: the command cannot be run.
    """
    reports, report = os.pipe()
    with os.fdopen(reports, "rb") as reader:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(report), str(remove or ""), *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,
                pass_fds=(report,),
            )
        finally:
            os.close(report)
        pid_or_error = int(reader.read() or -errno.ECHILD)
    if pid_or_error < 0:
        process.communicate()
        raise OSError(-pid_or_error, f"{os.strerror(-pid_or_error)}: {command[0]}")
    return Watched(process, pid_or_error)


def _main(report: int, remove: str, command: Sequence[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A handler and not SIG_IGN: the command would inherit SIG_IGN.
        signal.signal(number, lambda *_: None)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as exc:
        os.write(report, str(-(exc.errno or errno.ENOENT)).encode())
        return 1
    os.write(report, str(process.pid).encode())
    os.close(report)
    orphaned = threading.Event()

    def follow_parent() -> None:
        os.read(0, 1)
        orphaned.set()
        process.kill()

    threading.Thread(target=follow_parent, daemon=True).start()
    status = process.wait()
    if orphaned.is_set() and remove:
        shutil.rmtree(remove, ignore_errors=True)
    return status if status >= 0 else _SIGNALLED - status


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
