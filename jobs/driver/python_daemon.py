"""What starts Spark's Python workers where a whole job runs on one machine: `spark.python.daemon.module`.

The driver has imported PySpark and Py4J from folders, which the workers find too. So they need none of Spark's archives
(`jobs.driver.python_archives`), and the first task of a worker is as quick as the others.
"""

from __future__ import annotations

import gc
import sys

from jobs.driver.python_archives import without_archives

if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    from pyspark.daemon import manager

    gc.freeze()  # a worker collects after each task
    manager()  # type: ignore[no-untyped-call]
