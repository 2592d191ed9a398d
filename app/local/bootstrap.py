"""One step of the set-up, for the Makefile: `bootstrap.py [--optional] STAMP TITLE COMMAND…`.

Runs the command and reports how long it took. The output is written to build/setup.log. A success creates the file
STAMP; a failure prints one sentence with what to do. Any Python from 3.6 can parse this file, so that a Python that is
too old prints a sentence instead of a SyntaxError.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

_OLDEST = (3, 11)
_LOG = Path("build", "setup.log")
_LINE_LENGTH = 200
_SHELLS = ("sh", "bash", "dash")  # in which `make` runs a recipe

# Settings of pip and Python that would install packages in another place.
_FOREIGN = ("PIP_PREFIX", "PIP_REQUIRE_HASHES", "PIP_TARGET", "PIP_USER", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")

# What pip, Go and the operating system print, and what it means. The first pattern that matches counts.
_REASONS = (
    (r"No space left on device|Disk quota exceeded", "the disk is full; make room and try again"),
    (r".*(?:Permission denied|Read-only file system).*", "a directory is not writable: {found}"),
    (r"\bgo\W+(?:No such file|not found|command not found)", "Go is not installed"),
    (
        r"ensurepip is not available|No module named '?(?:ensurepip|venv)",
        "this Python lacks its `venv` module; install it (Debian, Ubuntu: sudo apt-get install python{version}-venv)",
    ),
    (
        r"(?<=DO NOT MATCH THE HASHES).*\n +\S+",
        "{found} is not the package that the lock file names, and was not installed. If you use a proxy or a "
        "mirror, check that first",
    ),
    (r".*(?:requires a different Python|Requires-Python).*", "a package does not run on Python {version}: {found}"),
    (
        r"name resolution|nodename nor servname|NewConnectionError|Max retries|Connection (?:refused|reset|aborted)"
        r"|ProxyError|ConnectTimeout|ReadTimeout|Read timed out|i/o timeout|dial tcp|Network is unreachable|SSLError"
        r"|No matching distribution.*|from versions: none",
        "the network or the package index does not answer ({found}). Check the connection and try again; behind a "
        "proxy set https_proxy, for a mirror set PIP_INDEX_URL (Python) or GOPROXY (Go)",
    ),
    (r"(?im)^(?:error|fatal)\b.*", "{found}"),
    (r".*\Z", "{found}"),
)


def main(arguments: "list[str]") -> int:
    """Does the step, unless another `make` has just done it; the exit status."""
    if sys.version_info < _OLDEST:
        found = "%d.%d.%d" % sys.version_info[:3]
        advice = "Install Python 3.11 to 3.14, or name the one to use: make PYTHON=/path/to/python3.12"
        return _failed(f"Python {found} ({sys.executable}) is too old for Wideload. {advice}")
    optional = arguments[0] == "--optional"
    stamp, title, *command = arguments[optional:]
    done, asked, began_s = Path(stamp), _asked(), time.monotonic()
    try:
        _LOG.parent.mkdir(exist_ok=True)
        with _LOG.open("a") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            if done.exists() and done.stat().st_mtime >= asked:
                return 0
            lines = _run(title, command, log)
            if lines is not None and not optional:
                print(flush=True)
                return _failed(f"{title}: {reason(command, lines)}")
            note = f"{time.monotonic() - began_s:.1f} s"
            if lines is not None:
                note = f"left out, and the tests that need it are skipped: {reason(command, lines)}"
            print(note, flush=True)
            done.parent.mkdir(parents=True, exist_ok=True)
            done.write_text(note)
    except OSError as exc:
        return _failed(f"{exc.strerror}: {exc.filename}; make room or give access, and try again.")
    except KeyboardInterrupt:
        print(flush=True)
        return _failed("interrupted; the next call repeats this step.") + 129
    return 0


def _asked() -> float:
    """When `make` has asked for the step, in seconds since the epoch: on a busy machine some time ago.

    That is when the shell started that has started this process; another `make` may have done the step in between.
    It is earlier by a tick: a file has the time of the last tick before it was written.
    """
    try:
        ticks, _ = _start("self")
        asked, name = _start(str(os.getppid()))
        if name in _SHELLS:
            ticks = asked
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + (ticks - 1) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux
        return time.time()


def _start(process: str) -> "tuple[int, str]":
    """When a process started, in ticks since the boot, and its name; proc(5)."""
    before, _, behind = Path("/proc", process, "stat").read_text().rpartition(")")
    return int(behind.split()[19]), before.partition("(")[2]


def _run(title: str, command: "list[str]", log: TextIO) -> "list[str] | None":
    """Runs the command, and shows its last line if there is a terminal; returns what it printed if it failed."""
    width = shutil.get_terminal_size().columns - 1 if sys.stdout.isatty() else 0
    lines = []
    print(f"{title} ... ", end="", flush=True)
    process = subprocess.Popen(
        command,
        env={name: value for name, value in os.environ.items() if name not in _FOREIGN},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        for line in process.stdout or ():
            log.write(line)
            lines.append(line.rstrip())
            if width:
                print("\r\x1b[K" + f"{title} ... {line.strip()}"[:width], end="", flush=True)
        status = process.wait()
    finally:
        process.kill()
    if width:
        print(f"\r\x1b[K{title} ... ", end="", flush=True)
    return lines if status else None


def reason(command: "list[str]", lines: "list[str]") -> str:
    """Why a command failed, from what it printed, and what to do."""
    if any(part.startswith("app.local.") for part in command):  # ours say it themselves
        return "\n".join(line for line in lines if not line.startswith("jars of "))
    version = "%d.%d" % sys.version_info[:2]
    text = "\n".join(lines)
    found, meaning = next((match, meaning) for pattern, meaning in _REASONS for match in re.findall(pattern, text))
    found = re.sub(r"^(?:ERROR|WARNING): ", "", found.split("\n")[-1].strip())
    found = re.sub(r"//[^/@\s]+@", "//***@", found)[:_LINE_LENGTH]  # an index may be given with a password
    return f"{meaning.format(found=found or 'it printed nothing', version=version)}. The full log is {_LOG}."


def _failed(sentence: str) -> int:
    sys.stderr.write(f"Set-up: {sentence}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
