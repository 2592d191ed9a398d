"""The two pages on wrappers: their examples are the vectors, and their tables are those of the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from app.config.parsing import parse
from app.config.wrapping import WRAPPER_KEYS
from tests.vectors.wrapper import wrapper_cases
from transforms.wrapper import OWN_KEYS, KeyRange

_DOCS = Path(__file__).parents[1] / "docs"
PAGE = (_DOCS / "wrapper.md").read_text(encoding="utf-8")
FORMAT = (_DOCS / "wrapper-format.md").read_text(encoding="utf-8")


def test_examples_are_vectors() -> None:
    """Each example in bytes is the vector that it is named after."""
    known = {case.name: case.bytes for case in wrapper_cases()}
    found = re.findall(r"<!-- vector: ([^\n]+) -->\n```text\n(.*?)```", FORMAT, re.DOTALL)
    assert {name: bytes.fromhex(text) for name, text in found} == {name: known[name] for name, _ in found}
    assert len(found) == FORMAT.count("```text") > 1


def test_ranges_are_those_of_the_code() -> None:
    """The table has the bounds of each range."""
    rows = re.findall(r"\| `([A-Z_]+)` \| ([0-9,]+) to ([0-9,]+) \|", FORMAT)
    found = [(name, int(first.replace(",", "")), int(last.replace(",", ""))) for name, first, last in rows]
    assert found == [(each.name, each.first, each.last) for each in KeyRange]


def test_own_keys_are_those_of_the_code() -> None:
    """The table has every key that every pipeline has, with its header."""
    found = {}
    for first, last, names in re.findall(r"\| (2082\d\d\d) to (2082\d\d\d) \| (.*) \|", FORMAT):
        listed = re.findall("`([^`]+)`", names)
        assert int(last) - int(first) + 1 == len(listed)
        found.update({int(first) + i: name for i, name in enumerate(listed)})
    assert found == OWN_KEYS


def test_defaults_are_those_of_the_code() -> None:
    """The table has each key of the configuration, with its default."""
    assert re.findall(r"\| `(\w+\.on\.[\w.]+)` \| `(\w+)` \|", PAGE) == [
        (key.name, key.default) for key in WRAPPER_KEYS
    ]


def test_configuration_is_taken() -> None:
    """The example of the configuration is one that a worker takes."""
    (text,) = [block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "[pipeline" in block]
    settings = parse({"bootstrap.servers": "localhost:1", **tomllib.loads(text)}, {})
    assert [pipeline.transforms for pipeline in settings.pipelines] == [("unwrap", "offload"), ("inflate", "wrap")]
    assert {pipeline.wrapper.wrap.table.key("trace-id") for pipeline in settings.pipelines} == {3_000_001}
