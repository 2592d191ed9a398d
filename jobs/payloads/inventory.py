"""The payload store in a job: its keys on the command line, and what executors do with it, one client a task."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from jobs.driver.command_line import pairs, properties
from jobs.driver.worker_config import Configured, StoreUse
from stores.keys import Key, Kind
from stores.registry import STORE_CLASS, open_store, store_keys
from stores.store import COMMON_KEYS, Delete, DeleteUnchanged, List, PayloadInfo, PayloadStore, Removal, Stat, Store
from transforms.errors import ConfigurationError, PayloadNotFoundError, PayloadStoreError, ReferenceRefusedError

__all__ = [
    "LISTED",
    "REMOVED",
    "STATED",
    "add_store",
    "listed",
    "on_executors",
    "removed",
    "require",
    "stated",
    "store_config",
    "store_use",
]

LISTED = StructType(
    [
        StructField("topic", StringType()),
        StructField("path", StringType()),
        StructField("stored", LongType()),
        StructField("modified_us", LongType()),
    ]
)
"""A payload as the store lists it: stored bytes, and microseconds since the epoch, which no time zone changes."""

REMOVED = StructType(
    [
        StructField("path", StringType()),
        StructField("stored", LongType()),
        StructField("outcome", StringType()),
        StructField("error", StringType()),
    ]
)
"""What became of a payload that was to be removed; see `stores.store.Removal`."""

STATED = StructType(
    [
        StructField("path", StringType()),
        StructField("state", StringType()),
        StructField("stored", LongType()),
        StructField("modified_us", LongType()),
        StructField("detail", StringType()),
    ]
)
"""A payload as it was asked for by its path. `state` is `there`, `missing`, `refused` or `unknown`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def add_store(group: argparse._ArgumentGroup) -> None:
    """`--store`, `--store-config` and `--pipeline`."""
    group.add_argument(
        "--pipeline",
        metavar="NAME",
        help="with -c or --options: the pipeline whose store it is, where there are several stores",
    )
    group.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help=f"a key of the payload store, as in the worker's file: {STORE_CLASS}=s3, s3.bucket=payloads; may be "
        "given several times",
    )
    group.add_argument(
        "--store-config",
        metavar="FILE",
        help="a file with such lines; the place for secrets, which the list of processes would show",
    )


def store_use(arguments: argparse.Namespace, topics: Sequence[str]) -> StoreUse | None:
    """The store that the configuration says; None without a configuration.

    Args:
        arguments: of the command line, behind `jobs.driver.command_line.configure`.
        topics: those of which the job is told; they say which store it is, where there are several.

    Raises:
        ConfigurationError: it has none, or one must be chosen.
    """
    configured: Configured | None = arguments.configured
    if configured is None:
        if arguments.pipeline is not None:
            raise ConfigurationError("--pipeline", "is one of a configuration; give that with -c")
        return None
    return configured.use(arguments.pipeline, topics)


def store_config(arguments: argparse.Namespace, use: StoreUse | None = None) -> dict[str, object]:
    """What to open the store with: what the configuration says, and what is given, which wins.

    Raises:
        ConfigurationError: one is no KEY=VALUE, the file cannot be read, or a key is missing, unknown or wrong; or what
            is given makes another store of the one that the configuration says.
    """
    given: dict[str, str] = {}
    if arguments.store_config:
        given = properties("--store-config", arguments.store_config)
    given |= pairs("--store", arguments.store)
    base = {} if use is None else dict(use.store)
    name = given.get(STORE_CLASS, base.get(STORE_CLASS))
    if not isinstance(name, str):
        raise ConfigurationError("--store", f"{STORE_CLASS}=… is missing; give the keys of the worker's pipeline")
    keys: dict[str, Key] = {key.name: key for key in (*COMMON_KEYS, *(store_keys(name) or ()))}
    config = base | {key: _typed(text, keys[key].kind if key in keys else "string") for key, text in given.items()}
    with closing(open_store(config)) as store:
        if use is not None and given and isinstance(store, Store):
            with closing(open_store(use.store)) as configured:
                if not isinstance(configured, Store) or configured.root != store.root:
                    raise ConfigurationError(
                        "--store",
                        f"makes {store.root.uri} the store, and the configuration says another one; leave -c out",
                    )
    return config


def _typed(text: str, kind: Kind) -> object:
    """`text` as the kind that its key has; where it cannot be that, the store says what is allowed."""
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    if kind == "list":
        return [item.strip() for item in text.split(",")]
    try:
        return {"int": int, "float": float}[kind](text) if kind in ("int", "float") else text
    except ValueError:
        return text


