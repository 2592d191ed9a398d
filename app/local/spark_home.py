"""The Spark that the processes of this machine start: the one of `SPARK_HOME`, else the one inside PySpark."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from transforms.spark_release import DEFAULT, SparkRelease, found_in, release_of

__all__ = ["find", "release"]


def find() -> Path | None:
    """The folder of Spark; None if there is neither."""
    given = os.environ.get("SPARK_HOME")
    if given:
        return Path(given)
    spec = importlib.util.find_spec("pyspark")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def release() -> SparkRelease:
    """What goes with it, by the names of its jars; with the locked PySpark, if there are no jars.

    Raises:
        ConfigurationError: it is a release that the jobs do not run on.
    """
    home = find()
    found = home and found_in(path.name for path in home.glob("jars/spark-core_*.jar"))
    return release_of(*found) if found else DEFAULT
