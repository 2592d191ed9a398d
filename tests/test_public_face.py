"""`wideload` in the checkout: the public names, and what importing them imports."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wideload
from stores.registry import STORE_NAMES

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(
    path.relative_to(ROOT).as_posix().removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for path in (ROOT / "wideload").rglob("*.py")
)
# All that these have is public; of the others, the face has a selection.
WHOLE = {
    **{module: f"app.{module.partition('.')[2]}" for module in MODULES if module.startswith("wideload.serializers")},
    "wideload.chunks": "app.chunks",
    "wideload.errors": "transforms.errors",
    "wideload.wrapper": "transforms.wrapper",
    "wideload.worker": "app.worker",
    **{f"wideload.stores.{name}": f"stores.{name}" for name in STORE_NAMES},
    **{
        each: each.partition(".")[2]
        for each in MODULES
        if each.startswith("wideload.jobs.") and not each.endswith(".archive")
    },
}
HEAVY = (
    *("aiokafka", "boto3", "botocore", "click", "confluent_kafka", "faust", "google", "kafka", "obstore"),
    *("pyarrow", "pyspark", "requests"),
)


@pytest.mark.parametrize(("face", "home"), WHOLE.items())
def test_face_has_what_its_home_has(face: str, home: str) -> None:
    """A name that is new in the home is new in the face, and is the same object."""
    public, internal = importlib.import_module(face), importlib.import_module(home)
    assert set(public.__all__) == set(internal.__all__)
    for name in set(public.__all__) - {"app"}:  # the worker's app needs a configuration
        assert getattr(public, name) is getattr(internal, name)


def test_top_has_what_users_import() -> None:
    """`wideload` itself has all of the serializers and of the clients of chunks, and the interface of stores."""
    expected = {"PayloadStore", "open_store", *names("wideload.serializers"), *names("wideload.chunks")}
    assert set(wideload.__all__) == expected
    assert expected <= set(dir(wideload))
    assert declared() == expected  # a type checker sees the same


def test_top_has_nothing_else() -> None:
    """A misspelt name is an error that has the name."""
    with pytest.raises(AttributeError, match="module 'wideload' has no attribute 'LargeMessageSerialiser'"):
        _ = wideload.LargeMessageSerialiser  # type: ignore[attr-defined]  # as a user would misspell it


@pytest.mark.parametrize("module", [each for each in MODULES if each != "wideload.__main__"])
def test_module_of_the_face_says_what_it_is(module: str) -> None:
    """Each has a docstring, and lists its names in order, but the package of the jobs, which has none."""
    found = importlib.import_module(module)
    assert found.__doc__
    assert list(getattr(found, "__all__", [])) == sorted(getattr(found, "__all__", []), key=order)


@pytest.mark.parametrize("module", ["wideload", "wideload.serializers", "wideload.stores", "wideload.errors"])
def test_import_of_the_face_imports_no_client(module: str) -> None:
    """What an application imports at its start brings no Kafka client, no boto3, no PySpark."""
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def names(module: str) -> list[str]:
    """What a module of the face offers."""
    return list(importlib.import_module(module).__all__)


def declared() -> set[str]:
    """The names that `wideload` imports for type checkers."""
    tree = ast.parse((ROOT / "wideload" / "__init__.py").read_text(encoding="utf-8"))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0)
    return {alias.name for node in imports if str(node.module).startswith("wideload.") for alias in node.names}


def order(name: str) -> tuple[int, str]:
    """Constants, classes, functions, as ruff sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "examples").glob("*.py"))]
_IMPORT = re.compile(r"^from ([\w.]+) import (\w+(?:, \w+)*|\([^)]*\))", re.MULTILINE)


def test_pages_import_what_there_is() -> None:
    """Each import in the pages and in the examples is one of the face, and works."""
    found = [
        (page.name, module, name)
        for page in PAGES
        for module, listed in _IMPORT.findall(page.read_text(encoding="utf-8"))
        for name in re.findall(r"\w+", listed)
        if module.partition(".")[0] in {"app", "jobs", "stores", "transforms", "wideload"}
    ]
    assert len(found) > 30
    assert [each for each in found if each[1] not in MODULES] == []
    assert [each for each in found if each[2] not in importlib.import_module(each[1]).__all__] == []


def test_table_of_the_page_has_each_module() -> None:
    """docs/python.md names each public module, by its name or by the end of it behind that of its package."""
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    table = text.partition("## Modules")[2].partition("\n## ")[0]
    named = [each for each in MODULES if each != "wideload.__main__" and not each.startswith("wideload.jobs")]
    assert [each for each in named if f"`{each}`" not in table and f"`.{each.rpartition('.')[2]}`" not in table] == []
    assert "`wideload.jobs.NAME`" in table
