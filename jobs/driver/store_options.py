"""The payload store of a job: its options on the command line, and its configuration."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing

from jobs.driver.command_line import pairs, properties
from jobs.driver.worker_config import StoreUse, WorkerConfig
from stores.encryption import ENCRYPTION_KEYS
from stores.registry import STORE_CLASS, open_store, store_keys
from stores.store import COMMON_KEYS, Store
from transforms.errors import ConfigurationError
from transforms.signing import KEY_NAME

__all__ = ["add_store", "coerced", "portable", "store_config", "store_use"]


def add_store(group: argparse._ArgumentGroup) -> None:
    """`--store`, `--store-config` and `--pipeline`."""
    # fmt: off
    group.add_argument("--pipeline", metavar="NAME",
        help="with -c or --options: the pipeline whose store the job uses; needed if there are several stores")
    group.add_argument("--store", action="append", default=[], metavar="KEY=VALUE",
        help=f"a key of the payload store, as in the worker's file: {STORE_CLASS}=s3, s3.bucket=payloads; may be "
        "given several times")
    group.add_argument("--store-config", metavar="FILE",
        help="a file with such lines; put secrets here, as the list of processes shows the command line")


def store_use(arguments: argparse.Namespace, topics: Sequence[str]) -> StoreUse | None:
    """The store in the configuration; None without a configuration.

    Args:
        arguments: of the command line, after `jobs.driver.command_line.configure`.
        topics: the topics that the user named; they choose one of several stores.

    Raises:
        ConfigurationError: the configuration has no store, or the user must choose one.
    """
    configured: WorkerConfig | None = arguments.configured
    if configured is None:
        if arguments.pipeline is not None:
            raise ConfigurationError("--pipeline", "is one of a configuration; give that with -c")
        return None
    return configured.use(arguments.pipeline, topics)


def store_config(
    arguments: argparse.Namespace, use: StoreUse | None = None, topic: str | None = None
) -> dict[str, object]:
    """The configuration to open the store with; the command line wins over the worker's configuration.

    Args:
        arguments: of the command line, after `jobs.driver.command_line.configure`.
        use: the store in the worker's configuration.
        topic: whose references are to be verified, and whose payloads decrypted; None leaves the keys for it out,
            unless the command line has them.

    Raises:
        ConfigurationError: an option is not KEY=VALUE, the file cannot be read, or a key is missing, unknown or wrong;
            or the command line names another store than the worker's configuration.
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
        raise ConfigurationError("--store", f"{STORE_CLASS}=… is missing; give the keys of the worker's pipeline")
    config = base | coerced(name, given)
    with closing(open_store(config)) as store:
        if use is not None and given and isinstance(store, Store):
            with closing(open_store(use.store)) as configured:
                if not isinstance(configured, Store) or configured.root != store.root:
                    raise ConfigurationError(
                        "--store",
                        f"makes {store.root.uri} the store, and the configuration says another one; leave -c out",
                    )
    return config


def coerced(name: str, given: Mapping[str, str]) -> dict[str, object]:
    """Texts as the types of the keys of a store; other texts stay, and the store says what is allowed.

    Args:
        name: of the store, as under `large.message.payload.store.class`.
        given: texts by key.
    """
    keys = {key.name: key for key in (*COMMON_KEYS, *(store_keys(name) or ()))}
    return {key: keys[key].coerce(text) if key in keys else text for key, text in given.items()}


def portable(config: Mapping[str, object]) -> dict[str, object]:
    """A configuration of a store without classes that executors may lack: a secret becomes a plain string."""
    return {key: str(value) if isinstance(value, str) else value for key, value in config.items()}
