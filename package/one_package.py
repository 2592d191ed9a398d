"""Builds the wheel and the source distribution: a build backend (PEP 517) around that of setuptools.

In a clone, `app`, `jobs`, `stores` and `transforms` are top-level packages, and many services have an `app` too. The
wheel therefore contains one top-level package, `wideload`, so that it can be installed next to an application. The
four packages are moved to `wideload/_internal/`, and each import of one of them gets the longer name; `wideload/` is
identical in both. The pages of `docs/` are included, because the worker serves them. The backend arranges a copy of the
sources in a temporary directory and lets setuptools build the wheel there. An editable installation and a source
distribution keep the layout of the clone.

The README is the long description, so links and images in it become absolute: a package index has no files that a
relative link could reach.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    get_requires_for_build_editable,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "FOLDERS",
    "INTERNAL",
    "absolute_links",
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
_OF_THE_PROJECT = ("pyproject.toml", "LICENSE")
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!https?:|mailto:|#)(?P<target>[^)\s]+)\)")
_INIT = '"""The code behind the public modules of `wideload`. Its names may change in any release."""\n'


def build_wheel(
    wheel_directory: str, config_settings: Mapping[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """PEP 517's hook. pip reads the metadata from the wheel, because there is no hook that prepares them."""
    del metadata_directory
    target = str(Path(wheel_directory).resolve())
    with tempfile.TemporaryDirectory(prefix="wideload-wheel-") as folder:
        arrange(_ROOT, Path(folder))
        with contextlib.chdir(folder):
            return str(build_meta.build_wheel(target, config_settings))


def build_sdist(sdist_directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    """PEP 517's hook: the sources in the layout of the clone, without the tests."""
    target = str(Path(sdist_directory).resolve())
    with tempfile.TemporaryDirectory(prefix="wideload-sdist-") as folder:
        for name in (*FOLDERS, "wideload", "package"):
            _copy(_ROOT / name, Path(folder, name))
        Path(folder, "docs").mkdir()
        for page in (_ROOT / "docs").glob("*.md"):
            shutil.copy2(page, Path(folder, "docs"))
        shutil.copy2(_ROOT / "MANIFEST.in", folder)
        _copy_project(_ROOT, Path(folder))
        with contextlib.chdir(folder):
            return str(build_meta.build_sdist(target, config_settings))


def arrange(root: Path, folder: Path) -> None:
    """Copies the sources of the clone `root` into `folder`, in the layout of the wheel.

    Raises:
        ValueError: an import cannot be renamed; the message has the file and the line.
    """
    _copy_project(root, folder)
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


def _copy_project(root: Path, folder: Path) -> None:
    """Copies the files that describe the project, the README with absolute links."""
    for name in _OF_THE_PROJECT:
        shutil.copy2(root / name, folder / name)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (root / "README.md").read_text(encoding="utf-8")
    absolute = absolute_links(readme, project["urls"]["Repository"], f"v{project['version']}")
    (folder / "README.md").write_text(absolute, encoding="utf-8")


def absolute_links(text: str, repository: str, tag: str) -> str:
    """Markdown in which each link to a file leads to that file in the tagged version of the repository."""

    def absolute(found: re.Match[str]) -> str:
        kind = "raw" if found["image"] else "blob"
        return f"{found['image']}[{found['text']}]({repository}/{kind}/{tag}/{found['target']})"

    return _LINK.sub(absolute, text)


def renamed(source: str) -> str:
    """The source of a module, with the longer names where it imports one of `FOLDERS`. Nothing else changes.

    Imports are the statement `from … import …`, anywhere in the module, and `importlib.import_module("…")`, also with
    an f-string that begins with the name.

    Raises:
        ValueError: the statement is `import app.…` or similar, which binds a name that does not exist in the wheel.
    """
    lines = source.encode().splitlines(keepends=True)
    for line, column, name in sorted(_imports(ast.parse(source)), reverse=True):
        text = lines[line - 1]
        start = text.index(name.encode(), column)
        lines[line - 1] = text[:start] + f"{INTERNAL}.".encode() + text[start:]
    return b"".join(lines).decode()


def _imports(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """The line and the column of each import of one of `FOLDERS`, and the name, or how it begins."""
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
