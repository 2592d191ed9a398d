"""PySpark's classes for Python data sources, which Spark 3.5 does not have."""

from __future__ import annotations

import pyspark

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
except ModuleNotFoundError:
    raise ImportError(
        f"Python data sources, such as wideload, need PySpark 4.0 or newer, and {pyspark.__version__} is installed; "
        "read with format('kafka') and wideload.jobs.inflate instead, or install a newer PySpark",
        name="pyspark.sql.datasource",
    ) from None

__all__ = ["DataSource", "DataSourceReader", "DataSourceStreamReader", "InputPartition"]
