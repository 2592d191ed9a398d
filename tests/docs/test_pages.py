"""The pages: those that are generated are up to date, and what they are made of is in them once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, cast

import click
import pytest
from aiohttp import web

from app.commands.job import JOBS
from app.pipeline.steering import OwnSteering
from app.web.metrics import Metrics
from app.web.rest import Rest
from benchmarks.result import TARGETS, published
from docs import commands_page, configuration_page, numbers_page, python_page
from docs.pages import GENERATED
from stores.registry import STORE_CLASS, STORE_NAMES
from tests.app.configurations import HEAD, ORDERS, settings_of

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_page_is_up_to_date(path: Path) -> None:
    """The text in the repository is what the code gives."""
    assert path.read_text(encoding="utf-8") == GENERATED[path](), f"{path.name} is stale: run make docs"


def section(page: str, name: str) -> str:
    """The part of the page of commands that is about one of them."""
    begin = page.index(f"\n## `{name}`\n")
    end = page.find("\n## ", begin + 1)
    return page[begin : None if end == -1 else end]


def test_each_option_stands_once() -> None:
    """Each option of each command has one row in its table; each job has its section, with the options of all jobs."""
    page, count = commands_page.page(), 0
    for name, command in commands_page.commands():
        rows = [line for line in section(page, name).splitlines() if line.startswith("| `")]
        found = Counter(option for row in rows for option in re.findall(r"`(-[^`]+)`", row.split(" | ")[0]))
        shown = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        expected = {option for each in shown for option in (*each.opts, *each.secondary_opts)}
        assert found == Counter(expected - {"-h", "--help", "-v", "--debug"}), name
        count += len(rows)
    assert count > 60
    for name in JOBS:
        assert page.count(f"\n## `wideload job {name}`\n") == 1
        assert section(page, f"wideload job {name}").count("\n  --kafka-config FILE") == 1


def test_rows_have_what_help_has() -> None:
    """Each row of an option has the environment variable, the range, the default and `required` of its `--help`."""
    page, seen = commands_page.page(), set()
    for name, command in commands_page.commands():
        rows = {row.split("`")[1]: row for row in section(page, name).splitlines() if row.startswith("| `")}
        for option in command.params:
            record = option.get_help_record(click.Context(command))
            if record is None or option.opts[0] not in rows:
                continue
            row = rows[option.opts[0]]
            assert row.count(" | ") == 3, row
            extra = re.search(r"  \[(.+)\]$", record[1])
            for part in extra[1].split("; ") if extra else ():
                kind, _, value = part.rpartition(": ")
                assert (value if part == "required" else f"`{value}`") in row, f"{name}: {part}"
                seen.add(kind or ("required" if part == "required" else "range"))
            choices = option.type.choices if isinstance(option.type, click.Choice) else ()
            assert [choice for choice in choices if f"`{choice}`" not in row] == [], name
    assert seen == {"env var", "default", "range", "required"}


def test_each_public_name_stands_once() -> None:
    """The page of the Python API has no name twice, and a section for each module of clients and of stores."""
    names = re.findall(r"^::: (\S+)$", python_page.page(), re.MULTILINE)
    assert len({name.rpartition(".")[2] for name in names}) > 80
    assert [name for name, times in Counter(names).items() if times > 1] == []
    modules = {
        f"wideload.{path.parent.name}.{path.stem}"
        for package in ("serializers", "stores")
        for path in (ROOT / "wideload" / package).glob("[!_]*.py")
    }
    assert len(modules) > 8
    assert modules <= set(python_page.MODULES)


def test_each_store_is_told() -> None:
    """Each built-in store is named by the properties that choose it, and has a row in docs/stores.md."""
    texts = [key.doc for _, key in configuration_page.anchors() if key.name == STORE_CLASS]
    assert len(texts) == 3
    assert [(name, text) for name in STORE_NAMES for text in texts if f"`{name}`" not in text] == []
    stores = {cells[0].removeprefix("| ").partition(",")[0] for cells in rows_of_tables()}
    assert {f"`{name}`" for name in STORE_NAMES} - stores == set()


def test_each_target_has_its_row() -> None:
    """A number with a target that was measured stands on the page, whether it was reached or not."""
    told = {name for section in numbers_page.SECTIONS for name in section.rows}
    measured = set(published())
    assert (measured & set(TARGETS)) - told == set()
    assert set(numbers_page.QUOTED) <= measured


def rows_of_tables() -> list[list[str]]:
    """The cells of each row of each table in docs/."""
    pages = (path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    return [line.split(" | ") for page in pages for line in page.splitlines() if line.startswith("| ")]


def test_each_metric_stands_in_one_table() -> None:
    """Every series of the worker has one row; those with Kafka's names have them beside."""
    named = [name for cells in rows_of_tables() for cell in cells[:2] for name in re.findall(r"`(wideload_\w+)`", cell)]
    series = [
        f"{family.name}_total" if family.type == "counter" else family.name for family in Metrics([], 1).collect()
    ]
    assert len(series) > 50
    found = Counter(named)
    assert {name: found[name] for name in series if found[name] != 1} == {}
    assert set(named) - set(series) == set()


def test_each_path_stands_in_one_table() -> None:
    """Every path of Connect's REST API that answers has one row in docs/rest.md."""
    rest: Any = Rest(settings_of(HEAD + ORDERS), [], cast(Any, None), {}, cast(Any, None), OwnSteering())
    application = web.Application()
    rest.add_to(application)
    routes = {
        f"{route.method} {route.resource.canonical.removesuffix('{slash}')}"
        for route in application.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    page = (ROOT / "docs" / "rest.md").read_text(encoding="utf-8")
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    found = Counter(path for cell in cells for path in re.findall(r"`((?:DELETE|GET|PATCH|POST|PUT) [^`]+)`", cell))
    assert {path: found[path] for path in routes if found[path] != 1} == {}


def test_readme_is_short() -> None:
    """Somebody new reads it in one go."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