def listed(spark: SparkSession, config: Mapping[str, object], topics: Sequence[str]) -> DataFrame:
    """Every payload of the topics as the store lists it, as `LISTED`; a task a topic."""
    rows = spark.sparkContext.parallelize(topics, max(1, len(topics))).mapPartitions(partial(_list, _plain(config)))
    return spark.createDataFrame(rows, LISTED, verifySchema=False)


def removed(payloads: DataFrame, config: Mapping[str, object]) -> DataFrame:
    """Removes payloads, of rows with the columns of `LISTED`, where they are as they were listed; gives `REMOVED`.

    Work is done when rows are asked for, and again each time that they are.
    """
    return on_executors(payloads.select("path", "stored", "modified_us"), partial(_remove, _plain(config)), REMOVED)


def stated(paths: DataFrame, config: Mapping[str, object]) -> DataFrame:
    """Asks for each payload by its path, of rows with that column; gives `STATED`.

    Where the store cannot be asked without reading, the payload is read.
    """
    return on_executors(paths.select("path"), partial(_state, _plain(config)), STATED)


def on_executors(
    rows: DataFrame, work: Callable[[Iterable[Row]], Iterable[tuple[object, ...]]], schema: StructType
) -> DataFrame:
    """What `work` makes of each partition. Neither pandas nor PyArrow is needed, unlike for `mapInArrow`."""
    return rows.sparkSession.createDataFrame(rows.rdd.mapPartitions(work), schema, verifySchema=False)


def _plain(config: Mapping[str, object]) -> dict[str, object]:
    # A secret may be of a class that executors do not have.
    return {key: str(value) if isinstance(value, str) else value for key, value in config.items()}


def require(store: PayloadStore, *capabilities: type) -> None:
    """Makes sure that the store has each of the capabilities.

    Raises:
        ConfigurationError: it lacks one.
    """
    for capability in capabilities:
        if not isinstance(store, capability):
            raise ConfigurationError(
                STORE_CLASS, f"this store does not offer {capability.__name__}, which is needed; see stores/store.py"
            )


# --- on executors -----------------------------------------------------------------------------------------------------


def _list(config: Mapping[str, object], topics: Iterable[str]) -> Iterator[tuple[object, ...]]:
    with closing(open_store(config)) as store:
        assert isinstance(store, List)
        for topic in topics:
            for info in store.list(topic):
                yield topic, info.path, info.size, (info.modified - _EPOCH) // _MICROSECOND


def _remove(config: Mapping[str, object], rows: Iterable[Row]) -> Iterator[tuple[object, ...]]:
    payloads = (PayloadInfo(row.path, row.stored, _EPOCH + row.modified_us * _MICROSECOND) for row in rows)
    with closing(open_store(config)) as store:
        removals = (
            store.delete_unchanged(payloads) if isinstance(store, DeleteUnchanged) else _one_by_one(store, payloads)
        )
        for removal in removals:
            yield removal.payload.path, removal.payload.size, removal.outcome, removal.error


def _one_by_one(store: PayloadStore, payloads: Iterable[PayloadInfo]) -> Iterator[Removal]:
    """`DeleteUnchanged` of a store that has it not."""
    assert isinstance(store, Stat)
    assert isinstance(store, Delete)
    for payload in payloads:
        try:
            if store.stat(payload.path).modified != payload.modified:
                yield Removal(payload, "changed")
                continue
            store.delete(payload.path)
        except PayloadNotFoundError:
            yield Removal(payload, "gone")
        except PayloadStoreError as exc:
            yield Removal(payload, "failed", str(exc))
        else:
            yield Removal(payload, "deleted")


def _state(config: Mapping[str, object], rows: Iterable[Row]) -> Iterator[tuple[object, ...]]:
    with closing(open_store(config)) as store:
        for row in rows:
            yield row.path, *_stated(store, row.path)


def _stated(store: PayloadStore, path: str) -> tuple[str, int | None, int | None, str | None]:
    try:
        if isinstance(store, Stat):
            info = store.stat(path)
            return "there", info.size, (info.modified - _EPOCH) // _MICROSECOND, None
        return "there", len(store.download(path)), None, None
    except PayloadNotFoundError as exc:
        return "missing", None, None, str(exc)
    except ReferenceRefusedError as exc:
        return "refused", None, None, str(exc)
    except PayloadStoreError as exc:
        return "unknown", None, None, str(exc)
