"""One checkpoint, one output, one subscription: exactly-once depends on this tie.

Spark keeps the offsets in the checkpoint and the list of whole files in the output (`_spark_metadata`; for Delta, the
table's log). It counts both by batch number, and does not tie one to the other. If the output is gone, Spark continues
behind the last offset, and the records before it are missing. With a fresh checkpoint and an old output it silently
skips batch 0, as if it were written already. With the checkpoint of another topic it reads offsets that mean nothing.
The job therefore notes in checkpoint and output what belongs together, compares the numbers of their batches, and
refuses the rest.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from jobs.driver.jvm import Files
from jobs.ingesting.command_line import IngestSettings
from jobs.ingesting.output import Output
from jobs.ingesting.spark_logs import NONE, REBUILD, Batches, DamagedError, batches, text
from transforms.errors import ConfigurationError

_FILE = "wideload.json"
_OF_SPARK = ("commits", "offsets", "sources", "state")


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint that is tied to its output by `bind`.

    Attributes:
        settings: of the job.
        files: the files of the session.
        output: as it was found.
        note: what the checkpoint says of itself: the tie, the ids of its topics, and the type of its values.
    """

    settings: IngestSettings
    files: Files
    output: Output
    note: dict[str, Any]

    def bind_topics(self, now: Mapping[str, str]) -> None:
        """Notes the ids of the topics, or makes sure that they are still the same.

        Spark keeps names and offsets alone. It would continue in a topic that was created again, once that is long
        enough.

        Args:
            now: the ids by topic.

        Raises:
            ConfigurationError: a topic was created again, and no record may be lost.
        """
        before = self.note.get("topics", {})
        again = sorted(name for name, found in now.items() if before.get(name, found) != found)
        if again and self.settings.fail_on_data_loss:
            raise ConfigurationError(
                "--topic" if self.settings.topics else "--subscribe-pattern",
                f"topic {again[0]} was deleted and created again since checkpoint {self.settings.checkpoint} has read "
                "it: its records below the checkpoint's offsets would be missing; use a new --checkpoint and a new "
                "--output, or --no-fail-on-data-loss to continue without them",
            )
        self.remember(topics={**before, **now})

    @property
    def values(self) -> StructType | None:
        """The type of the values that are written; None if nothing is.

        Raises:
            DamagedError: the note of it is not such a type.
        """
        try:
            return StructType.fromJson(self.note["values"]) if "values" in self.note else None
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as exc:
            raise DamagedError(f"{_path(self.settings)} is damaged; it contains the schema of the values") from exc

    def remember(self, **parts: Any) -> None:
        """Adds to the note."""
        if self.note != {**self.note, **parts}:
            self.note |= parts
            self.files.write(_path(self.settings), json.dumps(self.note))


def bind(spark: SparkSession, settings: IngestSettings) -> Checkpoint:
    """Ties the checkpoint to the job, its source and its output, or checks that it is tied to them already.

    A checkpoint without any batch may be tied again, to an output without rows. With `settings.rebuild` a checkpoint of
    the same source and output becomes one without any batch.

    Raises:
        ConfigurationError: the checkpoint is damaged, or belongs to something else; or the output is of the other kind,
            belongs to another checkpoint, or does not have the batches that the checkpoint knows.
    """
    files, checkpoint, folder = Files(spark), settings.checkpoint, settings.output
    output = Output(spark, settings)
    tie = {"job": "ingest", "source": settings.source, "output": files.qualified(folder), "form": settings.form}
    if settings.rebuild:
        with suppress(DamagedError):
            _check_tie(_noted(files, settings), {**tie, "form": None}, settings, empty=not files.names(checkpoint))
        _clear(files, output, settings)
    found = batches(files, checkpoint, may_lose=not settings.fail_on_data_loss)
    note: dict[str, Any] = {}
    if found.planned == NONE:
        _check_apart(files.qualified(checkpoint), files.qualified(folder))
        if output.rows or output.lost() or output.last_batch("") != NONE:
            raise ConfigurationError(
                "--checkpoint",
                f"{folder} was written with another checkpoint than {checkpoint}, which does not know its records: "
                f"they would be duplicated or skipped; use that checkpoint, or a new --output, {REBUILD}",
            )
        with suppress(DamagedError):
            note = _noted(files, settings) or {}
        if note.get("source", settings.source) != settings.source:  # where that one begins means nothing here
            files.delete_folder(f"{checkpoint}/sources")
        note = {name: note[name] for name in ("id",) if name in note and not settings.rebuild}
    else:
        note = _check_tie(_noted(files, settings), tie, settings)
        _check_output(output, found, note.get("id"), settings)
        if found.done == NONE and output.last_batch(found.query) == NONE:
            note.pop("values", None)
    bound = Checkpoint(settings, files, output, note)
    bound.remember(**tie, id=note.get("id") or uuid.uuid4().hex)
    output.claim(bound.note["id"], checkpoint)
    return bound


