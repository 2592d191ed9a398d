"""One checkpoint, one output, one subscription: exactly-once depends on this tie.

Spark keeps the offsets in the checkpoint and the list of whole files in the output (`_spark_metadata`; for Delta, the
table's log). It counts both by batch number, and does not tie one to the other. If the output is gone, Spark goes on
behind the last offset, and the records before it are missing. With a fresh checkpoint and an old output it silently
skips batch 0, as if it were written already. With the checkpoint of another topic it reads offsets that mean nothing.
So the job notes in checkpoint and output what belongs together, compares the numbers of their batches, and refuses the
rest.
"""

from __future__ import annotations

import json
import time
import uuid
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from jobs.driver.jvm import Files
from jobs.ingesting.command_line import IngestSettings
from jobs.ingesting.outputs import DeltaOutput, Output, ParquetOutput, any_in, has_delta_log
from jobs.ingesting.spark_logs import NONE, START_FILE, Batches, CorruptLogError, batches, first_text, newest, text
from jobs.reading.ranges import parse_offsets
from jobs.reading.topics import ids
from transforms.errors import ConfigurationError

__all__ = ["TopicWatch", "bind", "bind_topics", "first_offsets", "read_start", "write_start"]

_JOB = "ingest"
_FILE = "wideload.json"
_TOPICS_FILE = "wideload-topics.json"
_OF_SPARK = ("commits", "offsets", "sources", "state")

_ID = "id"
_REBUILD = "or begin anew: move the output away and give --rebuild"


def bind(spark: SparkSession, settings: IngestSettings) -> None:
    """Ties the checkpoint to the job, its source and its output, or checks that it is tied to them already.

    A checkpoint without any batch may be tied anew, to an output without rows. With `settings.rebuild` a checkpoint of
    the same source and output becomes one without any batch.

    Args:
        spark: the session.
        settings: of the job.

    Raises:
        ConfigurationError: the checkpoint is damaged, or belongs to something else; or the output is of the other kind,
            belongs to another checkpoint, or does not have the batches that the checkpoint knows.
    """
    files, checkpoint, folder = Files(spark), settings.checkpoint, settings.output
    _check_kind(files, settings)
    output: Output = DeltaOutput(spark, files, folder) if settings.delta else ParquetOutput(files, folder)
    wanted = {
        "job": _JOB,
        "source": settings.source,
        "output": files.qualified(folder),
        "form": settings.form,
    }
    if settings.rebuild:
        _check_tie(files, checkpoint, {name: wanted[name] for name in ("job", "source", "output")}, damaged=True)
        _clear(files, checkpoint, output, folder)
    try:
        found = batches(files, checkpoint, may_lose=not settings.fail_on_data_loss)
    except CorruptLogError as exc:
        raise ConfigurationError(exc.key, f"{exc.reason}; put a whole copy of the checkpoint back, {_REBUILD}") from exc
    if found.planned == NONE:
        _check_apart(files.qualified(checkpoint), files.qualified(folder))
        if output.holds_rows() or output.last_batch("") != NONE:
            raise ConfigurationError(
                "--checkpoint",
                f"{folder} was written with another checkpoint than {checkpoint}, which does not know its records: "
                f"they would be there twice, or be skipped; give that checkpoint, or a new --output, {_REBUILD}",
            )
        known = _known(files, checkpoint)
        if known.get("source") not in (None, settings.source):  # where that one begins means nothing here
            files.delete_folder(f"{checkpoint}/sources")
            files.delete(f"{checkpoint}/{START_FILE}")
        owner = uuid.uuid4().hex if settings.rebuild else str(known.get(_ID) or uuid.uuid4().hex)
        files.write(f"{checkpoint}/{_FILE}", json.dumps({**wanted, _ID: owner}))
    else:
        noted = _check_tie(files, checkpoint, wanted).get(_ID)
        _check_output(output, found, noted, settings)
        owner = noted or uuid.uuid4().hex
        if noted is None:  # of an older release
            files.write(f"{checkpoint}/{_FILE}", json.dumps({**wanted, _ID: owner}))
    _claim(output, owner, settings)


