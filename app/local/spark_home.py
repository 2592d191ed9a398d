"""The Spark that the processes of this machine start: the one of `SPARK_HOME`, else the one inside PySpark."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from transforms.spark_release import DEFAULT, SparkRelease, found_in, release_of

_VERSION = re.compile(r"""^__version__\b[^"'\n]*["'](.+)["']""", re.MULTILINE)


def find() -> Path | None:
    """The directory of Spark; None if there is neither."""
    given = os.environ.get("SPARK_HOME")
    if given:
        return Path(given)
    spec = importlib.util.find_spec("pyspark")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def release() -> SparkRelease:
    """What goes with it, by the names of its jars; else by the version of PySpark, which may be a client without jars.

    Without either, that of the lock.

    Raises:
        ConfigurationError: it is a release that the jobs do not run on.
    """
    home = find()
    found = home and found_in(path.name for path in home.glob("jars/spark-core_*.jar"))
    if found:
        return release_of(*found)
    spec = importlib.util.find_spec("pyspark")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    version = _VERSION.search(file.read_text("utf-8")) if file and file.is_file() else None
    return release_of(version[1]) if version else DEFAULT
