"""The command lines of audit, sweep, backfill and ingest: brokers, store, and a worker's configuration.

The options are identical with and without Spark.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NoReturn

from app.config.java_client import from_java
from app.config.parsing import checked_client_settings, load
from app.config.settings import CONNECTION_KEYS, ClientSettings
from app.config.store_use import StoreUse, use_of
from stores.encryption import ENCRYPTION_KEYS
from stores.keys import Key, unknown
from stores.registry import STORE_CLASS, open_store, store_keys
from stores.store import COMMON_KEYS, Store
from transforms.errors import ConfigurationError
from transforms.identifiers import LIMIT_KEY
from transforms.properties import entries
from transforms.signing import KEY_NAME

SERVERS_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
_OPTION = re.compile(r"--[a-z][a-z-]*")
_PREFIX = "kafka."  # as Spark's Kafka source has it

# Properties of a consumer that reads a topic once; the names of aiokafka's arguments are the same with underscores.
_CONSUMER: Mapping[str, Key] = {
    key.name: key
    for key in (
        Key("client.rack", "string", "The rack of the nearest replica."),
        Key("check.crcs", "boolean", "Whether the checksums of batches are compared."),
        Key("fetch.max.bytes", "int", "The most bytes of one answer.", minimum=1),
        Key("max.partition.fetch.bytes", "int", "The most bytes of one partition in an answer.", minimum=1),
        Key("request.timeout.ms", "int", "The longest wait for an answer.", minimum=1),
    )
}


class JobParser(argparse.ArgumentParser):
    """A command line whose errors are one line, without the list of all options."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2."""
        self.exit(2, f"{self.prog}: {message}; --help lists the options\n")


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments. An unknown option is reported before a missing one, and without its value, which may be secret.

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


def add_kafka(group: argparse._ArgumentGroup, option: str = "a property of a Kafka client") -> None:
    """`-c`, `--bootstrap-servers`, `--kafka-option` and `--kafka-config`; `option` says what `--kafka-option` is."""
    # fmt: off
    group.add_argument("-c", "--config", metavar="FILE",
        help="the configuration of a worker, for brokers and security, and for store and topics if they are used")
    group.add_argument("-b", "--bootstrap-servers", metavar="HOST:PORT[,…]",
        help=f"Kafka's brokers (default: from -c, else ${SERVERS_VARIABLE})")
    group.add_argument("--kafka-option", action="append", default=[], metavar="KEY=VALUE",
        help=f"{option}, such as kafka.security.protocol=SASL_SSL; other users of this machine can see it in the list "
        "of processes, so put secrets into --kafka-config")
    group.add_argument("--kafka-config", metavar="FILE",
        help="a Kafka client's properties file (security.protocol=SASL_SSL, …)")


def add_store(group: argparse._ArgumentGroup) -> None:
    """`--store`, `--store-config` and `--pipeline`."""
    # fmt: off
    group.add_argument("--pipeline", metavar="NAME",
        help="with -c: the pipeline whose store is used; required if there are several stores")
    group.add_argument("--store", action="append", default=[], metavar="KEY=VALUE",
        help=f"a property of the payload store, as in the worker's file: {STORE_CLASS}=s3, s3.bucket=payloads; may be "
        "repeated")
    group.add_argument("--store-config", metavar="FILE",
        help="a file of such properties; put secrets here, as other users can see the command line")


def configure(arguments: argparse.Namespace) -> None:
    """Adds `settings` to the arguments: the configuration that `-c` names; None without it.

    Sets `bootstrap_servers` if they were not passed.

    Raises:
        ConfigurationError: the configuration is wrong, or no brokers are configured.
    """
    arguments.settings = None if arguments.config is None else load(arguments.config)
    if arguments.bootstrap_servers is None:
        servers = os.environ.get(SERVERS_VARIABLE) if arguments.settings is None else None
        arguments.bootstrap_servers = servers or (arguments.settings and arguments.settings.client.bootstrap_servers)
    if not arguments.bootstrap_servers:
        raise ConfigurationError("--bootstrap-servers", "is missing; pass it, or a configuration with -c")


def client_settings(arguments: argparse.Namespace, *, of_spark: bool = False) -> ClientSettings:
    """The connection to the cluster, after `configure`; the command line overrides the configuration.

    The properties may be those of Kafka's Java client, and may have `kafka.` before their names. With `of_spark` others
    may be among those of `--kafka-option`: options of Spark's Kafka source.

    Raises:
        ConfigurationError: a property is unknown or wrong, only Java can use it, or a file cannot be read.
    """
    values: dict[str, object] = {}
    if arguments.settings is not None:
        client = arguments.settings.client
        values = {"client.id": client.client_id, LIMIT_KEY: client.limit_names}
        values |= {name: value for name, value in client.security.items() if value is not None}
    keys = {key.name: key for key in CONNECTION_KEYS}
    for name, text in _kafka(arguments, of_spark=of_spark).items():
        if name in keys:
            values[name] = keys[name].coerce(text)
    return checked_client_settings({**values, "bootstrap.servers": arguments.bootstrap_servers})


