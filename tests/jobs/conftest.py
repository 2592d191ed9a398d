"""What tests of several jobs share."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from app.config.client import embedded_client_settings
from jobs.ingest import IngestSettings
from tests.jobs.ingests import Settings


@pytest.fixture
def in_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run on the tests' own session, which is there already."""
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # as sessions of the jobs have it
    for module in ("jobs.backfill", "jobs.payloads.spark_engine"):
        monkeypatch.setattr(f"{module}.open_session", lambda _: nullcontext(spark))


@pytest.fixture
def settings(broker: str, tmp_path: Path) -> Settings:
    """Settings of a bounded run of `ingest` into a folder of this test."""

    def make(*topics: str, place: str = "one", **changes: Any) -> IngestSettings:
        values: dict[str, Any] = {
            "bootstrap_servers": broker,
            "client": embedded_client_settings({"bootstrap.servers": broker}),
            "topics": topics,
            "output": str(tmp_path / place / "out"),
            "checkpoint": str(tmp_path / place / "checkpoint"),
            "once": True,
        }
        return IngestSettings(**values | changes)

    return make
