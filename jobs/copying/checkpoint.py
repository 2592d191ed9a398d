"""How far a backfill is: a directory wherever Spark may write, with the next offset of each partition.

Each note is a separate file, with a number as its name. The whole note with the highest number counts; the few before
it are deleted. If a process dies while it writes a note, the note before counts. A note is on the disk before another
one is deleted. No file is written twice: a second run with the same checkpoint finds its number taken, and ends.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from jobs.copying.forms import Mark
from jobs.driver.failures import JobFailedError
from jobs.driver.jvm import Files
from transforms.errors import ConfigurationError

_JOB = "backfill"
_KEPT = 2
_CHECKSUM = "ChecksumException"


@dataclass(frozen=True, slots=True)
class Progress:
    """The content of a note.

    Attributes:
        positions: by partition of the source, the offset below which all records are done.
        ends: by partition of the output topic that was written to, the offset behind the last record.
        marks: by partition of the source, a record that was read; see `jobs.copying.forms.Mark`.
    """

    positions: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    marks: Mapping[int, Mark] = field(default_factory=dict)


class Checkpoint:
    """The notes of one backfill. Not thread-safe.

    Args:
        spark: the session.
        folder: where the notes are.
        belongs_to: the settings that must be the same as when the checkpoint began.

    Attributes:
        id: of this checkpoint; known when `load` has returned. Copies have the same one.
    """

    def __init__(self, spark: SparkSession, folder: str, belongs_to: Mapping[str, str]) -> None:
        self._files = Files(spark)
        self._folder = folder
        self._belongs_to = dict(belongs_to)
        self._last = -1
        self.id = uuid.uuid4().hex

    def load(self) -> Progress | None:
        """The last note; None if there is none yet.

        Raises:
            ConfigurationError: the directory belongs to something else, no note in it is whole, or one cannot be read.
        """
        names = self._files.names(self._folder)
        numbers = [int(name) for name in names if name.isdecimal()]
        self._last = max(numbers, default=-1)
        for number in sorted(numbers, reverse=True):
            found = self._read(number)
            if found is not None:
                return self._progress(found)
        if names and not numbers:
            raise ConfigurationError("--checkpoint", f"{self._folder} is not empty and was not created by this job")
        if self._last > 0:  # the first note is written before anything else is
            raise ConfigurationError(
                "--checkpoint",
                f"no note in {self._folder} is complete, so the progress of the job is not known; restore the "
                f"directory, or start with a new one and an empty output topic",
            )
        return None

    def save(self, progress: Progress) -> None:
        """Writes a note.

        Raises:
            JobFailedError: another run has written one in the meantime.
        """
        self._last += 1
        note = {
            "job": _JOB,
            "id": self.id,
            **self._belongs_to,
            "positions": {str(partition): at for partition, at in sorted(progress.positions.items())},
            "ends": {str(partition): at for partition, at in sorted(progress.ends.items())},
            "marks": {str(partition): mark for partition, mark in sorted(progress.marks.items())},
        }
        try:
            self._files.create(f"{self._folder}/{self._last}", json.dumps(note))
        except FileExistsError as exc:
            raise JobFailedError(f"another run is using the checkpoint {self._folder}; wait until it ends") from exc
        if self._last >= _KEPT:
            self._files.delete(f"{self._folder}/{self._last - _KEPT}")

    def _progress(self, found: dict[str, Any]) -> Progress:
        for part, value in {"job": _JOB, **self._belongs_to}.items():
            if found.get(part) != value:
                raise ConfigurationError(
                    "--checkpoint",
                    f"{self._folder} belongs to {part} {found.get(part)}, this is {part} {value}; use a separate "
                    f"directory",
                )
        self.id = str(found.get("id", self.id))  # notes of older releases have none
        try:
            return Progress(
                {int(partition): int(at) for partition, at in found["positions"].items()},
                {int(partition): int(at) for partition, at in found["ends"].items()},
                {
                    int(partition): (int(offset), int(crc))
                    for partition, (offset, crc) in found.get("marks", {}).items()
                },
            )
        except (AttributeError, LookupError, TypeError, ValueError) as exc:
            raise ConfigurationError(
                "--checkpoint",
                f"the last note in {self._folder} is damaged, so the progress of the job is not known; restore the "
                f"directory, or start with a new one and an empty output topic",
            ) from exc

    def _read(self, number: int) -> dict[str, Any] | None:
        """A note; None if it is not whole: cut off, or another than its checksum says."""
        path = f"{self._folder}/{number}"
        try:
            found = json.loads(self._files.read(path) or "")
        except (ValueError, RecursionError):
            return None
        except Py4JJavaError as exc:
            if _CHECKSUM in str(exc):
                return None
            reason = str(exc.java_exception.getMessage()).partition("\n")[0]
            raise ConfigurationError("--checkpoint", f"{path} cannot be read: {reason}") from exc
        return found if isinstance(found, dict) else None
