"""The notes of a backfill, on a real file system of Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.copying.checkpoint import Checkpoint, Progress
from jobs.driver.failures import JobFailedError
from transforms.errors import ConfigurationError


def notes(spark: SparkSession, folder: Path, source: str = "a") -> Checkpoint:
    return Checkpoint(spark, str(folder), {"source": source})


def test_checkpoint_torn(spark: SparkSession, tmp_path: Path) -> None:
    """Of a note that was cut off nothing counts; the one before it does, and the next has a number of its own."""
    folder = tmp_path / "checkpoint"
    first = notes(spark, folder)
    assert first.load() is None
    for at in (5, 7):
        first.save(Progress({0: at}, {1: at + 1}))
    (folder / "1").write_bytes((folder / "1").read_bytes()[:20])
    again = notes(spark, folder)
    assert again.load() == Progress({0: 5}, {1: 6})
    again.save(Progress({0: 9}, {}))
    assert notes(spark, folder).load() == Progress({0: 9}, {})


def test_checkpoint_without_a_whole_note(spark: SparkSession, tmp_path: Path) -> None:
    """Where no note can be read the job does not begin anew; but where the first was never whole it does."""
    folder = tmp_path / "checkpoint"
    made = notes(spark, folder)
    made.save(Progress({0: 1}, {}))
    (folder / "0").write_bytes(b"{")
    assert notes(spark, folder).load() is None
    made.save(Progress({0: 2}, {}))
    (folder / "1").write_bytes(b"{")
    with pytest.raises(ConfigurationError, match="is complete, so the progress of the job is not known"):
        notes(spark, folder).load()


def test_checkpoint_of_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    """Two runs with one checkpoint: the one that comes second to a note ends, and says why."""
    one, two = (notes(spark, tmp_path / "checkpoint") for _ in range(2))
    assert (one.load(), two.load()) == (None, None)
    one.save(Progress({0: 1}, {}))
    with pytest.raises(JobFailedError, match="another run is using the checkpoint"):
        two.save(Progress({0: 2}, {}))
    assert two.load() == Progress({0: 1}, {})


def test_checkpoint_of_something_else(spark: SparkSession, tmp_path: Path) -> None:
    """A folder with other files, or of another backfill, is refused."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "offsets").write_text("v1")
    with pytest.raises(ConfigurationError, match="is not empty and was not created by this job"):
        notes(spark, tmp_path / "checkpoint").load()
    notes(spark, tmp_path / "new").save(Progress())
    with pytest.raises(ConfigurationError, match="belongs to source a, this is source b"):
        notes(spark, tmp_path / "new", "b").load()


def test_note_that_cannot_be_read(spark: SparkSession, tmp_path: Path) -> None:
    """The note before does not count where the last one only cannot be read, or holds what the job does not write."""
    folder = tmp_path / "checkpoint"
    first = notes(spark, folder)
    first.save(Progress({0: 5}, {}))
    (folder / "1").mkdir()
    with pytest.raises(ConfigurationError, match=r"--checkpoint: \S+/1 cannot be read: "):
        notes(spark, folder).load()
    (folder / "1").rmdir()
    for more in ("", ', "positions": [], "ends": {}', ', "positions": {"0": "x"}, "ends": {}'):
        (folder / "1").write_text(f'{{"job": "backfill", "source": "a"{more}}}')
        with pytest.raises(ConfigurationError, match=r"--checkpoint: the last note in \S+ is damaged"):
            notes(spark, folder).load()
    (folder / "1").write_text("[" * 100_000)
    assert notes(spark, folder).load() == Progress({0: 5}, {})
