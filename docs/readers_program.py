"""What the blocks of the pages use without showing it, as in a reader's program, for `make types`."""

from collections.abc import Mapping
from typing import Any

import faust
from pyspark.sql import SparkSession

__all__ = ["Order", "common", "from_json", "options", "order", "spark", "to_json"]


class Order(faust.Record):
    """A model."""

    id: int


common: Mapping[str, object]
from_json: Any
options: Mapping[str, str]
order: object
spark: SparkSession


def to_json(value: object) -> bytes:
    """A serializer."""
    raise NotImplementedError
