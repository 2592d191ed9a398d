"""What the modules say of themselves: `__all__`, and for `transforms/` what it may import.

Read from the source, so that nothing need be installed or started to check it.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("transforms", "stores", "app", "jobs")
MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if path.name not in {"__init__.py", "__main__.py"}
)


@functools.cache
def parsed(module: str) -> ast.Module:
    """The source of a module as a tree."""
    return ast.parse((ROOT / module).read_text(encoding="utf-8"))


def bound(statements: list[ast.stmt]) -> Iterator[str]:
    """The names that stand at the top level of a module, also under `if` and `try`, or that `__getattr__` asks for."""
    for statement in statements:
        match statement:
            case ast.FunctionDef(name="__getattr__"):
                yield from (str(node.value) for node in ast.walk(statement) if isinstance(node, ast.Constant))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name.split(".")[0] for alias in names)
            case ast.If(body=body, orelse=orelse):
                yield from bound(body)
                yield from bound(orelse)
            case ast.Try(body=body, handlers=handlers, orelse=orelse):
                yield from bound(body)
                yield from bound(orelse)
                for handler in handlers:
                    yield from bound(handler.body)


def exported(module: str) -> list[str] | None:
    """The names in `__all__`; None where there is none."""
    for statement in parsed(module).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                names: list[str] = ast.literal_eval(value)
                return names
    return None


def test_modules_are_found() -> None:
    """The check below sees the modules of all four folders."""
    assert {module.split("/")[0] for module in MODULES} == set(FOLDERS)


@pytest.mark.parametrize("module", MODULES)
def test_all_names_what_exists(module: str) -> None:
    """Where there is an `__all__`, it names only what the module has, once each."""
    names = exported(module) or []
    assert len(names) == len(set(names)), f"{module} names something twice"
    missing = set(names) - set(bound(parsed(module).body))
    assert not missing, f"{module} names what it does not have: {sorted(missing)}"


@pytest.mark.parametrize("module", [module for module in MODULES if exported(module) is not None])
def test_all_stands_where_it_says_something(module: str) -> None:
    """It is in modules that a module of `wideload` has all names of, and in those that have names of another one.

    Elsewhere the names without an underscore are those that others may use.
    """
    public = [ROOT / "wideload" / module, ROOT / "wideload" / module.partition("/")[2]]
    imports = [node for node in parsed(module).body if isinstance(node, ast.ImportFrom | ast.Try)]
    assert any(path.exists() for path in public) or set(exported(module) or ()) & set(bound([*imports])), module
    assert [name for name in exported(module) or [] if name.startswith("_")] == []


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("transforms/")])
def test_transforms_are_pure(module: str) -> None:
    """A transform imports nothing that does I/O, reads a clock or runs a loop, and nothing of ours but transforms."""
    allowed = {"cramjam", "crc32c", "cryptography", "transforms"} | sys.stdlib_module_names
    refused = {"asyncio", "os", "pathlib", "random", "selectors", "socket", "subprocess", "threading", "time"}
    for node in ast.walk(parsed(module)):
        names: list[str] = []
        match node:
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(name)):
                names = [name]
        for name in names:
            top = name.split(".")[0]
            assert top in allowed, f"{module} imports {name}"
            assert top not in refused, f"{module} imports {name}"
