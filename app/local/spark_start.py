"""The start of Spark on this machine, in less CPU time: an archive of the classes that its Java process loads.

    python -m app.local.spark_start    create the archive again; half a minute

The archive fits Spark's own jars, so it is stored in Spark's directory. Without it Spark starts as usual.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from app.local import class_archive, jars, java, spark_home

# Spark's launcher takes options of Java from it.
_OPTIONS = "SPARK_SUBMIT_OPTS"

_LIMIT_S = 300

# What loads most of the classes that the jobs need: a stream of files, in micro-batches that Python looks at.
_SMALL_JOB = """
import sys
from pyspark.sql import SparkSession, functions as F
work, jars = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
rows = spark.range(100).select("id", F.udf(str)("id").alias("text"), (F.col("id") % 7).alias("part"))
rows.groupBy("part").agg(F.max("text"), F.count("*")).orderBy("part").collect()
rows.write.parquet(f"{work}/in")
def keep(batch, number):
    batch.join(batch.groupBy("part").count(), "part").write.mode("append").parquet(f"{work}/out")
read = spark.readStream.schema(rows.schema).parquet(f"{work}/in")
stream = read.writeStream.foreachBatch(keep).option("checkpointLocation", f"{work}/checkpoint")
stream.trigger(availableNow=True).start().awaitTermination()
spark.range(10).write.format("delta").save(f"{work}/delta")
spark.stop()
"""


def environ(*, short_run: bool = False) -> Mapping[str, str]:
    """The variables to add to the environment of a process that starts Spark.

    Args:
        short_run: whether the job is a short one; see `java.SHORT_RUN`.
    """
    flags = java.SHORT_RUN if short_run else ()
    path = None
    with contextlib.suppress(java.JavaMissingError):
        path = _archive()
    given = os.environ.get(_OPTIONS, "").split()
    return {_OPTIONS: " ".join(dict.fromkeys([*given, *flags, *(class_archive.using(path) if path else ())]))}


def prepare() -> None:
    """Creates the archive, and replaces an older one. In a read-only directory it does nothing.

    Raises:
        JarsError: the jars cannot be fetched.
        JavaMissingError: there is no Java.
    """
    found = ",".join(map(str, jars.ensure("spark")))
    path = _archive()
    if path is None:
        return
    # The archive is optional: if Spark does not work, later starts report why.
    with (
        contextlib.suppress(OSError, subprocess.SubprocessError),
        class_archive.recorded(path) as options,
        tempfile.TemporaryDirectory(prefix="wideload-spark-") as folder,
    ):
        path.unlink(missing_ok=True)
        # It reads Spark's output until the Java process exits, which writes the archive last.
        subprocess.run(
            [sys.executable, "-c", _SMALL_JOB, folder, found],
            env={**os.environ, _OPTIONS: " ".join([*java.SHORT_RUN, *options]), "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )


def _archive() -> Path | None:
    """The path of the archive; None without Spark."""
    home = spark_home.find()
    return class_archive.archive(home, java.locate()) if home else None


if __name__ == "__main__":
    prepare()
