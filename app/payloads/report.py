"""The report of an audit or a sweep without Spark: a file of Parquet, or of JSON lines."""

from __future__ import annotations

import base64
import importlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from app.payloads.engine import Row
from transforms.errors import ConfigurationError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ROWS_A_GROUP = 50_000
_PARQUET, _LINES = ".parquet", ".jsonl"


def check_report(path: str) -> None:
    """Makes sure that a report can be written to a new file.

    Raises:
        ConfigurationError: it cannot.
    """
    file = Path(path)
    if file.suffix not in (_PARQUET, _LINES):
        raise ConfigurationError("--report", f"found {path}, allowed is a file that ends in {_PARQUET} or {_LINES}")
    if os.path.lexists(path):
        raise ConfigurationError("--report", f"{path} already exists; specify a new file")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise ConfigurationError("--report", f"{file.parent} is not a directory that this user can write to")
    if file.suffix == _PARQUET:
        try:
            importlib.import_module("pyarrow.parquet")
        except ImportError as exc:
            raise ConfigurationError(
                "--report", f"found {path}, which needs a package: pip install pyarrow; or let it end in {_LINES}"
            ) from exc


def write_report(rows: Iterable[Row], types: Mapping[str, str], path: str) -> None:
    """Writes rows to a new file; a failure leaves none.

    Args:
        rows: their cells in the order of `types`.
        types: of the columns, by name; see `app.payloads.engine.Engine`.
        path: see `check_report`.

    Raises:
        OSError: the file cannot be written, or is there already.
    """
    with _new(path):
        if path.endswith(_PARQUET):
            _write_parquet(rows, types, path)
            return
        with Path(path).open("w", encoding="utf-8") as file:
            for row in rows:
                cells = {name: _json(cell, types[name]) for name, cell in zip(types, row, strict=True)}
                file.write(f"{json.dumps(cells)}\n")


@contextmanager
def _new(path: str) -> Iterator[None]:
    Path(path).touch(exist_ok=False)
    try:
        yield
    except BaseException:
        Path(path).unlink(missing_ok=True)
        raise


def _write_parquet(rows: Iterable[Row], types: Mapping[str, str], path: str) -> None:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    kinds = {"string": pa.string(), "int": pa.int32(), "long": pa.int64(), "binary": pa.binary()}
    kinds |= {"timestamp": pa.timestamp("us", tz="UTC")}
    schema = pa.schema([(name, kinds[kind]) for name, kind in types.items()])
    waiting = iter(rows)
    with ParquetWriter(path, schema) as writer:
        while group := list(islice(waiting, _ROWS_A_GROUP)):
            columns = [
                pa.array(cells, kind) for cells, kind in zip(zip(*group, strict=True), schema.types, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _json(cell: Any, kind: str) -> Any:
    """A cell as JSON: bytes as text, or as `{"base64": …}` if they are not UTF-8; no time after the year 9999."""
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(cell).decode()}
    if kind == "timestamp" and cell is not None:
        try:
            return (_EPOCH + timedelta(microseconds=cell)).isoformat()
        except OverflowError:
            return None
    return cell
