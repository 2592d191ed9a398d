"""Results of the matrix: read from pytest's report, kept in a file, shown in the table."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.matrix.result import Result, counted, merged, read, table, write

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
    found = counted(REPORT)
    assert found.passed == 2
    assert found.failed == [
        "test_worker::test_b[one]: AssertionError: 15 != 14",
        "test_dlq::test_c: failed on setup with: no broker",
    ]
    assert found.skipped == {"needs Kafka 4.0": 2}


def test_results_are_kept(tmp_path: Path) -> None:
    """What is written is read again, and a file that is not there is no result."""
    results = [Result("kafka-2.8", "2026-11-26", {"Kafka": "2.8.2"}, 12, ("a::b: c",), {"why": 2}, set_up_s=1.5)]
    assert read(tmp_path / "none.json") == []
    write(results, tmp_path / "some.json")
    (found,) = read(tmp_path / "some.json")
    assert (found.cell, found.versions, found.passed, list(found.failed)) == (
        "kafka-2.8",
        {"Kafka": "2.8.2"},
        12,
        ["a::b: c"],
    )


def test_results_are_kept_whole(tmp_path: Path) -> None:
    """A file is replaced as a whole: if there is no room for the new results, the former ones stay."""
    file = tmp_path / "some.json"
    write([Result("kafka-2.8", "2026-11-26")], file)
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


def test_cell_without_a_test_that_passed() -> None:
    """A cell of which all tests were skipped has shown nothing."""
    assert not Result("kafka-2.8", "2026-11-26", skipped={"needs Kafka 4.0": 16}).good
    assert Result("kafka-2.8", "2026-11-26", passed=1, skipped={"needs Kafka 4.0": 15}).good
    assert Result("kfake", "2026-11-26", missing="Go is not installed").good


@pytest.mark.parametrize(
    ("new", "kept"),
    [
        (Result("b", "2026-11-27", passed=2), "2026-11-27"),
        (Result("b", "2026-11-27", error="no jars"), "2026-11-27"),
        (Result("b", "2026-11-27", missing="no Go"), "2026-11-26"),
    ],
    ids=["passed", "failed", "not here"],
)
def test_newest_result_of_a_cell_is_kept(new: Result, kept: str) -> None:
    """A run takes the place of the one before, but a machine that cannot have a cell takes nothing away."""
    before = [Result("b", "2026-11-26", passed=1), Result("a", "2026-11-26"), Result("gone", "2026-11-26")]
    found = [(each.cell, each.date) for each in merged(before, [new], ["a", "b", "c"])]
    assert found == [("a", "2026-11-26"), ("b", kept)]


def test_table_says_what_ran_and_why_not() -> None:
    """The table has the versions that ran, the reason of each failure and skip, and why a cell could not be had."""
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(
        table(
            [
                Result("kafka-2.8", "2026-11-26", {"Kafka": "2.8.2"}, 1_200, ["a::b: [red] c"], {"needs Kafka 4.0": 3}),
                Result("kfake", "2026-11-26", missing="Go is not installed"),
                Result("lowest", "2026-11-26", error="uv pip failed"),
            ]
        )
    )
    shown = console.export_text()
    for expected in ("Kafka 2.8.2", "1,200", "failed: a::b: [red] c", "skipped, 3: needs Kafka 4.0"):
        assert expected in shown
    assert "not here: Go is not installed" in shown
    assert "FAILED: uv pip failed" in shown


def test_cell_that_is_not_here_is_no_failure() -> None:
    """A cell fails by its tests, or before them; not if the machine lacks what it needs."""
    assert Result("a", "", passed=3).good
    assert Result("a", "", missing="no Go").good
    assert not Result("a", "", passed=3, failed=["b"]).good
    assert not Result("a", "", error="no jars").good
