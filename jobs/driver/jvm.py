"""Spark's Java process, as far as PySpark has no public way to it. Only this module reads private names of PySpark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from jobs.driver.python_archives import Sparing

__all__ = ["Files", "elements", "java_packages", "java_session", "map_in_arrow"]


def java_packages(spark: SparkSession) -> Any:
    """The root of the Java packages: `java_packages(spark).org.apache.kafka…`. A missing class raises `TypeError`."""
    return spark.sparkContext._jvm  # noqa: SLF001  # PySpark has no public name for it


def java_session(spark: SparkSession) -> Any:
    """The Java object behind the session."""
    return spark._jsparkSession  # noqa: SLF001  # PySpark has no public name for it


def elements(collection: Any) -> list[Any]:
    """What a Java collection holds.

    A loop over the collection itself ends with an exception of Java's iterator. PySpark asks Java fourteen times what
    kind of exception that is, and 70 requests take longer than all others of a short loop.
    """
    return list(collection.toArray())


def map_in_arrow(rows: DataFrame, work: Callable[[Iterable[Any]], Iterator[Any]], schema: StructType) -> DataFrame:
    """`DataFrame.mapInArrow`, also where pandas is missing: PySpark asks for pandas here and does not use it."""
    task = cast("Any", Sparing(work))
    if not isinstance(rows, ClassicDataFrame):  # Spark Connect, which needs pandas itself
        return rows.mapInArrow(task, schema)
    udf = cast("Any", UserDefinedFunction)(task, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*[rows[name] for name in rows.columns])
    frame = cast("Any", rows)
    found = frame._jdf.mapInArrow(column._jc, False, None)  # noqa: SLF001  # what `mapInArrow` itself does
    return cast("DataFrame", type(frame)(found, frame.sparkSession))


class Files:
    """Files on every file system that Spark can write to: Hadoop's own, with the configuration of the session.

    All paths are addresses as Hadoop reads them. Java's errors come as `py4j.protocol.Py4JJavaError`.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._path: Any = java_packages(spark).org.apache.hadoop.fs.Path
        managers: Any = java_packages(spark).org.apache.spark.sql.execution.streaming
        self._managers: Any = getattr(getattr(managers, "CheckpointFileManager$"), "MODULE$")
        context: Any = spark.sparkContext
        self._configuration: Any = context._jsc.hadoopConfiguration()  # noqa: SLF001  # PySpark has no public name

    def qualified(self, path: str) -> str:
        """The full address of a path."""
        files, location = self._locate(path)
        return str(files.makeQualified(location).toString())

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        files, location = self._locate(path)
        return bool(files.exists(location))

    def names(self, folder: str) -> list[str]:
        """The names of the files and folders in a folder; empty if there is no such folder."""
        files, location = self._locate(folder)
        if not files.exists(location):
            return []
        return [str(status.getPath().getName()) for status in files.listStatus(location)]

    def any_name(self, folder: str, wanted: Callable[[str], bool]) -> bool:
        """Whether a file or a folder in a folder has a wanted name; looks no further than the first."""
        files, location = self._locate(folder)
        if not files.exists(location):
            return False
        found = files.listStatusIterator(location)
        while found.hasNext():
            if wanted(str(found.next().getPath().getName())):
                return True
        return False

    def read(self, path: str) -> str | None:
        """The text of a file; None if there is no such file.

        Raises:
            UnicodeDecodeError: the file is not UTF-8.
        """
        files, location = self._locate(path)
        if not files.exists(location):
            return None
        stream = files.open(location)
        try:
            return bytes(stream.readAllBytes()).decode("utf-8")
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Writes a file; an old one is replaced as a whole, as Spark writes the files of its checkpoints."""
        files, location = self._locate(path)
        folder = location.getParent()
        files.mkdirs(folder)
        stream = self._managers.create(folder, self._configuration).createAtomic(location, True)
        try:
            _put(stream, text)
        except BaseException:
            stream.cancel()
            raise
        stream.close()

    def create(self, path: str, text: str) -> None:
        """Writes a new file, and returns when the file is on the disk as far as the file system offers that.

        Raises:
            FileExistsError: there is such a file already.
        """
        files, location = self._locate(path)
        try:
            stream = files.create(location, False)
        except Py4JJavaError as exc:
            if "AlreadyExists" not in str(exc):
                raise
            raise FileExistsError(path) from exc
        _write(stream, text)
        uri = files.makeQualified(location).toUri()
        if str(uri.getScheme()) == "file":
            _sync(Path(str(uri.getPath())))

    def delete(self, path: str) -> None:
        """Deletes a file, if there is one."""
        files, location = self._locate(path)
        files.delete(location, False)

    def delete_folder(self, path: str) -> None:
        """Deletes a folder with all that is in it, if there is one."""
        files, location = self._locate(path)
        files.delete(location, True)

    def _locate(self, path: str) -> tuple[Any, Any]:
        location = self._path(path)
        return location.getFileSystem(self._configuration), location


def _put(stream: Any, text: str) -> None:
    stream.write(bytearray(text, "utf-8"))
    if stream.hasCapability("hsync"):
        stream.hsync()


def _write(stream: Any, text: str) -> None:
    try:
        _put(stream, text)
    finally:
        stream.close()


def _sync(file: Path) -> None:
    """Hadoop's local file system leaves its files to the page cache, so they are flushed here, with their checksums."""
    for path in (file, file.with_name(f".{file.name}.crc"), file.parent):
        if path.exists():
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
