"""The command line that jobs share: where Kafka is, and what the session is made of."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jobs.names import LIMIT_OPTION, check_names
from jobs.session import SessionSettings, connector_jars, submitted
from transforms.errors import ConfigurationError

__all__ = [
    "add_kafka",
    "add_spark",
    "kafka_options",
    "pairs",
    "properties",
    "session_settings",
]


def add_kafka(group: argparse._ArgumentGroup) -> None:
    """`--bootstrap-servers`, `--kafka-option` and `--kafka-config`."""
    group.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT[,…]", help="Kafka's brokers")
    group.add_argument(
        "--kafka-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of Spark's Kafka source, such as kafka.security.protocol=SASL_SSL; other users of this machine "
        "can see it in the list of processes, so secrets go into --kafka-config",
    )
    group.add_argument(
        "--kafka-config", metavar="FILE", help="a Kafka client's properties file (security.protocol=SASL_SSL, …)"
    )


def kafka_options(arguments: argparse.Namespace, topics: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """The further options of Spark's Kafka source.

    Args:
        arguments: of the command line.
        topics: those that it names, by option.

    Raises:
        ConfigurationError: one is no KEY=VALUE, the file cannot be read, or a name is over its limit.
    """
    options = {}
    if arguments.kafka_config:
        found = properties("--kafka-config", arguments.kafka_config)
        options = {f"kafka.{key}": value for key, value in found.items()}
    options |= pairs("--kafka-option", arguments.kafka_option)
    for option, names in topics.items():
        check_names(names, options, option)
    return {name: value for name, value in options.items() if name.lower() != LIMIT_OPTION}


def add_spark(parser: argparse.ArgumentParser) -> None:
    """The group of Spark's own: `--master`, `--driver-memory`, `--jars`, `--conf`, `--verbose`."""
    spark = parser.add_argument_group("Spark (spark-submit has its own options for these)")
    spark.add_argument("--master", metavar="URL", help="where the job runs (default: this machine, all cores)")
    spark.add_argument("--driver-memory", metavar="SIZE", help="heap of the job on one machine (Spark's default: 1g)")
    spark.add_argument(
        "--jars",
        metavar="LIST",
        help="the Kafka connector: files and folders; else $WIDELOAD_SPARK_JARS; else Spark fetches it",
    )
    spark.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="any Spark setting")
    spark.add_argument("--verbose", action="store_true", help="Spark's whole log, and the traceback of a failure")


def session_settings(arguments: argparse.Namespace, name: str) -> SessionSettings:
    """The session that the arguments ask for.

    Raises:
        ConfigurationError: an argument is wrong, or is spark-submit's own here.
    """
    if submitted() and arguments.jars:
        raise ConfigurationError("--jars", "spark-submit has started Spark; give --jars or --packages to it")
    return SessionSettings(
        name=name,
        jars=connector_jars(arguments.jars or os.environ.get("WIDELOAD_SPARK_JARS", "")),
        master=arguments.master,
        driver_memory=arguments.driver_memory,
        conf=pairs("--conf", arguments.conf),
        verbose=arguments.verbose,
    )


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE, each of them.

    Raises:
        ConfigurationError: one is not that.
    """
    found = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            # The text may be a secret that was put in the wrong place; it is not repeated.
            raise ConfigurationError(option, "is KEY=VALUE, and one that was given has no '=' or no key")
        found[key.strip()] = value
    return found


def properties(option: str, file: str) -> dict[str, str]:
    """The lines of a properties file, such as a Kafka client's.

    Raises:
        ConfigurationError: it cannot be read, or a line is no KEY=VALUE.
    """
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(option, f"{file} cannot be read: {error}") from error
    found = pairs(option, [line.strip() for line in lines if line.strip() and line.strip()[0] not in "#!"])
    return {key: value.strip() for key, value in found.items()}
