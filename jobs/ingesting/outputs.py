"""What an output itself knows of the checkpoint that writes it: a folder of Parquet files, or a Delta table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import SparkSession

from jobs.driver.jvm import Files, delta_table
from jobs.ingesting.spark_logs import NONE, CorruptLogError, check_list, names_files, newest, text
from transforms.errors import ConfigurationError

__all__ = [
    "SPARK_METADATA",
    "WIDENING",
    "DeltaOutput",
    "Output",
    "ParquetOutput",
    "any_in",
    "has_delta_log",
    "may_widen",
]

WIDENING = "delta.enableTypeWidening"
"""The property of a Delta table whose columns may get wider types; its owner sets it, since older readers refuse it."""

SPARK_METADATA = "_spark_metadata"
"""The folder of a Parquet output where Spark lists its files, by batch."""

_DELTA_LOG = "_delta_log"
_MARKER = "_wideload.json"


class Output(Protocol):
    """An output, as it is now."""

    def holds_rows(self) -> bool:
        """Whether there are files of rows, or the names of such files."""

    def lacks_files(self) -> bool:
        """Whether files were written, and all are gone."""

    def check(self) -> None:
        """Makes sure that readers find what was written.

        Raises:
            ConfigurationError: the list of files is damaged.
        """

    def last_batch(self, query: str) -> int:
        """The last batch of this query that is written; `NONE` if there is none."""

    def owner(self) -> str | None:
        """The mark of the checkpoint that writes here; None if there is no mark."""

    def mark(self, owner: str) -> None:
        """Sets the mark, where there is none.

        Raises:
            FileExistsError: there is one by now.
        """

    def forget(self) -> None:
        """Removes what an output without rows remembers of its batches."""


@dataclass(frozen=True, slots=True)
class ParquetOutput:
    """A folder of Parquet files, with Spark's own list of them (`_spark_metadata`), and a mark of this job.

    Names that begin with `_` are no data for Spark, Hive and Arrow.
    """

    files: Files
    folder: str

    def holds_rows(self) -> bool:
        """See `Output`."""
        return any_in(self.files, self.folder)

    def lacks_files(self) -> bool:
        """See `Output`."""
        return not self.holds_rows() and names_files(self.files, f"{self.folder}/{SPARK_METADATA}")

    def check(self) -> None:
        """See `Output`."""
        log = f"{self.folder}/{SPARK_METADATA}"
        try:
            check_list(self.files, log)
        except CorruptLogError as exc:
            raise ConfigurationError(
                "--output",
                f"the list of files in {log} cannot be read, so the rows cannot be read either: {exc.reason}",
            ) from exc

    def last_batch(self, query: str) -> int:  # noqa: ARG002  # the list does not name its query
        """See `Output`."""
        return newest(self.files, f"{self.folder}/{SPARK_METADATA}")

    def owner(self) -> str | None:
        """See `Output`.

        Raises:
            ConfigurationError: the mark is damaged.
        """
        path = f"{self.folder}/{_MARKER}"
        found = text(self.files, path)
        try:
            return None if found is None else str(json.loads(found)["checkpoint"])
        except (ValueError, TypeError, LookupError) as exc:
            raise ConfigurationError(
                "--output", f"{path} is damaged; it names the checkpoint; delete it if no other ingest writes there"
            ) from exc

    def mark(self, owner: str) -> None:
        """See `Output`."""
        self.files.create(f"{self.folder}/{_MARKER}", json.dumps({"checkpoint": owner}))

    def forget(self) -> None:
        """See `Output`."""
        self.files.delete(f"{self.folder}/{_MARKER}")
        self.files.delete_folder(f"{self.folder}/{SPARK_METADATA}")


class DeltaOutput:
    """A Delta table: its log names each query that writes, with its last batch. It is read once.

    Args:
        spark: the session.
        files: the files of the session.
        folder: of the table.
    """

    def __init__(self, spark: SparkSession, files: Files, folder: str) -> None:
        self.files = files
        self.folder = folder
        self._table = delta_table(spark, folder) if has_delta_log(files, folder) else None

    def holds_rows(self) -> bool:
        """See `Output`."""
        return any_in(self.files, self.folder) or self.lacks_files()

    def lacks_files(self) -> bool:
        """See `Output`."""
        if self._table is None or any_in(self.files, self.folder):
            return False
        return self._table.files > 0

    def check(self) -> None:
        """See `Output`. The log was read when this was made."""

    def last_batch(self, query: str) -> int:
        """See `Output`."""
        return NONE if self._table is None else self._table.batches.get(query, NONE)

    def owner(self) -> str | None:
        """See `Output`. A table needs no mark: the query's id in its log is one."""
        return None

    def mark(self, owner: str) -> None:
        """See `Output`."""

    def forget(self) -> None:
        """See `Output`. A new query has another id, so there is nothing to forget."""


def may_widen(spark: SparkSession, folder: str) -> bool:
    """Whether the folder is a Delta table whose columns may get wider types."""
    if not has_delta_log(Files(spark), folder):
        return False
    return delta_table(spark, folder).properties.get(WIDENING, "").lower() == "true"


def has_delta_log(files: Files, folder: str) -> bool:
    """Whether the folder is a Delta table."""
    return any_in(files, f"{folder}/{_DELTA_LOG}")


def any_in(files: Files, folder: str) -> bool:
    """Whether a folder holds anything whose name begins neither with a point nor with `_`."""
    return files.any_name(folder, lambda name: not name.startswith((".", "_")))
