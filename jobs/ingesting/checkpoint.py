"""One checkpoint, one output, one subscription: the tie that exactly-once stands on.

Spark keeps the offsets in the checkpoint and the list of whole files in the output (`_spark_metadata`), each counted by
batch number, and ties neither to the other. A fresh checkpoint over an old output makes Spark take batch 0 for written
already and skip it, in silence; a checkpoint of another topic reads offsets that mean nothing. So the job writes down
what belongs together, in the checkpoint, and refuses the rest.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pyspark.sql import SparkSession

from jobs.driver.jvm import Files
from transforms.errors import ConfigurationError

__all__ = ["Binding", "bind", "read_start", "write_start"]

_FILE = "wideload.json"
_START_FILE = "wideload-start.json"
_DELTA_LOG = "_delta_log"


@dataclass(frozen=True, slots=True)
class Binding:
    """What a checkpoint belongs to.

    Attributes:
        job: the job's name.
        source: what is read, as the user subscribed to it.
        output: the folder that is written, as a full address.
        form: what is written there.
    """

    job: str
    source: str
    output: str
    form: str = "parquet"


def bind(
    spark: SparkSession,
    checkpoint: str,
    output: str,
    *,
    job: str,
    source: str,
    form: str = "parquet",
    delta: bool = False,
) -> None:
    """Tie `checkpoint` to `job`, `source` and `output`, or check that it is tied to them already.

    A checkpoint in which no batch was begun may be tied anew: nothing was read by it. A Delta table that somebody made
    beforehand may be the output as long as nothing is in it.

    Args:
        spark: the session.
        checkpoint: its folder.
        output: the folder that is written.
        job: the job's name.
        source: what is read.
        form: what is written.
        delta: whether the output is a Delta table; else it is a folder of Parquet files.

    Raises:
        ConfigurationError: the checkpoint belongs to something else, the output to another checkpoint, or the output is
            of the other kind.
    """
    files = Files(spark)
    wanted = Binding(job=job, source=source, output=files.qualified(output), form=form)
    is_table = _any_in(files, f"{output}/{_DELTA_LOG}")
    if is_table and not delta:
        raise ConfigurationError(
            "--format", f"{output} is a Delta table, in which Parquet files alone do not show; give --format delta"
        )
    if delta and not is_table and _any_in(files, output):
        raise ConfigurationError(
            "--format", f"{output} holds files and is no Delta table; give a new --output, or leave out --format delta"
        )
    if not _any_in(files, f"{checkpoint}/offsets"):
        if _any_in(files, f"{output}/_spark_metadata"):
            raise ConfigurationError(
                "--checkpoint",
                f"{output} was written with another checkpoint than {checkpoint}, and Spark would skip as many batches "
                "as it finds there; give that checkpoint, or a new --output",
            )
        if is_table and _any_in(files, output, _DELTA_LOG):
            raise ConfigurationError(
                "--checkpoint",
                f"{output} was written with another checkpoint than {checkpoint}, which does not know what is there: "
                "records would be there twice; give that checkpoint, or a new --output",
            )
        files.write(f"{checkpoint}/{_FILE}", json.dumps(asdict(wanted)))
        return
    text = files.read(f"{checkpoint}/{_FILE}")
    if text is None:
        raise ConfigurationError("--checkpoint", f"{checkpoint} was not made by this job; give it a folder of its own")
    found = json.loads(text)
    for part, value in asdict(wanted).items():
        known = found.get(part, "parquet" if part == "form" else None)  # there was no other form once
        if known != value:
            raise ConfigurationError(
                "--checkpoint",
                f"{checkpoint} belongs to {part} {known}, this is {part} {value}; "
                "give a new --checkpoint and a new --output",
            )


def read_start(spark: SparkSession, checkpoint: str) -> str | None:
    """What `write_start` has written; None where it has not."""
    return Files(spark).read(f"{checkpoint}/{_START_FILE}")


def write_start(spark: SparkSession, checkpoint: str, offsets: str) -> None:
    """Note in `checkpoint` the offsets at which its first batch begins, as Spark's Kafka source takes them."""
    Files(spark).write(f"{checkpoint}/{_START_FILE}", offsets)


def _any_in(files: Files, folder: str, but: str = "") -> bool:
    return any(not name.startswith(".") and name != but for name in files.names(folder))