def bind_topics(spark: SparkSession, settings: IngestSettings) -> bool:
    """Notes the ids of the topics in the checkpoint, after `bind`, or makes sure that they are still the same.

    Spark keeps names and offsets alone. It would go on in a topic that was made again, once that is long enough.

    Returns:
        Whether there is a topic by now; a pattern may match none.

    Raises:
        ConfigurationError: a topic was made again; or the note is damaged.
        py4j.protocol.Py4JError: the topics cannot be described.
    """
    files, checkpoint, path = Files(spark), settings.checkpoint, f"{settings.checkpoint}/{_TOPICS_FILE}"
    try:
        before = (_said(files, path) or {}) if newest(files, f"{checkpoint}/offsets") != NONE else {}
    except CorruptLogError as exc:
        raise ConfigurationError(
            exc.key, f"{exc.reason}; it has the topics' ids; delete it if no topic was made again since the last run"
        ) from exc
    kafka = settings.kafka()
    there = ids(spark, kafka, settings.topics, settings.subscribe_pattern)
    now = {name: found for name, found in there.items() if found}
    anew = sorted(name for name, found in now.items() if before.get(name, found) != found)
    if anew and settings.fail_on_data_loss:
        raise ConfigurationError(
            "--topic" if settings.topics else "--subscribe-pattern",
            f"topic {anew[0]} was deleted and created again since checkpoint {checkpoint} has read it: its records "
            "below the checkpoint's offsets would be missing; give a new --checkpoint and a new --output, or "
            "--no-fail-on-data-loss to go on without them",
        )
    if before != {**before, **now}:
        files.write(path, json.dumps({**before, **now}))
    return bool(there)


class TopicWatch:
    """Looks, while a query runs, whether its topics are still those of the checkpoint.

    Spark goes on in a topic that was created again. So micro-batches since the last look may have records of both, but
    no run ends without a word on it.

    Args:
        spark: the session.
        settings: of the job.
        pause_s: the least time from one look to the next.
    """

    def __init__(self, spark: SparkSession, settings: IngestSettings, pause_s: float = 30.0) -> None:
        self._spark = spark
        self._settings = settings
        self._pause_s = pause_s
        self._batches = 0
        self._looked = time.monotonic()

    def look(self, batches: int) -> None:
        """Looks, if there is a new micro-batch, and the last look is old enough.

        Args:
            batches: how many micro-batches are done.

        Raises:
            ConfigurationError: a topic was created again; see `bind_topics`.
        """
        if batches == self._batches or time.monotonic() - self._looked < self._pause_s:
            return
        with suppress(Py4JError):  # the query itself says what is wrong with the brokers
            bind_topics(self._spark, self._settings)
        self._batches, self._looked = batches, time.monotonic()


def read_start(spark: SparkSession, checkpoint: str) -> str | None:
    """The offsets that `write_start` wrote; None if there are none.

    Raises:
        ConfigurationError: the file is damaged.
    """
    path = f"{checkpoint}/{START_FILE}"
    found = text(Files(spark), path)
    if found is not None:
        try:
            parse_offsets("--checkpoint", found)
        except ConfigurationError as exc:
            raise ConfigurationError(
                "--checkpoint",
                f"{path} is damaged; it says where the first batch begins; delete it to begin as --starting-offsets "
                "says",
            ) from exc
    return found


def first_offsets(spark: SparkSession, checkpoint: str) -> str | None:
    """The offsets where Spark's Kafka source began, as it noted them itself; None if it did not."""
    found = first_text(Files(spark), checkpoint)
    return None if found is None or json.loads(found) == {} else found


def write_start(spark: SparkSession, checkpoint: str, offsets: str) -> None:
    """Notes in `checkpoint` the offsets where its first batch begins, as Spark's Kafka source takes them."""
    Files(spark).write(f"{checkpoint}/{START_FILE}", offsets)


def _known(files: Files, checkpoint: str) -> dict[str, Any]:
    """What a checkpoint without any batch says of itself, if it has a whole note."""
    with suppress(CorruptLogError):
        return _said(files, f"{checkpoint}/{_FILE}") or {}
    return {}


def _claim(output: Output, owner: str, settings: IngestSettings) -> None:
    """Marks the output, so that of two runs that begin at once only one goes on."""
    found = output.owner()
    if found is None:
        try:
            output.mark(owner)
        except FileExistsError:
            found = output.owner()
        else:
            return
    if found != owner:
        raise ConfigurationError(
            "--output",
            f"{settings.output} is kept for another checkpoint than {settings.checkpoint}, by an ingest that began; "
            "give another --output, or, if that ingest is no more, --rebuild",
        )


