"""What starts Spark's Python workers where a whole job runs on one machine: `spark.python.daemon.module`.

Spark puts archives of PySpark and Py4J on their path, and each task reads the directories of those files many times: a
fifth of a second of CPU, which is most of what a small task takes. The driver has imported the same code from folders,
which the workers find too.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

__all__ = ["without_archives"]

_ARCHIVES = "/python/lib/"  # of Spark


def without_archives(path: Sequence[str]) -> list[str]:
    """The path without Spark's archives, if PySpark and Py4J are in folders of it; else the path as it is."""
    rest = [entry for entry in path if not (entry.endswith(".zip") and _ARCHIVES in entry)]
    found = all(PathFinder.find_spec(name, rest) is not None for name in ("pyspark", "py4j"))
    return rest if found else list(path)


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    from pyspark.daemon import manager

    gc.freeze()  # a worker collects after each task
    manager()  # type: ignore[no-untyped-call]
