"""A sweep on Spark: removes the payloads that no record refers to. `app.payloads.sweep` has the story."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

if not __package__:  # spark-submit runs this file by itself, with this directory on the path, not the one above it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pyspark.sql import DataFrame, SparkSession

from app.config.client import embedded_client_settings
from app.config.java_client import from_java
from app.payloads import sweep_command
from app.payloads.sweep import marked
from app.payloads.sweep_settings import SweepSettings
from jobs.driver.command_line import add_spark
from jobs.driver.failures import JobFailedError
from jobs.payloads.spark_engine import SparkEngine, running, session_engine

__all__ = ["main", "orphans"]

_REPORT = "a new directory for the report, as Parquet: one row for each payload"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job; returns the exit status: 0 done, 1 failed at work, 2 something to set right first, 3 refused."""

    def opened(arguments: argparse.Namespace, settings: SweepSettings) -> AbstractContextManager[SparkEngine]:
        settings.described()  # a wrong name is reported before Spark starts, which takes ten seconds
        return session_engine(arguments, "wideload-sweep", settings.client, settings.read_topics)

    return sweep_command.main(argv, opened, add_spark, _REPORT)


def orphans(
    spark: SparkSession, kafka: Mapping[str, str], store: Mapping[str, object], *topics: str, **settings: Any
) -> DataFrame:
    """The payloads of topics that no record refers to, as `app.payloads.sweep.MARKED`; through Spark Connect too.

    Nothing is deleted. The rows are on the disks of executors, until the session ends or `spark.catalog.clearCache()`.

    Args:
        spark: the session.
        kafka: properties of a Kafka client; as with Spark's source, `kafka.` may stand before their names.
        store: the configuration of the store, as in the worker's file.
        topics: those whose payloads are looked at.
        settings: more fields of `app.payloads.sweep_settings.SweepSettings`, as `carriers`, `grace`, `newest_only`.

    Raises:
        ConfigurationError: an argument is wrong.
        JobFailedError: it is not known which payloads are orphans; the message has each reason.
        WideloadError: any other failure.
    """
    client = embedded_client_settings(from_java({name.removeprefix("kafka."): text for name, text in kafka.items()}))
    wanted = SweepSettings(client, store, topics, **{"max_delete_fraction": 1.0, **settings})
    with running(spark, client, wanted.read_topics) as engine:
        payloads, result = marked(engine, wanted)
        if result.refusals:
            raise JobFailedError("; ".join(result.refusals))
        return engine.keep(payloads).where("state = 'orphan'")


if __name__ == "__main__":
    raise SystemExit(main())
