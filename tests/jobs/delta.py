"""Tests that need Delta Lake."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from jobs.driver.jvm import has_class

__all__ = ["require_delta"]


def require_delta(spark: SparkSession) -> None:
    """Skips a test where no release of Delta Lake works with this Spark."""
    if not has_class(spark, "io.delta.sql.DeltaSparkSessionExtension"):
        pytest.skip(f"no Delta Lake for Spark {spark.version}")
