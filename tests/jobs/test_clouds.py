"""Payloads in Google's and Microsoft's cloud, read by Spark's executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.inflate import inflate
from stores.registry import open_store
from tests.azure_server import azure_server_or_skip
from tests.cloud_server import CloudServer
from tests.gcs_server import gcs_server_or_skip
from tests.jobs.rows import frame, records_of
from transforms.formats import FORMATS
from transforms.offload import Offload
from transforms.record import Record

START: dict[str, Callable[[Path], AbstractContextManager[CloudServer]]] = {
    "azure": azure_server_or_skip,
    "gcs": gcs_server_or_skip,
}


@pytest.fixture(params=START)
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CloudServer]:
    with START[request.param](tmp_path) as server:
        yield server


def test_executors_open_the_store(spark: SparkSession, cloud: CloudServer) -> None:
    """Executors get the keys, and read what the driver's process wrote, though that has used obstore before them."""
    config = {"large.message.payload.store.class": cloud.start, **cloud.config("spark")}
    payload = Offload(codec=None, format=FORMATS["wideload"]).payload(b"value" * 1_000)
    with closing(open_store(config)) as store:
        reference = payload.reference(store.publish("t", payload.data))
    records = [FORMATS["wideload"].write_reference(Record(b"k", b"", ()), reference)] * 4
    found = records_of(inflate(frame(spark, records[:2], records[2:]), config))
    assert [record.value for record in found] == [b"value" * 1_000] * 4
