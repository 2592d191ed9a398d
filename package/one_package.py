"""Builds the wheel: all code inside the one package `wideload`, so that it can be installed beside an application.

In the checkout `app`, `jobs`, `stores` and `transforms` stand at the top, and half of all Python services have an `app`
of their own. In the wheel they stand in `wideload/_internal/`, and each import of one of them has the longer name. The
folder `wideload/` itself is the same in both. The pages of `docs/` go along, as the worker serves them. This is a build
backend (PEP 517) around that of setuptools: it arranges a copy of the sources in a temporary folder and lets setuptools
make the wheel from there. An editable installation and a source distribution have the folders of the checkout.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "FOLDERS",
    "INTERNAL",
    "arrange",
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "prepare_metadata_for_build_editable",
    "renamed",
]

FOLDERS = ("app", "jobs", "stores", "transforms")
INTERNAL = "wideload._internal"

_ROOT = Path(__file__).resolve().parents[1]
_OF_THE_PROJECT = ("pyproject.toml", "README.md", "LICENSE")
_INIT = '"""The code behind the public modules of `wideload`. Its names may change with each release."""\n'


def build_wheel(
    wheel_directory: str, config_settings: Mapping[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """PEP 517's hook. pip takes the metadata from the wheel, as there is no hook that prepares them."""
    del metadata_directory
    target = str(Path(wheel_directory).resolve())
    with tempfile.TemporaryDirectory(prefix="wideload-wheel-") as folder:
        arrange(_ROOT, Path(folder))
        with contextlib.chdir(folder):
            return str(build_meta.build_wheel(target, config_settings))


def arrange(root: Path, folder: Path) -> None:
    """Copies the sources of the checkout `root` into `folder`, as the wheel has them.

    Raises:
        ValueError: an import cannot be renamed; the message has the file and the line.
    """
    for name in _OF_THE_PROJECT:
        shutil.copy2(root / name, folder / name)
    _copy(root / "wideload", folder / "wideload")
    internal = folder / Path(*INTERNAL.split("."))
    for name in FOLDERS:
        _copy(root / name, internal / name)
    (internal / "__init__.py").write_text(_INIT, encoding="utf-8")
    (internal / "docs").mkdir()
    for page in (root / "docs").glob("*.md"):
        shutil.copy2(page, internal / "docs")
    for module in folder.rglob("*.py"):
        source = module.read_text(encoding="utf-8")
        try:
            changed = renamed(source)
        except ValueError as exc:
            raise ValueError(f"{module.relative_to(folder)}, {exc}") from exc
        if changed != source:
            times = module.stat()
            module.write_text(changed, encoding="utf-8")
            os.utime(module, ns=(times.st_atime_ns, times.st_mtime_ns))


def renamed(source: str) -> str:
    """The source of a module, with the longer names where it imports one of `FOLDERS`. All else stays, lines too.

    Imports are the statement `from … import …`, wherever it stands, and `importlib.import_module("…")`, also with an
    f-string that begins with the name.

    Raises:
        ValueError: the statement is `import app.…` or the like, which binds a name that the wheel has not.
    """
    lines = source.encode().splitlines(keepends=True)
    for line, column, name in sorted(_imports(ast.parse(source)), reverse=True):
        text = lines[line - 1]
        start = text.index(name.encode(), column)
        lines[line - 1] = text[:start] + f"{INTERNAL}.".encode() + text[start:]
    return b"".join(lines).decode()


def _imports(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """The line of each import of ours, the column where it begins, and the name, or the beginning of it."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(name), level=0, lineno=line, col_offset=column) if _is_ours(name):
                yield line, column + len("from"), name
            case ast.Import(names=names, lineno=line):
                for each in names:
                    if _is_ours(each.name):
                        raise ValueError(f"line {line}: import {each.name}: write from … import …, for the wheel")
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[argument, *_]):
                named = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
                if isinstance(named, ast.Constant) and isinstance(named.value, str) and _is_ours(named.value):
                    yield argument.lineno, argument.col_offset, named.value


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in FOLDERS


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
