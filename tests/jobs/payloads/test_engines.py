"""What both engines promise an audit and a sweep."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from app.payloads.engine import Row
from app.payloads.local_engine import LocalEngine
from jobs.payloads.spark_engine import SparkEngine
from transforms.errors import ConfigurationError

LAST_US = 2**63 - 1
COLUMNS = "path string, at timestamp, number int, key binary"
LISTED = "path string, stored long"


@pytest.fixture(params=["local", "spark"])
def engine(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Any]:
    """Each of the two."""
    if request.param == "local":
        with LocalEngine(threads=3) as local:
            yield local
        return
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # as sessions of the jobs have it
    with SparkEngine(spark) as executors:
        yield executors


def made(items: Iterable[tuple[str | None, int]]) -> Iterator[Row]:
    for path, number in items:
        for turn in range(3):
            yield path, LAST_US - turn, number, b"\xff" if number else None


def chained(items: Iterable[Iterable[tuple[str | None, int]]]) -> Iterator[Row]:
    return made(item for some in items for item in some)


def listed(items: Iterable[str]) -> Iterator[Row]:
    for path in items:
        yield path, 2**40


def seen(rows: Iterator[tuple[int, Row]]) -> Iterator[Row]:
    """Each row with what came before it in the same call."""
    before = None
    for number, row in rows:
        yield row[0], number, len(row), row[1], before
        before = row[0]


def everything(rows: Iterator[Row]) -> list[Row]:
    return list(rows)


def rows_of(engine: Any, frame: Any) -> list[Row]:
    return [row for part in engine.gathered(frame, everything) for row in part]


def failing(items: Iterable[int]) -> Iterator[Row]:
    for item in items:
        yield "p", item
        if item == 5:
            raise ValueError("task of item 5")


def test_rows_of_a_path_meet(engine: Any) -> None:
    """Rows of all frames come sorted, those of a path in one call, with cells of each type as they were."""
    items = [("b", 1), (None, 0), ("é", 2), ("a", 3), ("a", 4)]
    found = engine.spread(items, made, COLUMNS)
    listing = engine.spread(["a", "é", "only listed"], listed, LISTED)
    assert sorted(rows_of(engine, found), key=repr) == sorted(made(items), key=repr)
    together = engine.by_path([listing, found], seen, "path string, frame int, width int, second long, before string")
    parts = engine.gathered(together, everything)
    rows = [row for part in parts for row in part]
    assert sorted(row[:3] for row in rows if row[0]) == sorted(
        [("a", 0, 2), ("é", 0, 2), ("only listed", 0, 2), *[("a", 1, 4)] * 6, *[("b", 1, 4)] * 3, *[("é", 1, 4)] * 3]
    )
    assert sum(row[0] is None for row in rows) == 3
    for path in ("a", "b", "é"):
        (mine,) = ([row for row in part if row[0] == path] for part in parts if any(row[0] == path for row in part))
        assert [row[1] for row in mine] == sorted(row[1] for row in mine)
        assert [row[3] for row in mine if row[1]] == sorted(row[3] for row in mine if row[1])
        assert all(row[4] == path for row in mine[1:])  # side by side


def test_large_path(engine: Any) -> None:
    """All rows of one path come to one call, however many there are; without items there are none."""
    many = engine.spread([[("p", 1)] * 1_000, [("q", 1)]], chained, COLUMNS)
    counted = engine.by_path([many], lambda rows: iter([(str(sum(1 for _ in rows)), 0)]), LISTED)
    numbers = [int(row[0]) for row in rows_of(engine, counted)]
    assert sum(numbers) == 3_003
    assert max(numbers) >= 3_000
    nothing = engine.spread([], listed, LISTED)
    assert rows_of(engine, engine.by_path([nothing, nothing], seen, COLUMNS)) == []


def test_failure_of_a_task(engine: Any) -> None:
    """The error of a task ends the run."""
    with pytest.raises(Exception, match="task of item 5"):
        engine.gathered(engine.spread(range(50), failing, LISTED), everything)


def test_report(engine: Any, tmp_path: Path) -> None:
    """All rows are written, with times as times, to a place where nothing was."""
    path = str(tmp_path / ("out.parquet" if isinstance(engine, LocalEngine) else "out"))
    engine.check_new(path)
    engine.save(engine.spread([("a", 1), (None, 0)], made, COLUMNS), path)
    table = pq.read_table(path)
    assert [field.name for field in table.schema] == ["path", "at", "number", "key"]
    assert sorted(table["at"].cast("int64").to_pylist()) == sorted([LAST_US - n for n in range(3)] * 2)
    with pytest.raises(ConfigurationError, match=r"^--report: .*out.* already exists; specify a new "):
        engine.check_new(path)


def test_report_of_lines(tmp_path: Path) -> None:
    """JSON lines have bytes as text, and no time where JSON's readers have none."""
    path = tmp_path / "out.jsonl"
    with LocalEngine() as engine:
        engine.save(engine.spread([("é", 1)], made, COLUMNS), str(path))
        rows = [("a", 1_700_000_000_123_000, 2**31 - 1, b"key"), ("b", None, None, None)]
        more = tmp_path / "more.jsonl"
        engine.save(engine.spread([rows], lambda items: (row for some in items for row in some), COLUMNS), str(more))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"path": "é", "at": None, "number": 1, "key": {"base64": "/w=="}}] * 3
    assert [json.loads(line) for line in more.read_text().splitlines()] == [
        {"path": "a", "at": "2023-11-14T22:13:20.123000+00:00", "number": 2**31 - 1, "key": "key"},
        {"path": "b", "at": None, "number": None, "key": None},
    ]


def test_report_that_cannot_be_written(tmp_path: Path) -> None:
    """It is refused before anything is read; a report is whole, or not there."""
    (tmp_path / "dangling.jsonl").symlink_to(tmp_path / "nowhere")
    with LocalEngine() as engine:
        for name, told in (
            ("out", r"found .*out, allowed is a file that ends in .parquet or .jsonl"),
            ("no/out.jsonl", r"/no is not a directory that this user can write to"),
            ("dangling.jsonl", r"dangling.jsonl already exists; specify a new file"),
        ):
            with pytest.raises(ConfigurationError, match=told):
                engine.check_new(str(tmp_path / name))
        frame = engine.spread([0], lambda items: (("a", "no time", 0, None) for _ in items), COLUMNS)
        with pytest.raises(TypeError):
            engine.save(frame, str(tmp_path / "out.jsonl"))
    assert not (tmp_path / "out.jsonl").exists()
