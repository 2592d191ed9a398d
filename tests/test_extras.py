"""The extras of the package: each public module, and the command, where no package of another extra is installed."""

from __future__ import annotations

import functools
import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.test_imports import brought_by
from tests.test_public_face import MODULES

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# The public modules that need an extra to be imported.
OF_EXTRAS = {
    "wideload.__main__": "worker",
    "wideload.serializers.confluent": "confluent",
    "wideload.serializers.faust": "faust",
    "wideload.serializers.kafka_python": "kafka-python",
    "wideload.stores.s3": "s3",
    "wideload.worker": "worker",
    **{module: "spark" for module in MODULES if module.startswith("wideload.jobs.")},
}
RUN = "import runpy; runpy.run_module('wideload', run_name='__main__', alter_sys=True)"


def required(requirements: Iterable[str]) -> set[str]:
    """The distributions that requirements bring: those that they name, and what these require in turn."""
    waiting = [(Requirement(each), "") for each in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        each, extra = waiting.pop()
        if each.marker is not None and not each.marker.evaluate({"extra": extra}):
            continue
        for of in ("", *each.extras):
            if (each.name, of) not in seen:
                seen.add((each.name, of))
                waiting += [(Requirement(other), of) for other in requires(each.name)]
    return {name for name, _ in seen}


def requires(name: str) -> list[str]:
    """What a distribution requires; nothing where it is for other systems."""
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []


@functools.cache
def modules_of(extra: str | None) -> frozenset[str]:
    """The top modules that come with the package and an extra: with "*" all extras, with None no extra."""
    extras = PROJECT["optional-dependencies"]
    chosen = extras if extra == "*" else () if extra is None else (extra,)
    found = required([*PROJECT["dependencies"], *(each for name in chosen for each in extras[name])])
    return frozenset(module for name in found for module in brought_by(name))


def run_with(extra: str | None, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process that has the package with an extra, or with none, and finds no package of the others."""
    hidden = sorted(modules_of("*") - modules_of(extra))
    assert extra == "worker" or {"prometheus_client", "rich"} <= set(hidden)
    hide = f"import sys; sys.modules.update(dict.fromkeys({hidden}))\n"
    command = [sys.executable, "-c", hide + code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def refused(what: str, module: str, extra: str = "worker") -> tuple[int, str, str]:
    """The status and the output of a command that lacks a package."""
    return 2, "", f"wideload: {what}{module} is not installed; run: pip install 'wideload[{extra}]'\n"


def outcome(extra: str | None, arguments: Sequence[str]) -> tuple[int, str, str]:
    """The status and the output of a command."""
    done = run_with(extra, RUN, *arguments)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("extra", [None, *sorted(set(OF_EXTRAS.values()))])
def test_modules_import_with_their_extra_alone(extra: str | None) -> None:
    """An application that installs an extra needs none of the others; without one, it has all that names no client."""
    modules = [each for each in MODULES if OF_EXTRAS.get(each) == extra]
    assert modules
    done = run_with(extra, "import " + ", ".join(modules))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["worker", "-c", "w.toml"], ["--help"], ["job"], []])
def test_command_without_click(arguments: list[str]) -> None:
    """An installation for serializers has the command, which says in one line what it lacks."""
    assert outcome(None, arguments) == refused("", "click")


@pytest.mark.parametrize("command", ["worker", "check", "demo", "consume", "dlq"])
def test_command_without_the_worker(command: str) -> None:
    """An installation for Spark jobs has click; a command that needs more says so, before it does anything."""
    assert outcome("spark", [command, "--help"]) == refused(f"{command}: ", "faust")


def test_jobs_without_the_worker() -> None:
    """`wideload job` needs the extra `spark` alone, as `--help` and `--version` do."""
    for arguments in (["--help"], ["--version"], ["job"], ["job", "sweep", "--help"]):
        status, told, errors = outcome("spark", arguments)
        assert (status, bool(told), errors) == (0, True, "")
    assert outcome("worker", ["job", "sweep"]) == refused("job: ", "pyspark", "spark")


def test_faust_worker_without_the_extra() -> None:
    """Faust's own command needs the extra too, and `wideload.worker` says so in one line."""
    code = "import os; os.environ['WIDELOAD_CONFIG'] = 'w.toml'; from wideload.worker import app"
    done = run_with("faust", code)
    assert (done.returncode, done.stdout, done.stderr) == refused("WIDELOAD_CONFIG: ", "prometheus_client")