def consumer_arguments(arguments: argparse.Namespace) -> dict[str, object]:
    """The arguments for a consumer of aiokafka that are among the properties of `--kafka-option` and `--kafka-config`.

    Raises:
        ConfigurationError: a value is wrong, or a file cannot be read.
    """
    return {
        name.replace(".", "_"): _CONSUMER[name].coerce(text)
        for name, text in _kafka(arguments).items()
        if name in _CONSUMER
    }


def store_use(arguments: argparse.Namespace, topics: Sequence[str]) -> StoreUse | None:
    """The store in the configuration; None without a configuration. After `configure`.

    `topics` are those of the command line; they select one of several stores.

    Raises:
        ConfigurationError: the configuration has no store, or several.
    """
    if arguments.settings is None:
        if arguments.pipeline is not None:
            raise ConfigurationError("--pipeline", "requires a configuration; pass it with -c")
        return None
    return use_of(arguments.settings, arguments.pipeline, topics)


def store_config(
    arguments: argparse.Namespace, use: StoreUse | None = None, topic: str | None = None
) -> dict[str, object]:
    """The configuration to open the store with; the command line overrides the worker's configuration.

    Args:
        arguments: of the command line, after `configure`.
        use: the store in the worker's configuration.
        topic: the topic whose references are verified and whose payloads are decrypted; None omits the keys for it,
            unless the command line has them.

    Raises:
        ConfigurationError: an option is not KEY=VALUE, the file cannot be read, or a property is missing, unknown or
            wrong; or the command line names another store than the worker's configuration.
    """
    given: dict[str, str] = {}
    if arguments.store_config:
        given = properties("--store-config", arguments.store_config)
    given |= pairs("--store", arguments.store)
    base = {} if use is None else dict(use.store)
    if use is not None and topic is not None and KEY_NAME not in given:
        base |= use.signing_of(topic)
    if use is not None and topic is not None and not any(key.name in given for key in ENCRYPTION_KEYS):
        base |= use.encryption_of(topic)
    name = given.get(STORE_CLASS, base.get(STORE_CLASS))
    if not isinstance(name, str):
        raise ConfigurationError("--store", f"{STORE_CLASS}=… is missing; pass the properties of the worker's pipeline")
    config = base | coerced(name, given)
    with closing(open_store(config)) as store:
        if use is not None and given and isinstance(store, Store):
            with closing(open_store(use.store)) as configured:
                if not isinstance(configured, Store) or configured.root != store.root:
                    raise ConfigurationError(
                        "--store",
                        f"names the store {store.root.uri}, but the configuration has another one; leave -c out",
                    )
    return config


def coerced(name: str, given: Mapping[str, str]) -> dict[str, object]:
    """Texts converted to the types of a store's properties; others stay, and the store reports what is allowed.

    Args:
        name: of the store, as under `large.message.payload.store.class`.
        given: texts by name.
    """
    keys = {key.name: key for key in (*COMMON_KEYS, *(store_keys(name) or ()))}
    return {key: keys[key].coerce(text) if key in keys else text for key, text in given.items()}


def at_least(least: int) -> Callable[[str], int]:
    """The type of an argument that is a number of `least` or more."""

    def number(text: str) -> int:
        found = int(text)
        if found < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more")
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
            raise ConfigurationError(option, "must be KEY=VALUE, but one of them has no '=' or no key")
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


def _kafka(arguments: argparse.Namespace, *, of_spark: bool = False) -> dict[str, str]:
    """The properties of `--kafka-config`, overridden by those of `--kafka-option`, as our clients name them.

    The file may be that of another client, so its other properties are ignored.
    """
    filed = properties("--kafka-config", arguments.kafka_config) if arguments.kafka_config else {}
    given = pairs("--kafka-option", arguments.kafka_option)
    found = from_java({name.removeprefix(_PREFIX): text for name, text in {**filed, **given}.items()})
    known = [key.name for key in CONNECTION_KEYS] + [*_CONSUMER]
    for name in given:
        short = name.removeprefix(_PREFIX)
        if short in found and short not in known and not of_spark:
            raise unknown(short, known)
    return found
