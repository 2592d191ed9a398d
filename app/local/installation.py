"""The set-up that `make` does by itself: virtual environment, pinned requirements, jars, S3 servers for the tests.

Each step has a key, made of all that it depends on, and a stamp in the virtual environment with the key of its last
success. A step whose stamp has its key is passed over in silence; one that was interrupted has no stamp and is done
again. Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from app.local import jars, java
from transforms.errors import WideloadError

__all__ = ["GOALS", "SetupError", "main", "reason"]

GOALS = ("setup", "demo", "test")
"""What may be set up. Only the tests use S3 servers; `setup` tries again where those could not be built before."""

_S3_SERVERS: Mapping[str, str] = {
    "versitygw": "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
    "minio": "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c",
}

_LOCK = "requirements-dev.lock"
_LINE_LENGTH = 200

# Settings of pip and Python for other places, which would send packages there.
_FOREIGN = ("PIP_PREFIX", "PIP_REQUIRE_HASHES", "PIP_TARGET", "PIP_USER", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")

# What pip, Go and the operating system say, and what that means. The first that is found counts.
_REASONS: Sequence[tuple[str, str]] = (
    (r"No space left on device|Disk quota exceeded", "the disk is full; make room and try again"),
    (r"Permission denied|Read-only file system", "a folder is not writable: {line}"),
    (
        r"ensurepip is not available|No module named '?(?:ensurepip|venv)",
        "this Python lacks its `venv` module; install it (Debian, Ubuntu: sudo apt-get install python{version}-venv)",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "a package is not the one that the lock file names: {line}. It was not installed. "
        "If a proxy or a mirror stands between, look there",
    ),
    (r"requires a different Python|Requires-Python", "a package does not run on Python {version}: {line}"),
    (
        r"name resolution|nodename nor servname|NewConnectionError|Max retries|Connection (?:refused|reset|aborted)"
        r"|ProxyError|ConnectTimeout|ReadTimeout|Read timed out|i/o timeout|dial tcp|Network is unreachable|SSLError"
        r"|No matching distribution|from versions: none",
        "the network or the package index does not answer ({found}). Check the connection and try again; behind a "
        "proxy set https_proxy, for a mirror set PIP_INDEX_URL (Python) or GOPROXY (Go)",
    ),
)


class SetupError(WideloadError):
    """A step of the set-up failed; the message says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the set-up.

    Attributes:
        title: what it makes, as the user reads it.
        key: all that it depends on.
        run: does it; is handed a function that shows how far it is, and returns why there was nothing to make, or None.
        done: whether it is done already, where that can be seen without a stamp.
    """

    title: str
    key: str
    run: Callable[[jars.Say], str | None]
    done: bool | None = None


class Progress:
    """One line for each step, with its time; on a terminal the line shows how far the step is."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()

    def show(self, step: Step, perform: Callable[[Step, jars.Say], str | None]) -> None:
        """Performs a step; its line ends with the time or a remark, or breaks off where the step fails."""
        started = time.monotonic()
        self._write(f"{step.title} ... ")

        def say(note: str) -> None:
            if self._live:
                width = shutil.get_terminal_size().columns - 1
                self._rewrite(f"{step.title} ... {note}, {time.monotonic() - started:.0f} s"[:width])

        try:
            remark = perform(step, say)
        except BaseException:
            self._write("\n")
            raise
        if self._live:
            self._rewrite(f"{step.title} ... ")
        self._write(f"{remark or f'{time.monotonic() - started:.1f} s'}\n")

    def _rewrite(self, line: str) -> None:
        self._write(f"\r\x1b[K{line}")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class Installation:
    """The set-up of one checkout.

    Args:
        root: the folder of the checkout.
        environ: the environment of the user.
    """

    def __init__(self, root: Path, environ: Mapping[str, str]) -> None:
        self._root = root
        self._venv = root / ".venv"
        self._stamps = self._venv / ".setup"
        self._log = root / "build" / "setup.log"
        self._environ = {key: value for key, value in environ.items() if key not in _FOREIGN}
        # In a virtual environment, the Python that it was made from: its own must not build itself anew.
        self._base_python: str = getattr(sys, "_base_executable", None) or sys.executable

    def due(self, goal: str) -> list[Step]:
        """The steps that are to be done for one of `GOALS`, in order.

        Raises:
            JavaMissingError: there is no Java; nothing is worth doing.
        """
        return [step for step in self._steps(goal) if not self._is_done(step)]

    def perform(self, step: Step, say: jars.Say) -> str | None:
        """Does a step, and remembers that it was done; returns its remark.

        Raises:
            WideloadError: it failed.
        """
        remark = step.run(say)
        self._stamps.mkdir(parents=True, exist_ok=True)
        self._stamp(step).write_text(step.key)
        return remark

    def _steps(self, goal: str) -> Iterator[Step]:
        command = java.locate(self._environ)
        # The path stands in every script of the environment: a checkout that was moved needs a new one.
        venv = f"{sys.base_prefix} {sys.version} {self._root}"
        yield Step("Virtual environment", venv, self._make_venv)
        yield Step("Java", f"{venv} {command} {command.stat().st_mtime_ns}", self._check_java)
        packages = f"{venv} {_digest(self._root / _LOCK)}"
        yield Step("Python packages", packages, self._install_packages)
        yield Step("Wideload itself", f"{packages} {_digest(self._root / 'pyproject.toml')}", self._install_project)
        missing = jars.missing()
        for name in jars.SETS:
            yield Step(f"Jars of {name.capitalize()}", "", partial(self._fetch_jars, name), done=name not in missing)
        if goal != "demo":
            go = shutil.which("go", path=self._environ.get("PATH"))
            for name, module in _S3_SERVERS.items():
                built = (_programs() / name).is_file() and _text(_programs() / f"{name}.version") == module
                yield Step(
                    f"S3 server {name}",
                    f"{module} {go}",
                    partial(self._build_s3_server, name, go),
                    done=built if built or goal == "setup" else None,
                )

    def _stamp(self, step: Step) -> Path:
        return self._stamps / re.sub(r"\W", "-", step.title)

    def _is_done(self, step: Step) -> bool:
        return _text(self._stamp(step)) == step.key if step.done is None else step.done

    def _make_venv(self, _say: jars.Say) -> None:
        self._run(
            "the virtual environment cannot be made", [self._base_python, "-I", "-m", "venv", "--clear", self._venv]
        )

    def _check_java(self, _say: jars.Say) -> str:
        found = java.find(self._environ)
        return f"{found.version} ({found.path})"

    def _install_packages(self, say: jars.Say) -> None:
        lock = self._root / _LOCK
        blocks = re.split(r"^(?=\S)", lock.read_text(), flags=re.MULTILINE)
        total = sum("==" in block for block in blocks)
        # PySpark comes as source. It is built with the setuptools of the lock, not with whichever is newest today.
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as builder:
            builder.writelines(block for block in blocks if block.startswith("setuptools=="))
            builder.flush()
            self._pip(["--require-hashes", "-r", builder.name], say=lambda _: None)
        found = 0

        def follow(line: str) -> None:
            nonlocal found
            collected = re.match(r"(?:Collecting|Requirement already satisfied:) ([^\s;(]+)", line)
            if collected:
                found += 1
                say(f"{min(found, total)} of {total}: {collected[1]}")
            elif line.startswith(("Downloading", "  Downloading", "Building", "Installing")):
                say(f"{min(found, total)} of {total}: {line.strip().partition(':')[0][:60]}")

        self._pip(["--require-hashes", "--use-pep517", "--no-build-isolation", "-r", lock], say=follow)

    def _install_project(self, _say: jars.Say) -> None:
        self._pip(["--no-deps", "--no-build-isolation", "-e", "."], say=lambda _: None)

    def _pip(self, arguments: Sequence[str | Path], *, say: jars.Say) -> None:
        pip: list[str | Path] = [
            self._venv / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--no-input",
            "--disable-pip-version-check",
        ]
        self._run("the Python packages cannot be installed", [*pip, "--progress-bar", "off", *arguments], say=say)

    def _fetch_jars(self, name: str, say: jars.Say) -> None:
        # In the environment, for PySpark brings the program that fetches them.
        command: list[str | Path] = [self._venv / "bin" / "python", "-m", "app.local.jars", name]
        self._run("", command, say=say, explain=_last_sentence)

    def _build_s3_server(self, name: str, go: str | None, say: jars.Say) -> str | None:
        if go is None:
            return "left out, for Go is not installed; the tests that need it will be skipped"
        programs = _programs()
        programs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=programs) as folder:
            command = [go, "install", _S3_SERVERS[name]]
            try:
                self._run("", command, say=say, environ={**self._environ, "GOBIN": folder})
            except SetupError as exc:
                return f"left out ({exc}); the tests that need it will be skipped, `make setup` tries again"
            Path(folder, name).rename(programs / name)
            (programs / f"{name}.version").write_text(_S3_SERVERS[name])
        return None

    def _run(
        self,
        failure: str,
        command: Sequence[str | Path],
        *,
        say: jars.Say = lambda _: None,
        environ: Mapping[str, str] | None = None,
        explain: Callable[[Sequence[str], Path], str] | None = None,
    ) -> None:
        """Runs a command, with all that it prints in the log.

        Raises:
            SetupError: it failed; begins with `failure`, and goes on with what `explain` (by default `reason`) makes of
                the lines and the name of the log.
        """
        self._log.parent.mkdir(exist_ok=True)
        lines: list[str] = []
        with (
            self._log.open("a") as log,
            subprocess.Popen(
                command,
                cwd=self._root,
                env=self._environ if environ is None else environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    log.write(line)
                    lines.append(line.rstrip())
                    say(line.rstrip())
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            why = (explain or reason)(lines, self._log.relative_to(self._root))
            raise SetupError(f"{failure}: {why}" if failure else why)


def reason(lines: Sequence[str], log: Path) -> str:
    """Why a command failed, from what it printed, and what to do.

    Args:
        lines: what it printed.
        log: where all of that is.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for pattern, meaning in _REASONS:
        for line in lines:
            match = re.search(pattern, line)
            if match:
                return meaning.format(found=match[0], line=_shortened(line), version=version) + "."
    errors = [line for line in lines if re.match(r"(?i)(error|fatal)\b", line)] or [line for line in lines if line]
    return f"{_shortened(errors[-1]) if errors else 'it said nothing'}. All that was said is in {log}."


def _last_sentence(lines: Sequence[str], _log: Path) -> str:
    return "\n".join(line for line in lines if not line.startswith("jars of "))


def _shortened(line: str) -> str:
    line = re.sub(r"^(?:ERROR|WARNING): ", "", line.strip())
    # An index may be given with a password.
    line = re.sub(r"//[^/@\s]+@", "//***@", line)
    return line if len(line) <= _LINE_LENGTH else f"{line[:_LINE_LENGTH]}…"


def _programs() -> Path:
    return jars.cache_folder() / "bin"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def main(arguments: Sequence[str]) -> int:
    """Sets up what the goals in `arguments` need and prints only what it does; the exit status."""
    root = Path(__file__).resolve().parents[2]
    installation, progress = Installation(root, os.environ), Progress(sys.stdout)
    goal = "demo" if set(arguments) == {"demo"} else "setup" if "setup" in arguments else "test"
    try:
        if not installation.due(goal):
            return 0
        (root / "build").mkdir(exist_ok=True)
        with (root / "build" / ".setup.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for step in installation.due(goal):
                progress.show(step, installation.perform)
    except WideloadError as exc:
        print(f"Set-up: {exc}", file=sys.stderr)
    except OSError as exc:
        print(
            f"Set-up: {exc.strerror or exc}: {exc.filename or root}; make room or give access, and try again.",
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        print("Set-up: interrupted; the next call goes on with this step.", file=sys.stderr)
        return 130
    else:
        return 0
    return 1
