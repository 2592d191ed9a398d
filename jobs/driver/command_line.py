"""The options that all jobs have on their command lines: the brokers, and the session."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jobs.driver.identifier_limits import LIMIT_OPTION, check_names
from jobs.driver.session import SessionSettings, connector_jars, submitted
from jobs.driver.worker_config import WorkerConfig
from transforms.errors import ConfigurationError
from transforms.properties import entries

__all__ = [
    "JobParser",
    "add_kafka",
    "add_spark",
    "at_least",
    "configure",
    "kafka_options",
    "pairs",
    "parse",
    "properties",
    "session_settings",
]

_OPTION = re.compile(r"--[a-z][a-z-]*")


class JobParser(argparse.ArgumentParser):
    """The command line of a job; what is wrong with it is one line, without all options in front."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2."""
        self.exit(2, f"{self.prog}: {message}; --help lists the options\n")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments. An option that is not there is told first: argparse would ask for another that is missing.

    It is told without its value, which may be a secret.

    Raises:
        SystemExit: they are wrong, or the user asked for help.
    """
    given = sys.argv[1:] if argv is None else argv
    lines = (line.strip() for line in parser.format_help().splitlines())
    known = {name for line in lines if line.startswith("-") for name in _OPTION.findall(line)}
    for argument in given:
        name = argument.partition("=")[0]
        if _OPTION.fullmatch(name) and name not in known:
            near = difflib.get_close_matches(name[2:], sorted(each[2:] for each in known), n=1)
            parser.error(f"there is no option {name}" + (f"; did you mean --{near[0]}?" if near else ""))
    return parser.parse_args(given)


def add_kafka(group: argparse._ArgumentGroup) -> None:
    """`--bootstrap-servers`, `--kafka-option` and `--kafka-config`; `-c` and `--options` for a whole configuration."""
    # fmt: off
    group.add_argument("-c", "--config", metavar="FILE",
        help="take brokers and security from a worker's configuration, and store and topics if the job uses them; "
        "only with `wideload job`, elsewhere --options")
    group.add_argument("--options", metavar="FILE",
        help="take them from a file that `wideload job NAME -c FILE --write-options FILE` made")
    group.add_argument("--bootstrap-servers", metavar="HOST:PORT[,…]", help="Kafka's brokers")
    group.add_argument("--kafka-option", action="append", default=[], metavar="KEY=VALUE",
        help="an option of Spark's Kafka source, such as kafka.security.protocol=SASL_SSL; other users of this "
        "machine can see it in the list of processes, so put secrets into --kafka-config")
    group.add_argument("--kafka-config", metavar="FILE",
        help="a Kafka client's properties file (security.protocol=SASL_SSL, …)")


def configure(arguments: argparse.Namespace, document: Mapping[str, Any] | None) -> None:
    """Adds `configured` to the arguments, and `bootstrap_servers` if the user has not given them.

    Args:
        arguments: of the command line.
        document: the configuration that `-c` named; None without `-c`.

    Raises:
        ConfigurationError: `--options` cannot be read, or brokers are named nowhere.
    """
    if arguments.config is not None:
        raise ConfigurationError("-c", "is for `wideload job`, which knows configurations; here it is --options")
    if document is not None and arguments.options is not None:
        raise ConfigurationError("--options", "stands beside -c; give one of them")
    configured = None if document is None else WorkerConfig.of(document)
    if arguments.options is not None:
        configured = WorkerConfig.load(arguments.options)
    arguments.configured = configured
    if arguments.bootstrap_servers is None:
        if configured is None:
            raise ConfigurationError("--bootstrap-servers", "is missing; give it, or a configuration with -c")
        arguments.bootstrap_servers = configured.servers


def kafka_options(
    arguments: argparse.Namespace, topics: Mapping[str, Iterable[str]], *, java: bool = True
) -> dict[str, str]:
    """The options of Spark's Kafka source, or of the data source `wideload`; the command line wins.

    Args:
        arguments: of the command line, after `configure`.
        topics: by option, the topics that the user named.
        java: whether they are for Spark's own source, which uses Kafka's Java client.

    Raises:
        ConfigurationError: an option is not KEY=VALUE, a file cannot be read, or a name is over its limit.
    """
    options: dict[str, str] = {}
    configured: WorkerConfig | None = arguments.configured
    if configured is not None:
        options |= configured.java_options() if java else configured.client_options()
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
        help="the Kafka connector and such: files and folders; else $WIDELOAD_SPARK_JARS; else Spark fetches them")
    spark.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="any Spark setting")
    spark.add_argument("--verbose", action="store_true", help="Spark's whole log, and the traceback of a failure")


def session_settings(
    arguments: argparse.Namespace,
    name: str,
    *,
    packages: tuple[str, ...] = (),
    delta: bool = False,
    lasting: bool = False,
) -> SessionSettings:
    """The settings of the session.

    Args:
        arguments: of the command line.
        name: the job's name on Spark's own pages.
        packages: what the job needs beside the connector.
        delta: whether the session can use Delta tables.
        lasting: whether the job goes on until it is stopped.

    Raises:
        ConfigurationError: an argument is wrong, or must be given to spark-submit.
    """
    if submitted() and arguments.jars:
        raise ConfigurationError("--jars", "spark-submit has started Spark; give --jars or --packages to it")
    return SessionSettings(
        name=name,
        jars=connector_jars(arguments.jars or os.environ.get("WIDELOAD_SPARK_JARS", "")),
        master=arguments.master,
        driver_memory=arguments.driver_memory,
        conf=pairs("--conf", arguments.conf),
        packages=packages,
        delta=delta,
        verbose=arguments.verbose,
        lasting=lasting,
    )


def at_least(least: int) -> Callable[[str], int]:
    """The type of an argument that is a number of `least` or more."""

    def number(text: str) -> int:
        found = int(text)
        if found < least:
            raise argparse.ArgumentTypeError(f"is {least} or more")
        return found

    return number


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Each KEY=VALUE.

    Raises:
        ConfigurationError: one has no `=` or no key.
    """
    found = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            # The text may be a secret in the wrong place, so the message does not repeat it.
            raise ConfigurationError(option, "is KEY=VALUE, and one that was given has no '=' or no key")
        found[key.strip()] = value
    return found


def properties(option: str, file: str) -> dict[str, str]:
    """The entries of a properties file, such as a Kafka client's; a backslash at the end of a line continues it.

    Raises:
        ConfigurationError: the file cannot be read, or an entry is not KEY=VALUE.
    """
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(option, f"{file} cannot be read: {reason}") from error
    found = pairs(option, entries(text))
    return {key: value.strip() for key, value in found.items()}
