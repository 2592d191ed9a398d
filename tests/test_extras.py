"""The extras of the package: each public module, and the command, where no package of another extra is installed."""

from __future__ import annotations

import functools
import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Iterable
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
FAUST = ["import os; os.environ['WIDELOAD_CONFIG'] = 'w.toml'; from wideload.worker import app"]
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


@pytest.mark.parametrize(
    ("extra", "arguments", "lacking"),
    [
        (None, ["worker", "-c", "w.toml"], ("", "click", "worker")),
        (None, ["--help"], ("", "click", "worker")),
        (None, [], ("", "click", "worker")),
        *(
            ("spark", [name, "--help"], (f"{name}: ", "faust", "worker"))
            for name in ("worker", "demo", "consume", "dlq")
        ),
        ("spark", ["--help"], None),
        ("spark", ["--version"], None),
        ("spark", ["job"], None),
        ("spark", ["job", "sweep", "--help"], None),
        ("worker", ["job", "sweep"], ("job: ", "pyspark", "spark")),
        ("faust", FAUST, ("WIDELOAD_CONFIG: ", "prometheus_client", "worker")),
    ],
)
def test_command_says_what_it_lacks(
    extra: str | None, arguments: list[str], lacking: tuple[str, str, str] | None
) -> None:
    """A command that needs more than what is installed says so in one line, before it does anything; others run."""
    done = run_with(extra, FAUST[0]) if arguments is FAUST else run_with(extra, RUN, *arguments)
    if lacking is None:
        assert (done.returncode, bool(done.stdout), done.stderr) == (0, True, "")
    else:
        what, module, needed = lacking
        said = f"wideload: {what}{module} is not installed; run: pip install 'wideload[{needed}]'\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.parametrize("extra", [None, *sorted(set(OF_EXTRAS.values()))])
def test_modules_import_with_their_extra_alone(extra: str | None) -> None:
    """An application that installs an extra needs none of the others; without one, it has all that names no client."""
    modules = [each for each in MODULES if OF_EXTRAS.get(each) == extra]
    assert modules
    done = run_with(extra, "import " + ", ".join(modules))
    assert (done.returncode, done.stderr) == (0, "")
