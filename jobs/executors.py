"""Whether executors have what a program of yours needs there: `require_executors(spark, "inflate")`.

An executor without the code, with another Python or without PyArrow ends the first action with a stack trace of Spark's
own. This looks first, and says in a sentence what is missing, and on which machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from jobs.driver.failures import SPARK_ERRORS, executor_error
from transforms.errors import ConfigurationError

__all__ = ["NEEDS", "require_executors"]

NEEDS: Mapping[str, Sequence[str]] = {
    "assemble": ("cramjam",),
    "inflate": ("pyarrow", "cramjam"),
    "offload": ("pyarrow", "cramjam"),
    "references": ("cramjam",),
    "wideload": ("pyarrow", "cramjam", "aiokafka", "crc32c"),
}
"""What executors need in addition to the code of this project, by what the program uses; `wideload` is the source."""


def require_executors(spark: SparkSession, *uses: str, packages: Sequence[str] = (), tasks: int = 16) -> None:
    """Runs a small job that looks at the Python of executors; through Spark Connect too.

    Args:
        spark: the session.
        uses: what the program uses, of `NEEDS`.
        packages: more packages that executors must have, by the names that are imported: `boto3` for S3.
        tasks: of the job. Spark chooses the executors, so with fewer tasks than cores some may not be looked at.

    Raises:
        ConfigurationError: an argument is wrong; or executors lack something, or run another Python than the driver.
    """
    unknown = [name for name in uses if name not in NEEDS]
    if unknown:
        raise ConfigurationError("uses", f"found {unknown[0]!r}, allowed are {', '.join(NEEDS)}")
    needed = dict.fromkeys([__name__, *(name for use in uses for name in NEEDS[use]), *packages])
    module = sys.modules[__name__]
    # With its bytes: executors that lack this module could not take it by its name.
    pickling = cast("Any", cloudpickle)
    pickling.register_pickle_by_value(module)
    try:
        look = F.udf(cast("Callable[..., object]", partial(_look, tuple(needed))), "string", useArrow=False)
        rows = spark.range(0, tasks, 1, tasks).select(look(F.col("id")).alias("found")).distinct().collect()
    except SPARK_ERRORS as error:
        told = executor_error(error)
        if told is None:
            raise
        raise told from None  # or Python would print hundreds of lines of Java's stack before the sentence
    finally:
        pickling.unregister_pickle_by_value(module)
    for row in rows:
        found = json.loads(row["found"])
        for name, why in found["missing"].items():
            what = name if name != __name__ else "the code of wideload"
            raise ConfigurationError(
                "executors", f"on {found['host']}, {found['python']} lacks {what} ({why}); {_advice(name)}"
            )


def _advice(name: str) -> str:
    if name == __name__:
        return (
            "pass it with --py-files jobs.zip, or spark.addArtifacts('jobs.zip', pyfile=True) through Spark Connect "
            "(`python -m wideload.jobs.archive jobs.zip` creates it), or install the same version of wideload there"
        )
    return f"install {name} there, or set PYSPARK_PYTHON or spark.pyspark.python to a Python that has it"


# --- on executors, which may have nothing of this project -------------------------------------------------------------


def _look(needed: Sequence[str], _: int) -> str:
    import importlib
    import json
    import platform
    import sys

    missing = {}
    for name in needed:
        try:
            importlib.import_module(name)
        except ImportError as exc:
            missing[name] = str(exc)
    return json.dumps({"host": platform.node(), "python": sys.executable, "missing": missing})
