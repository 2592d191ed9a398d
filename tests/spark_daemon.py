"""What starts Spark's Python workers in the tests: `spark.python.daemon.module=tests.spark_daemon`.

Spark puts its own `pyspark.zip` on their path, and each task reads the directory of that file sixteen times: a fifth of
a second of CPU or more, which is most of what a small task takes. The same code is installed next to it as a directory.
"""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if not entry.endswith(".zip")]
    import pyarrow  # noqa: F401, ICN001  # here once, and not in each worker
    from pyspark.daemon import manager

    gc.freeze()  # a worker collects after each task
    manager()  # type: ignore[no-untyped-call]