def _path(settings: IngestSettings) -> str:
    return f"{settings.checkpoint}/{_FILE}"


def _noted(files: Files, settings: IngestSettings) -> dict[str, Any] | None:
    """What a checkpoint says of itself; None if it has no note.

    Raises:
        DamagedError: that cannot be read.
    """
    said = text(files, _path(settings))
    try:
        found = None if said is None else json.loads(said)
    except (ValueError, RecursionError):
        found = False
    if found is None or isinstance(found, dict):
        return found
    raise DamagedError(f"{_path(settings)} is damaged")


def _check_tie(
    note: dict[str, Any] | None, tie: Mapping[str, str | None], settings: IngestSettings, *, empty: bool = False
) -> dict[str, Any]:
    """The note of a checkpoint, if it belongs to what is in `tie`; there need not be one if it is `empty`."""
    if note is None and not empty:
        raise ConfigurationError(
            "--checkpoint", f"{settings.checkpoint} was not created by this job; use a separate directory"
        )
    for part, value in tie.items():
        if note is not None and value is not None and note.get(part) != value:
            raise ConfigurationError(
                "--checkpoint",
                f"{settings.checkpoint} belongs to {part} {note.get(part)}, this is {part} {value}; use a new "
                f"--checkpoint and a new --output",
            )
    return note or {}


def _check_apart(checkpoint: str, output: str) -> None:
    """Makes sure that what reads, cleans or removes one of the two meets nothing of the other."""
    inside = f"{checkpoint}/".removeprefix(f"{output}/")
    if inside != f"{checkpoint}/" and not inside.startswith(("_", ".")):
        raise ConfigurationError(
            "--checkpoint",
            f"{checkpoint} is the output itself, or a directory of its rows: programs that read or clean the "
            f"output would treat it as data; use a directory elsewhere, or one in the output whose name begins with _",
        )
    if output.startswith(f"{checkpoint}/"):
        raise ConfigurationError(
            "--output",
            f"{output} is in the checkpoint {checkpoint}: removing the checkpoint would remove the rows; use a "
            f"directory elsewhere",
        )


def _check_output(output: Output, found: Batches, owner: str | None, settings: IngestSettings) -> None:
    """Makes sure that the output has what the checkpoint knows, and no more."""
    folder, checkpoint = settings.output, settings.checkpoint
    there = output.last_batch(found.query)
    lacks = None
    if found.written != NONE and (there == NONE or output.lost()):
        lacks = f"is missing or empty, or is another one than checkpoint {checkpoint} has written"
    elif there != NONE:
        output.check()
        if output.owner() not in (owner, None):
            lacks = f"is another one than checkpoint {checkpoint} has written"
        elif there < found.written:
            lacks = f"ends with batch {there}, but checkpoint {checkpoint} is ahead of it"
    if lacks is not None:
        raise ConfigurationError(
            "--output",
            f"{folder} {lacks}: records of the batches up to {found.written} would be missing; restore the output, "
            f"{REBUILD}",
        )
    if there > found.planned:
        raise ConfigurationError(
            "--checkpoint",
            f"{checkpoint} ends with batch {found.planned}, and {folder} with batch {there}: Spark would skip the "
            f"records of as many new batches; restore the newest copy of the checkpoint, {REBUILD}",
        )


def _clear(files: Files, output: Output, settings: IngestSettings) -> None:
    """Makes the checkpoint one without any batch, if the output has no rows."""
    if output.rows or (settings.delta and output.lost()):
        raise ConfigurationError(
            "--rebuild",
            f"{settings.output} contains rows, which would be written again; move it away or delete it first",
        )
    output.forget()
    files.delete(f"{settings.checkpoint}/metadata")  # first: without it no run continues if this one is killed here
    for name in _OF_SPARK:
        files.delete_folder(f"{settings.checkpoint}/{name}")
