"""The Python and the packages of a cell: virtual environments in the cache folder, made by uv.

An environment is made once, and again when its requirements are others. It has no Wideload: the checkout is put on
`PYTHONPATH`, so that all checkouts share it. uv is in an environment of its own, in the version of `make lock`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.local.jars import cache_folder
from tests.matrix.result import CellError, NotHereError

ROOT = Path(__file__).resolve().parents[2]

_PROJECT = ROOT / "pyproject.toml"
_LOCK = ROOT / "requirements-dev.lock"
Python = Sequence[str | Path]
"""The command that runs it."""

_SECONDS = 1200
_LINES = 15

# Tools that no test needs that a cell runs; some want newer packages than the lowest.
_LEFT_OUT = {"boto3-stubs", "mkdocs-material", "mkdocstrings-python", "mypy", "pre-commit", "ruff"}

# What is said of an environment whose packages are not those of the lock.
_SAID = ("pyspark", "aiokafka", "faust-streaming", "confluent-kafka", "kafka-python", "cramjam", "boto3", "obstore")
_LOOK = """
import json, platform
from importlib.metadata import PackageNotFoundError, version
found = {"Python": platform.python_version()}
for name in %r:
    try: found[name] = version(name)
    except PackageNotFoundError: pass
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python with packages; by default the one that runs this.

    Attributes:
        python: the version of Python ("3.14"); by default that of this process. It is one of this machine, or uv gets
            it, or it is Debian's, in a chroot.
        replaced: requirements that stand in the place of the lock's.
        resolution: chooses the versions of all that Wideload depends on, in the place of the lock: "lowest-direct" or
            "highest", as uv has them. The tools of the tests keep the versions of the lock.
    """

    python: str | None = None
    replaced: Sequence[str] = ()
    resolution: str | None = None


def made(environment: Environment) -> Python:
    """The Python of the environment, which is made if it is not there.

    Raises:
        NotHereError: this machine does not have that Python, and cannot get it.
        CellError: the packages cannot be resolved or installed.
    """
    if environment == Environment():
        return (sys.executable,)
    base = cache_folder() / "matrix"
    base.mkdir(parents=True, exist_ok=True)
    with (base / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        uv = _uv(base)
        steps = _steps(environment, uv)
        digest = hashlib.sha256(repr((sys.version, environment.python, steps)).encode()).hexdigest()
        folder = base / digest[:12]
        ready = folder / "venv" / "ready"  # a chroot that is made again has a new one
        prefix: Python = ()
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            try:
                _run([uv, "venv", "--quiet", "--python", environment.python or sys.executable, folder / "venv"])
            except CellError:
                if environment.python is None:
                    raise
        if not (folder / "venv" / "pyvenv.cfg").exists() or (folder / "run").exists():
            prefix = _chroot(environment.python or "", folder)
        python = folder / "venv" / "bin" / "python"
        if not ready.exists():
            for number, (text, options) in enumerate(steps):
                file = folder / f"requirements-{number}.txt"
                file.write_text(text)
                _run([*prefix, uv, "pip", "install", "--quiet", "--python", python, *options, "-r", file])
            ready.touch()
        return (*prefix, python)


def versions(environment: Environment, python: Python) -> Mapping[str, str]:
    """What an environment has, by name: its Python, and the packages that are most to its tests, unless by the lock."""
    names = _SAID if environment.resolution else tuple(_name(each) for each in environment.replaced)
    found: dict[str, str] = json.loads(_run([*python, "-c", _LOOK % (names,)]))
    return found


def _chroot(version: str, folder: Path) -> Python:
    """What runs a command in a Debian with that Python, whose virtual environment is there too."""
    try:
        _run(["sh", ROOT / "tests" / "matrix" / "python_chroot.sh", version, folder])
    except CellError as exc:
        raise NotHereError(str(exc).splitlines()[-1]) from exc
    return (folder / "run",)


def _steps(environment: Environment, uv: Path) -> list[tuple[str, Sequence[str]]]:
    """Requirements, and options of uv, of each call that fills the environment."""
    locked = _LOCK.read_text(encoding="utf-8")
    if environment.resolution is None:
        names = {_name(each) for each in environment.replaced}
        lines = "".join(block for name, block in _blocks(locked) if name not in names)
        return [(lines, ["--no-deps"]), *([("\n".join(environment.replaced), ())] * bool(environment.replaced))]
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))
    ours = [*project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        ours += extra
    names = {_name(each) for each in ours}
    tools = {_name(each) for each in project["dependency-groups"]["dev"]} - names - _LEFT_OUT
    chosen = _run(
        [
            *(uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--all-extras", _PROJECT),
            *("--python", sys.executable, "--resolution", environment.resolution),
        ]
    )
    return [(chosen + "".join(block for name, block in _blocks(locked) if name in tools), ())]


def _blocks(lock: str) -> Iterator[tuple[str, str]]:
    """The name and the lines of each requirement of a lock."""
    for block in re.split(r"(?m)^(?=[A-Za-z0-9])", lock):
        if block and not block.startswith("#"):
            yield _name(block), block


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[=<>;!~ ]", requirement, maxsplit=1)[0]).lower()


def _uv(base: Path) -> Path:
    """uv, in the version that the Makefile names."""
    found = re.search(r"\buv==([\d.]+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert found is not None
    folder = base / f"uv-{found[1]}"
    if not (folder / "ready").exists():
        _run([sys.executable, "-m", "venv", "--clear", folder])
        pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _run([*pip, f"uv=={found[1]}"])
        (folder / "ready").touch()
    return folder / "bin" / "uv"


def _run(command: Sequence[str | Path]) -> str:
    """What a command printed.

    Raises:
        CellError: it failed; the message has the end of what it said.
    """
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CellError(f"{Path(command[0]).name} {command[1]} did not end in {_SECONDS} s") from None
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_LINES:])
        raise CellError(f"{Path(command[0]).name} {command[1]} failed:\n{said}")
    return done.stdout
