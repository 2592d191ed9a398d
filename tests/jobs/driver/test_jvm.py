"""What the jobs ask of Java: each name that is private to another package, and Hadoop's files."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from jobs.driver import jvm
from jobs.driver.jvm import Files, delta_table, has_class, java_packages
from tests.jobs.ingests import require_delta

pytestmark = pytest.mark.matrix

LOCAL = "fs.AbstractFileSystem.file.impl"


@pytest.fixture
def _without_contexts(spark: SparkSession) -> Iterator[None]:
    """No `FileContext` for local files, as the connectors of some object stores have none."""
    configuration: Any = java_packages(spark).org.apache.spark.SparkContext.getOrCreate().hadoopConfiguration()
    before = configuration.get(LOCAL)
    configuration.unset(LOCAL)
    yield
    configuration.set(LOCAL, before)


def test_classes(spark: SparkSession) -> None:
    """A class is found by its name; a package and a class that is missing are none."""
    assert has_class(spark, "org.apache.spark.SparkContext")
    assert not has_class(spark, "org.apache.spark")
    assert not has_class(spark, "org.apache.spark.SparkContexts")


def test_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    """The number of files, the properties, and the last batch of each query, as of now.

    The table is made as `ingest` makes one: with Spark 4.2, `CREATE TABLE` does not work.
    """
    require_delta(spark)
    folder = tmp_path / "table"
    properties = {"delta.appendOnly": "true", "delta.logRetentionDuration": "interval 7 days"}
    spark.range(1).coalesce(1).write.format("delta").options(**properties).save(str(folder))
    assert (delta_table(spark, str(folder)).files, delta_table(spark, str(folder)).batches) == (1, {})
    for batch in (4, 7):
        mine = {"txnAppId": "query", "txnVersion": str(batch)}
        spark.range(3).coalesce(1).write.format("delta").mode("append").options(**mine).save(str(folder))
    found = delta_table(spark, str(folder))
    assert (found.files, found.batches) == (3, {"query": 7})
    assert {**found.properties, **properties} == found.properties


@pytest.mark.parametrize("contexts", ["contexts", "no contexts"])
def test_a_file_is_replaced(
    spark: SparkSession,
    tmp_path: Path,
    contexts: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file has the old text or the new one, and nothing else is left in its folder, nor a checksum of the old.

    A checksum beside the file would be replaced in a step of its own, and not fit if a kill comes between the two.
    """
    if contexts == "no contexts":
        request.getfixturevalue("_without_contexts")
    files, path = Files(spark), str(tmp_path / "folder" / "file")
    for text in ("one", "ä" * 40, ""):
        files.write(path, text)
        assert files.read(path) == text
        assert files.names(str(tmp_path / "folder")) == ["file"]
    found = {each.name for each in (tmp_path / "folder").iterdir()}
    assert found == ({"file"} if contexts == "contexts" else {"file", ".file.crc"})
    files.write(path, "before")

    def cut(stream: Any, text: str) -> None:
        stream.write(bytearray(text[:3], "utf-8"))
        raise KeyboardInterrupt

    if contexts == "contexts":  # a process that dies while it replaces a file leaves the one before
        with monkeypatch.context() as patch:
            patch.setattr(jvm, "_put", cut)
            with pytest.raises(KeyboardInterrupt):
                files.write(path, "second")
        assert (files.read(path), files.names(str(tmp_path / "folder"))) == ("before", ["file"])
    files.create(f"{path}-new", "new")
    with pytest.raises(FileExistsError):
        files.create(f"{path}-new", "newer")
    assert files.read(f"{path}-new") == "new"
    assert files.read(f"{path}-none") is None


def test_checksums_of_a_former_release(spark: SparkSession, tmp_path: Path) -> None:
    """A file that has checksums is replaced with them; a folder in its place is an error of Java, as any other."""
    files, file = Files(spark), tmp_path / "file"
    files.create(str(file), "old")
    assert file.with_name(".file.crc").exists()
    files.write(str(file), "newer")
    assert files.read(str(file)) == "newer"
    (tmp_path / "folder" / "in").mkdir(parents=True)
    with pytest.raises(Py4JJavaError):
        files.write(str(tmp_path / "folder"), "text")
    assert {each.name for each in tmp_path.iterdir()} == {"file", "folder"}


def test_one_of_two_creates_a_file(spark: SparkSession, tmp_path: Path) -> None:
    """If two runs create a file at the same time, one of them succeeds, and its text stands there."""
    files = Files(spark)

    def create(number: int, begin: Barrier, path: Path) -> str | None:
        begin.wait()
        try:
            files.create(str(path), f"{number}")
        except FileExistsError:
            return None
        return f"{number}"

    with ThreadPoolExecutor(2) as pool:
        for path in (tmp_path / "folder" / f"{number}" for number in range(60)):
            begin = Barrier(2)
            done = [pool.submit(create, number, begin, path) for number in range(2)]
            assert [each for each in (future.result() for future in done) if each] == [files.read(str(path))]


def test_lines(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read piece by piece, and a character that two pieces share is one."""
    monkeypatch.setattr(jvm, "_PIECE", 3)
    files, path = Files(spark), str(tmp_path / "file")
    for text, lines in (("", []), ("v1", ["v1"]), ("v1\n", ["v1"]), ("\nä€\n\n𝄞ä", ["", "ä€", "", "𝄞ä"])):
        files.write(path, text)
        assert [*files.lines(path)] == lines
        assert files.read(path) == text
    for content in (b"v1\n\xff", b"v1\n\xc3"):
        Path(path).write_bytes(content)
        Path(path).with_name(".file.crc").unlink(missing_ok=True)
        with pytest.raises(UnicodeDecodeError):
            [*files.lines(path)]
