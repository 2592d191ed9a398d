"""One checkpoint, one output, one subscription: exactly-once depends on this tie.

Spark keeps the offsets in the checkpoint and the list of whole files in the output (`_spark_metadata`). It counts both
by batch number, and does not tie one to the other. With a fresh checkpoint and an old output Spark silently skips batch
0, as if it were written already. With the checkpoint of another topic it reads offsets that mean nothing. So the job
notes in the checkpoint what belongs together, and refuses the rest.
"""

from __future__ import annotations

import json

from pyspark.sql import SparkSession

from jobs.driver.jvm import Files
from transforms.errors import ConfigurationError

__all__ = ["bind", "read_start", "write_start"]

_FILE = "wideload.json"
_START_FILE = "wideload-start.json"
_DELTA_LOG = "_delta_log"


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
    """Ties `checkpoint` to `job`, `source` and `output`, or checks that it is tied to them already.

    A checkpoint without any batch may be tied anew. A Delta table that somebody made beforehand may be the output as
    long as it is empty.

    Args:
        spark: the session.
        checkpoint: its folder.
        output: the folder to write.
        job: the job's name.
        source: the subscription, as the user gave it.
        form: the form of the output: its format, and how it is parted.
        delta: whether the output is a Delta table; else it is a folder of Parquet files.

    Raises:
        ConfigurationError: the checkpoint belongs to something else, the output to another checkpoint, or the output is
            of the other kind.
    """
    files = Files(spark)
    wanted = {"job": job, "source": source, "output": files.qualified(output), "form": form}
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
                f"{output} was written with another checkpoint than {checkpoint}, which does not know its records: "
                "they would be there twice; give that checkpoint, or a new --output",
            )
        files.write(f"{checkpoint}/{_FILE}", json.dumps(wanted))
        return
    text = files.read(f"{checkpoint}/{_FILE}")
    if text is None:
        raise ConfigurationError("--checkpoint", f"{checkpoint} was not made by this job; give it a folder of its own")
    found = json.loads(text)
    for part, value in wanted.items():
        known = found.get(part, "parquet" if part == "form" else None)  # older checkpoints name no form
        if known != value:
            raise ConfigurationError(
                "--checkpoint",
                f"{checkpoint} belongs to {part} {known}, this is {part} {value}; "
                "give a new --checkpoint and a new --output",
            )


def read_start(spark: SparkSession, checkpoint: str) -> str | None:
    """The offsets that `write_start` wrote; None if there are none."""
    return Files(spark).read(f"{checkpoint}/{_START_FILE}")


def write_start(spark: SparkSession, checkpoint: str, offsets: str) -> None:
    """Notes in `checkpoint` the offsets where its first batch begins, as Spark's Kafka source takes them."""
    Files(spark).write(f"{checkpoint}/{_START_FILE}", offsets)


def _any_in(files: Files, folder: str, but: str = "") -> bool:
    return any(not name.startswith(".") and name != but for name in files.names(folder))
