"""The names of loggers: one for each module, whether it stands in a checkout or in an installed package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from package.one_package import FOLDERS
from transforms import logger_name as module
from transforms.logger_name import logger_name

ROOT = Path(__file__).resolve().parents[2]
_SHOWN = re.compile(r'(?:^(?:DEBUG|INFO|WARNING|ERROR) |"logger": ")(wideload\.[a-z_.]+|app\.[a-z_.]+)', re.MULTILINE)


@pytest.mark.parametrize("package", ["", "wideload._internal."])
def test_a_logger_has_one_name(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`app` is the worker; the other folders keep their names. The folder of the wheel stands in none of them."""
    monkeypatch.setattr(module, "_PACKAGE", package)
    for name, public in (
        ("app.pipeline.flow", "wideload.pipeline.flow"),
        ("app.run", "wideload.run"),
        ("stores.s3", "wideload.stores.s3"),
        ("jobs.reading.topics", "wideload.jobs.reading.topics"),
        ("transforms.chunk", "wideload.transforms.chunk"),
    ):
        assert logger_name(package + name) == public


def test_no_logger_has_the_name_of_its_module() -> None:
    """A module of ours gets its logger by its public name: that of the module is another one in the wheel."""
    sources = {path: path.read_text() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert sum("getLogger(logger_name(__name__))" in source for source in sources.values()) > 20
    assert [path for path, source in sources.items() if "getLogger(__name__)" in source] == []


def test_loggers_of_the_docs_are_there() -> None:
    """Each line of a log that the documentation shows has the name of a logger that writes lines."""
    shown = {name for page in (ROOT / "docs").glob("*.md") for name in _SHOWN.findall(page.read_text())}
    assert shown
    modules = {name: ROOT / f"app/{name.removeprefix('wideload.').replace('.', '/')}.py" for name in shown}
    assert [name for name, path in modules.items() if "logger_name(__name__)" not in path.read_text()] == []
