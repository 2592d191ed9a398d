"""An audit on Spark: every reference of topics with its state. `app.payloads.audit` has the story."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

if not __package__:  # spark-submit runs this file by itself, with this directory on the path, not the one above it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from pyspark.sql import DataFrame, SparkSession

from app.config.client import embedded_client_settings
from app.config.java_client import from_java
from app.kafka.spans import described
from app.payloads import audit_command
from app.payloads.audit import AuditSettings
from app.payloads.audit import audit as audited
from jobs.driver.command_line import add_spark
from jobs.payloads.spark_engine import SparkEngine, running, session_engine
from transforms.formats import FormatName
from transforms.found_references import ReferenceFinder
from transforms.signing import Signing

__all__ = ["audit", "main"]

_REPORT = "a new directory for the report, as Parquet: one row for each reference"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job; returns the exit status: 0 all is well, 1 it failed, 2 to be set right first, 3 findings."""

    def opened(arguments: argparse.Namespace, settings: AuditSettings) -> AbstractContextManager[SparkEngine]:
        described(settings.client, {"--topic": settings.topics})  # before Spark starts, which takes ten seconds
        return session_engine(arguments, "wideload-audit", settings.client, settings.topics)

    return audit_command.main(argv, opened, add_spark, _REPORT)


def audit(
    spark: SparkSession,
    kafka: Mapping[str, str],
    store: Mapping[str, object],
    *topics: str,
    reference_format: FormatName = "wideload",
    newest_only: bool = False,
    verify: bool = False,
) -> DataFrame:
    """Every reference of topics with its state, as `app.payloads.audit.FINDING`; through Spark Connect too.

    The rows are on the disks of executors, until `unpersist` of the result.

    Args:
        spark: the session.
        kafka: properties of a Kafka client; as with Spark's source, `kafka.` may stand before their names.
        store: the configuration of the store, as in the worker's file. With `large.message.signing.key` signatures are
            verified.
        topics: their names.
        reference_format: the worker's `reference.format`.
        newest_only: whether only the newest record of each key counts in compacted topics.
        verify: whether every payload is read.

    Raises:
        ConfigurationError: an argument is wrong.
        WideloadError: any other failure.
    """
    client = embedded_client_settings(from_java({name.removeprefix("kafka."): text for name, text in kafka.items()}))
    finder = ReferenceFinder(reference_format, signing=Signing.of(store))
    with running(spark, client, topics) as engine:
        settings = AuditSettings(client, store, dict.fromkeys(topics, finder), newest_only=newest_only, verify=verify)
        return engine.keep(audited(engine, settings)[0])


if __name__ == "__main__":
    raise SystemExit(main())
