"""PySpark's classes for Python data sources, which Spark 3.5 does not have; and how their errors reach a user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pyspark

from app.kafka.range_reader import RecordsLostError
from jobs.driver.failures import JobFailedError
from transforms.errors import WideloadError

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
except ModuleNotFoundError:
    raise ImportError(
        f"Python data sources, such as wideload, need PySpark 4.0 or newer, and {pyspark.__version__} is installed; "
        "read with format('kafka') and wideload.jobs.inflate instead, or install a newer PySpark",
        name="pyspark.sql.datasource",
    ) from None

__all__ = ["DataSource", "DataSourceReader", "DataSourceStreamReader", "InputPartition", "plain"]

_HIDE, _OF_A_WORKER = "SPARK_HIDE_TRACEBACK", "PYTHON_WORKER_FACTORY_SECRET"


@contextmanager
def plain() -> Iterator[None]:
    """Lets Spark show our errors without the traceback of its Python worker."""
    try:
        yield
    except WideloadError as exc:
        if _OF_A_WORKER in os.environ:
            os.environ[_HIDE] = "1"  # of this process alone, which ends by the error
        if isinstance(exc, RecordsLostError):
            raise JobFailedError(f"{exc}; failOnDataLoss=false continues without them") from exc
        raise
