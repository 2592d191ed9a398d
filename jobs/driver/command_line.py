"""The options that all jobs have on their command lines for Spark; `app.config.arguments` has the others."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterable, Mapping

from app.config.arguments import pairs, properties
from app.config.java_client import to_java
from jobs.driver.identifier_limits import LIMIT_OPTION, check_names
from jobs.driver.session import SessionSettings, connector_jars, submitted
from transforms.errors import ConfigurationError
from transforms.identifiers import LIMIT_KEY

# What aiokafka logs is raised, too. Without any handler Python would print it.
logging.getLogger("aiokafka").addHandler(logging.NullHandler())


def source_options(arguments: argparse.Namespace, topics: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """The options of Spark's Kafka source for its client, which is Java's; the command line wins.

    Args:
        arguments: of the command line, after `app.config.arguments.configure`.
        topics: by option, the topics that the user named.

    Raises:
        ConfigurationError: an option is not KEY=VALUE, a file cannot be read, or a name is over its limit.
    """
    options: dict[str, str] = {}
    if arguments.settings is not None:
        client = arguments.settings.client
        found = {**to_java(client), LIMIT_KEY: str(client.limit_names).lower()}
        options |= {f"kafka.{name}": value for name, value in found.items() if name != "bootstrap.servers"}
    if arguments.kafka_config:
        found = properties("--kafka-config", arguments.kafka_config)
        options |= {f"kafka.{key}": value for key, value in found.items()}
    options |= pairs("--kafka-option", arguments.kafka_option)
    for option, names in topics.items():
        check_names(names, options, option)
    return {name: value for name, value in options.items() if name.lower() != LIMIT_OPTION}


def add_spark(parser: argparse.ArgumentParser) -> None:
    """The options for Spark itself: `--master`, `--driver-memory`, `--jars`, `--conf`, `--verbose`."""
    spark = parser.add_argument_group("Spark (spark-submit has its own options for these)")
    spark.add_argument("--master", metavar="URL", help="where the job runs (default: this machine, all cores)")
    spark.add_argument("--driver-memory", metavar="SIZE", help="heap of the job on one machine (Spark's default: 1g)")
    # fmt: off
    spark.add_argument("--jars", metavar="LIST",
        help="jars such as the Kafka connector: files and directories (default: $WIDELOAD_SPARK_JARS; without it, "
            "Spark downloads them)")
    spark.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
    spark.add_argument("--verbose", action="store_true", help="show Spark's complete log, and tracebacks of failures")


def session_settings(
    arguments: argparse.Namespace,
    name: str,
    *,
    packages: tuple[str, ...] = (),
    delta: bool = False,
) -> SessionSettings:
    """The settings of the session.

    Args:
        arguments: of the command line.
        name: the job's name on Spark's own pages.
        packages: what the job needs, as `--packages` takes it.
        delta: whether the session can use Delta tables.

    Raises:
        ConfigurationError: an argument is wrong, or must be given to spark-submit.
    """
    if submitted() and arguments.jars:
        raise ConfigurationError("--jars", "spark-submit has started Spark; pass --jars or --packages to spark-submit")
    return SessionSettings(
        name=name,
        jars=connector_jars(arguments.jars or os.environ.get("WIDELOAD_SPARK_JARS", "")),
        master=arguments.master,
        driver_memory=arguments.driver_memory,
        conf=pairs("--conf", arguments.conf),
        packages=packages,
        delta=delta,
        verbose=arguments.verbose,
    )