def _check_kind(files: Files, settings: IngestSettings) -> None:
    output, is_table = settings.output, has_delta_log(files, settings.output)
    if is_table and not settings.delta:
        raise ConfigurationError(
            "--format", f"{output} is a Delta table, in which Parquet files alone do not show; give --format delta"
        )
    if settings.delta and not is_table and (any_in(files, output) or files.names(f"{output}/_spark_metadata")):
        raise ConfigurationError(
            "--format", f"{output} holds files and is no Delta table; give a new --output, or leave out --format delta"
        )


def _check_apart(checkpoint: str, output: str) -> None:
    """Makes sure that who reads, cleans or removes one of the two meets nothing of the other."""
    inside = f"{checkpoint}/".removeprefix(f"{output}/")
    if inside != f"{checkpoint}/" and not inside.startswith(("_", ".")):
        raise ConfigurationError(
            "--checkpoint",
            f"{checkpoint} is the output itself, or a folder of its rows: what reads or cleans the output would take "
            "it for data; give a folder elsewhere, or one in it whose name begins with _",
        )
    if output.startswith(f"{checkpoint}/"):
        raise ConfigurationError(
            "--output",
            f"{output} is in the checkpoint {checkpoint}: who removes the checkpoint would remove the rows; give a "
            "folder elsewhere",
        )


def _check_tie(files: Files, checkpoint: str, wanted: dict[str, str], *, damaged: bool = False) -> dict[str, Any]:
    """What the checkpoint says of itself, if it belongs to what is `wanted`; with `damaged`, it may say nothing."""
    try:
        found = _said(files, f"{checkpoint}/{_FILE}")
    except CorruptLogError as exc:
        if damaged:
            return {}
        raise ConfigurationError(exc.key, f"{exc.reason}; put a whole copy of the checkpoint back, {_REBUILD}") from exc
    if found is None:
        if damaged and not files.names(checkpoint):
            return {}
        raise ConfigurationError("--checkpoint", f"{checkpoint} was not made by this job; give it a folder of its own")
    for part, value in wanted.items():
        known = found.get(part, "parquet" if part == "form" else None)  # older checkpoints name no form
        if known != value:
            raise ConfigurationError(
                "--checkpoint",
                f"{checkpoint} belongs to {part} {known}, this is {part} {value}; "
                "give a new --checkpoint and a new --output",
            )
    return found


def _said(files: Files, path: str) -> dict[str, Any] | None:
    """What stands in the job's own note; None if there is none."""
    said = text(files, path)
    try:
        found = None if said is None else json.loads(said)
    except (ValueError, RecursionError):
        found = False
    if found is None or isinstance(found, dict):
        return found
    raise CorruptLogError("--checkpoint", f"{path} is damaged")


def _check_output(output: Output, found: Batches, owner: str | None, settings: IngestSettings) -> None:
    """Makes sure that the output has what the checkpoint knows, and no more."""
    folder, checkpoint = settings.output, settings.checkpoint
    assert found.query is not None
    there = output.last_batch(found.query)
    if found.written != NONE and (there == NONE or output.lacks_files()):
        raise _unlike(folder, f"is missing or empty, or another one than checkpoint {checkpoint} has written", found)
    if there != NONE:
        output.check()
    if there != NONE and output.owner() not in (owner, None):
        raise _unlike(folder, f"is another one than checkpoint {checkpoint} has written", found)
    if there < found.written:
        raise _unlike(folder, f"ends with batch {there}, and checkpoint {checkpoint} is further", found)
    if there > found.planned:
        raise ConfigurationError(
            "--checkpoint",
            f"{checkpoint} ends with batch {found.planned}, and {folder} with batch {there}: Spark would skip the "
            f"records of as many new batches; put the newest copy of the checkpoint back, {_REBUILD}",
        )


def _unlike(folder: str, what: str, found: Batches) -> ConfigurationError:
    return ConfigurationError(
        "--output",
        f"{folder} {what}: records of the batches up to {found.written} would be missing; put the output back, "
        f"{_REBUILD}",
    )


def _clear(files: Files, checkpoint: str, output: Output, folder: str) -> None:
    """Makes the checkpoint one without any batch, if the output has no rows."""
    if output.holds_rows():
        raise ConfigurationError(
            "--rebuild", f"{folder} holds rows, and they would be written again; move it away or delete it first"
        )
    output.forget()
    files.delete(f"{checkpoint}/metadata")  # first: without it no run goes on if this one is killed here
    for name in _OF_SPARK:
        files.delete_folder(f"{checkpoint}/{name}")
    for name in (START_FILE, _TOPICS_FILE):
        files.delete(f"{checkpoint}/{name}")
