"""The Spark that runs the job, and whether the module `pyspark` fits it."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark

from transforms.errors import ConfigurationError
from transforms.spark_release import SparkRelease, found_in, release_of


def home() -> Path:
    """Its directory: `SPARK_HOME`, else that of PySpark."""
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)


def release() -> SparkRelease:
    """What goes with it, by the names of its jars; by the version of PySpark, if its jars have other names.

    Raises:
        ConfigurationError: the jobs do not run on it, or PySpark is of another release.
    """
    found = found_in(path.name for path in home().glob("jars/spark-core_*.jar"))
    if found is None:
        return release_of(pyspark.__version__)
    spark = release_of(*found)
    if not pyspark.__version__.startswith(f"{spark.name}."):
        raise ConfigurationError(
            "SPARK_HOME",
            f"{home()} has Spark {found[0]}, and the module pyspark in {Path(pyspark.__file__).parent} is "
            f"{pyspark.__version__}; both must be the same release: unset SPARK_HOME, or install pyspark {spark.name}",
        )
    return spark
