"""The payloads in the store: executors list, look at and remove them, with one client of the store a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from jobs.driver.python_archives import Sparing
from jobs.records.schemas import columns
from stores.registry import STORE_CLASS, open_store
from stores.store import Delete, DeleteUnchanged, List, PayloadInfo, PayloadStore, Removal, Stat
from transforms.errors import ConfigurationError, PayloadNotFoundError, PayloadStoreError, ReferenceRefusedError

__all__ = ["LISTED", "REMOVED", "STATED", "listed", "on_executors", "removed", "require", "stated"]

LISTED = columns("topic string, path string, stored long, modified_us long")
"""A payload as the store lists it, with its stored bytes, and microseconds since the epoch, free of time zones."""

REMOVED = columns("path string, stored long, outcome string, error string")
"""The outcome of a removal; see `stores.store.Removal`."""

STATED = columns("path string, state string, stored long, modified_us long, detail string")
"""The store's answer for a path. `state` is `there`, `missing`, `refused` or `unknown`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def listed(spark: SparkSession, config: Mapping[str, object], topics: Sequence[str]) -> DataFrame:
    """Every payload of the topics, as `LISTED`; each topic is a task."""
    rows = spark.sparkContext.parallelize(topics, max(1, len(topics))).mapPartitions(partial(_list, config))
    return spark.createDataFrame(rows, LISTED, verifySchema=False)


def removed(payloads: DataFrame, config: Mapping[str, object]) -> DataFrame:
    """Removes payloads (rows as `LISTED`) that have not changed since they were listed; the result is `REMOVED`.

    The work is done when the rows of the result are read, each time anew.
    """
    return on_executors(payloads.select("path", "stored", "modified_us"), partial(_remove, config), REMOVED)


def stated(paths: DataFrame, config: Mapping[str, object]) -> DataFrame:
    """Asks the store for each payload in the column `path`; the result is `STATED`.

    If the store cannot tell without it, the payload is read.
    """
    return on_executors(paths.select("path"), partial(_state, config), STATED)


def on_executors(
    rows: DataFrame, work: Callable[[Iterable[Row]], Iterable[tuple[object, ...]]], schema: StructType
) -> DataFrame:
    """The rows that `work` makes of each partition. Unlike `mapInArrow`, this needs neither pandas nor PyArrow."""
    return rows.sparkSession.createDataFrame(rows.rdd.mapPartitions(Sparing(work)), schema, verifySchema=False)


def require(store: PayloadStore, *capabilities: type) -> None:
    """Makes sure that the store has each of the capabilities.

    Raises:
        ConfigurationError: it lacks one.
    """
    for capability in capabilities:
        if not isinstance(store, capability):
            raise ConfigurationError(
                STORE_CLASS,
                f"the job needs {capability.__name__}, which this store does not offer; see wideload.stores",
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
    """`DeleteUnchanged` for a store without it."""
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
