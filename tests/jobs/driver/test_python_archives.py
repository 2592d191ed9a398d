"""Spark's archives of Python code: which workers need them, and what they cost a task."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from jobs.driver.python_archives import Sparing, without_archives


def test_archives_stay_where_nothing_else_is(tmp_path: Path) -> None:
    """Python workers do without Spark's archives only where PySpark and Py4J are found beside them."""
    archives = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip", "/mine/code.zip"]
    assert without_archives([*archives, str(tmp_path)]) == [*archives, str(tmp_path)]
    for name in ("pyspark", "py4j"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    assert without_archives([*archives, str(tmp_path)]) == ["/mine/code.zip", str(tmp_path)]


@pytest.mark.parametrize("fails", [False, True])
def test_task_spares_the_next_one_the_archives(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,  # noqa: FBT001
) -> None:
    """After a task, failed or not, Spark's archives are not read again; they and others still have their modules."""
    archives = {name: tmp_path / name for name in ("spark/python/lib/sparks.zip", "mine.zip")}
    for path in archives.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            for module in ("first", "second"):
                archive.writestr(f"{path.stem}_package/{module}.py", f"NAME = {module!r}")
            archive.writestr(f"{path.stem}_package/__init__.py", "")
    monkeypatch.setattr(sys, "path", [*map(str, archives.values()), *sys.path])
    monkeypatch.setattr(sys, "path_importer_cache", dict(sys.path_importer_cache))

    def work(items: Iterable[int]) -> Iterator[str]:
        for _ in items:
            yield importlib.import_module("sparks_package.first").NAME
            yield importlib.import_module("mine_package.first").NAME
            if fails:
                raise ValueError

    task = Sparing(work)([1])
    assert [next(task), next(task)] == ["first", "first"]
    assert any("sparks.zip" in entry for entry in sys.path_importer_cache)
    with pytest.raises(ValueError if fails else StopIteration):
        next(task)
    assert not any("sparks.zip" in entry for entry in sys.path_importer_cache)
    assert any("mine.zip" in entry for entry in sys.path_importer_cache)
    for package in ("sparks_package", "mine_package"):
        assert importlib.import_module(f"{package}.second").NAME == "second"
        for name in (package, f"{package}.first", f"{package}.second"):
            del sys.modules[name]
