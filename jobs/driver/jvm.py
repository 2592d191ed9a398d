"""Spark's Java process, as far as PySpark has no public way to it. Only this module reads private names.

| private name | for | releases that have it |
| --- | --- | --- |
| `SparkContext._jvm` | Hadoop's files, Java's patterns, Delta | PySpark 3.5 to 4.3 |
| `SparkSession._jsparkSession` | Delta | PySpark 3.5 to 4.3 |
| `org.apache.spark.sql.delta.DeltaLog` | which batches of a query a table has | Delta 3.3 to 4.3 |

Delta has no public way to the last batch of a query: `DESCRIBE HISTORY` forgets it after 30 days. All else that is
asked of Java is public. `tests/jobs/driver/test_jvm.py` uses each of these names.
"""

from __future__ import annotations

import codecs
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_PIECE = 2**20


def java_packages(spark: SparkSession) -> Any:
    """The root of the Java packages: `java_packages(spark).org.apache.kafka…`. A missing class raises `TypeError`."""
    return spark.sparkContext._jvm  # noqa: SLF001  # PySpark has no public name for it


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether Java has a class of this full name; of a missing one Py4J makes a package."""
    found = java_packages(spark)
    for part in name.split("."):
        found = getattr(found, part)
    return isinstance(found, JavaClass)


@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A Delta table, as its log has it now.

    Attributes:
        files: how many files have its rows.
        properties: those of the table.
        batches: the last batch of each query that writes to it, by the query's id.
    """

    files: int
    properties: Mapping[str, str]
    batches: Mapping[str, int]


def delta_table(spark: SparkSession, folder: str) -> DeltaTable:
    """The Delta table in a directory that has a log.

    Raises:
        py4j.protocol.Py4JJavaError: its log cannot be read.
    """
    log = java_packages(spark).org.apache.spark.sql.delta.DeltaLog
    log.clearCache()  # the session may remember a table that is now deleted
    session = spark._jsparkSession  # noqa: SLF001  # PySpark has no public name for it
    snapshot = log.forTable(session, folder).unsafeVolatileSnapshot()
    properties, transactions = snapshot.metadata().configuration().toSeq(), snapshot.setTransactions()
    pairs = (properties.apply(index) for index in range(properties.size()))
    written = (transactions.apply(index) for index in range(transactions.size()))
    return DeltaTable(
        int(snapshot.numOfFiles()),
        {str(pair.productElement(0)): str(pair.productElement(1)) for pair in pairs},
        {str(each.appId()): int(each.version()) for each in written},
    )


class Files:
    """Files on every file system that Spark can write to: Hadoop's own, with the configuration of the session.

    All paths are addresses as Hadoop reads them. Java's errors come as `py4j.protocol.Py4JJavaError`.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._java: Any = java_packages(spark)
        self._path: Any = self._java.org.apache.hadoop.fs.Path
        self._configuration: Any = self._java.org.apache.spark.SparkContext.getOrCreate().hadoopConfiguration()

    def qualified(self, path: str) -> str:
        """The full address of a path."""
        files, location = self._locate(path)
        return str(files.makeQualified(location).toString())

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory."""
        files, location = self._locate(path)
        return bool(files.exists(location))

    def names(self, folder: str) -> list[str]:
        """The names of the files and directories in a directory; empty if there is no such directory."""
        files, location = self._locate(folder)
        if not files.exists(location):
            return []
        return [str(status.getPath().getName()) for status in files.listStatus(location)]

    def any_name(self, folder: str, wanted: Callable[[str], bool]) -> bool:
        """Whether a file or a directory in a directory has a wanted name; looks no further than the first."""
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
        return "".join(self._pieces(files, location))

    def lines(self, path: str) -> Iterator[str]:
        """The lines of a file, of which no more than a piece and a line is held.

        Raises:
            UnicodeDecodeError: the file is not UTF-8.
        """
        rest = ""
        for piece in self._pieces(*self._locate(path)):
            *whole, rest = f"{rest}{piece}".split("\n")
            yield from whole
        if rest:
            yield rest

    def write(self, path: str, text: str) -> None:
        """Writes a file; an old one is replaced as a whole, in one step where the file system has such a step."""
        files, location = self._locate(path)
        files.mkdirs(location.getParent())
        contexts = self._java.org.apache.hadoop.fs.FileContext
        try:
            context = contexts.getFileContext(files.makeQualified(location).toUri(), self._configuration)
        except Py4JJavaError as exc:
            if "UnsupportedFileSystemException" not in str(exc):
                raise
            # The connector of an object store, in which a file is there as a whole when it is closed, or not at all.
            _write(files.create(location, True), text)
            return
        temporary = self._path(location.getParent(), f".{location.getName()}.{uuid.uuid4().hex}.tmp")
        try:
            _write(files.create(temporary, False), text)
            file = _local(files, location)
            if file is None or file.is_dir():  # the latter is an error
                context.rename(temporary, location, self._overwriting())
            else:
                # Hadoop would rename the file and its checksums one after the other: a kill, or two runs, mix them.
                written = file.with_name(str(temporary.getName()))
                for each in (file, written):
                    _checksums(each).unlink(missing_ok=True)
                written.replace(file)
        except BaseException:
            files.delete(temporary, False)
            raise

    def create(self, path: str, text: str) -> None:
        """Writes a new file, and returns when the file is on the disk as far as the file system offers that.

        Raises:
            FileExistsError: there is such a file already.
        """
        files, location = self._locate(path)
        file = _local(files, location)
        if file is not None:  # Hadoop looks first, and creates it then: two runs could both succeed
            files.mkdirs(location.getParent())
            if not self._java.java.io.File(str(file)).createNewFile():
                raise FileExistsError(path)
        try:
            stream = files.create(location, file is not None)
        except Py4JJavaError as exc:
            if "AlreadyExists" not in str(exc):
                raise
            raise FileExistsError(path) from exc
        _write(stream, text)
        if file is not None:
            _sync(file)

    def delete(self, path: str) -> None:
        """Deletes a file, if there is one."""
        files, location = self._locate(path)
        files.delete(location, False)

    def delete_folder(self, path: str) -> None:
        """Deletes a directory with all that is in it, if there is one."""
        files, location = self._locate(path)
        files.delete(location, True)

    def _overwriting(self) -> Any:
        """The option of `FileContext.rename` that replaces a file, as Java takes it: in an array."""
        option = self._java.org.apache.hadoop.fs.Options.Rename.OVERWRITE
        options = self._java.java.lang.reflect.Array.newInstance(option.getDeclaringClass(), 1)
        options[0] = option
        return options

    def _pieces(self, files: Any, location: Any) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        stream = files.open(location)
        try:
            while piece := bytes(stream.readNBytes(_PIECE)):
                yield decoder.decode(piece)
            yield decoder.decode(b"", final=True)
        finally:
            stream.close()

    def _locate(self, path: str) -> tuple[Any, Any]:
        location = self._path(path)
        return location.getFileSystem(self._configuration), location


def _local(files: Any, location: Any) -> Path | None:
    """The path of a file on a disk of this machine; None for another file system."""
    uri = files.makeQualified(location).toUri()
    return Path(str(uri.getPath())) if str(uri.getScheme()) == "file" else None


def _checksums(file: Path) -> Path:
    """The file in which Hadoop's local file system keeps the checksums of another one."""
    return file.with_name(f".{file.name}.crc")


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
    for path in (file, _checksums(file), file.parent):
        if path.exists():
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
