"""Results of the matrix: read from pytest's report, and kept in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.matrix.result import Result, counted, merged, read, write

REPORT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite tests="6">
<testcase classname="tests.integration.test_worker" name="test_a" time="1.0"/>
<testcase classname="tests.integration.test_worker" name="test_b[one]" time="1.0">
 <failure message="AssertionError: 15 != 14&#10;and more">the traceback</failure></testcase>
<testcase classname="tests.integration.test_dlq" name="test_c">
 <error message="failed on setup with: no broker"/></testcase>
<testcase classname="tests.integration.test_dlq" name="test_d"><skipped message="needs Kafka 4.0"/></testcase>
<testcase classname="tests.integration.test_dlq" name="test_e"><skipped message="needs Kafka 4.0"/></testcase>
<testcase classname="tests.integration.test_dlq" name="test_f"/>
</testsuite></testsuites>"""


def test_report_is_counted() -> None:
    """Each test of the report is counted once; a failure has its test and the first line of its reason."""
    failed = [
        "test_worker::test_b[one]: AssertionError: 15 != 14",
        "test_dlq::test_c: failed on setup with: no broker",
    ]
    assert counted(REPORT) == (2, failed, {"needs Kafka 4.0": 2})


def test_results_are_kept_whole(tmp_path: Path) -> None:
    """What is written is read again; if there is no room for new results, the former ones stay; no file is none."""
    results = [Result("kafka-2.8", "2026-11-26", {"Kafka": "2.8.2"}, 12, ["a::b: c"], {"why": 2}, set_up_s=1.5)]
    file = tmp_path / "some.json"
    assert read(file) == []
    write(results, file)
    assert read(file) == results
    with file.open(encoding="utf-8") as former:
        write([], file)
        assert "kafka-2.8" in former.read()
    assert [each.name for each in tmp_path.iterdir()] == ["some.json"]


@pytest.mark.parametrize("text", ["<<<<<<< HEAD", '[{"cell": "kafka-2.8", "time": 1}]', "[1]", "7"])
def test_file_with_something_else(tmp_path: Path, text: str) -> None:
    """A merge that was left half done is one sentence."""
    file = tmp_path / "some.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"^some\.json has no results \(.*\); restore it, or remove it$"):
        read(file)


@pytest.mark.parametrize(
    ("former", "new", "kept"),
    [
        ({"passed": 1}, {"passed": 2}, "2026-11-27"),
        ({"passed": 1}, {"error": "no jars"}, "2026-11-27"),
        ({"passed": 1}, {"missing": "no Go"}, "2026-11-26"),
        ({"missing": "no Go"}, {"missing": "no Go"}, "2026-11-27"),
    ],
    ids=["passed", "failed", "not here", "not here again"],
)
def test_newest_result_of_a_cell_is_kept(former: dict[str, Any], new: dict[str, Any], kept: str) -> None:
    """A run takes the place of the one before, but a machine that cannot have a cell takes no run away."""
    before = [Result("b", "2026-11-26", **former), Result("a", "2026-11-26"), Result("gone", "2026-11-26")]
    found = merged(before, [Result("b", "2026-11-27", **new)], ["a", "b", "c"])
    assert [(each.cell, each.date) for each in found] == [("a", "2026-11-26"), ("b", kept)]


@pytest.mark.parametrize(
    ("found", "good"),
    [
        ({"passed": 1, "skipped": {"needs Kafka 4.0": 15}}, True),
        ({"missing": "no Go"}, True),
        ({"skipped": {"needs Kafka 4.0": 16}}, False),
        ({"passed": 3, "failed": ["b"]}, False),
        ({"passed": 3, "error": "no jars"}, False),
    ],
)
def test_cell_fails_by_its_tests(found: dict[str, Any], *, good: bool) -> None:
    """Or before them, or if none has passed; not if the machine lacks what it needs."""
    assert Result("a", "", **found).good is good
