"""CONTRIBUTING's steps for adding something: whatever they name is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Adding something\n")[2]
KINDS = ("A store", "A transform", "A client")


def steps(kind: str) -> list[str]:
    """The steps of a section, each in one line."""
    section = STEPS.partition(f"\n### {kind}\n")[2].partition("\n##")[0]
    return [" ".join(step.split()) for step in re.split(r"^\d+\. ", section, flags=re.MULTILINE)[1:]]


def named(step: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", step)


def files(name: str) -> list[Path]:
    """The files that a name means: a path, in which NAME is any name, or a module or one of its names with dots."""
    if re.fullmatch(r"[\w.]+(?:/[\w.-]*)+|[\w-]+\.(?:toml|md)|Makefile", name):
        return sorted(ROOT.glob(name.replace("NAME", "*")))
    parts = name.split(".")
    ends = (ROOT.joinpath(*parts[:count]).with_suffix(".py") for count in range(len(parts), 1, -1))
    return [path for path in ends if path.is_file()][:1]


def defined(path: Path) -> Iterator[str]:
    """The functions, classes, methods and variables of a module, with those of its classes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def missing(step: str) -> list[str]:
    """What a step names, and is not there: files; make's targets; and names that no file of the step defines."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    found = {name: files(name) for name in named(step)}
    modules = [path for paths in found.values() for path in paths if path.suffix == ".py"]
    there = {"wideload", *(name for path in modules for name in (path.stem, *defined(path)))}

    def is_there(name: str, paths: list[Path]) -> bool:
        if " " in name:  # a command: test_blocks.py has its options
            return not name.startswith("make ") or name.split()[1] in targets
        if "/" in name or (paths and paths[0].suffix != ".py"):
            return bool(paths)
        return name.rpartition(".")[2] in there

    return [name for name, paths in found.items() if not is_there(name, paths)]


@pytest.mark.parametrize("kind", KINDS)
def test_steps_name_what_is_there(kind: str) -> None:
    """Each section has ten steps. Their files, targets of make, functions and lists are there under these names."""
    found = steps(kind)
    assert len(found) == 10
    assert {number: gone for number, step in enumerate(found, 1) if (gone := missing(step))} == {}


def test_missing_name_is_found() -> None:
    """A name that no file of the step defines is told, and so is a file that is not there."""
    assert missing("Build it in `built` of `app/pipeline/chain.py`, or in `app/pipeline/chains.py`.") == [
        "built",
        "app/pipeline/chains.py",
    ]
