"""Batches with a timestamp that Spark cannot hold: its Kafka source fails at such a record, and does not say which.

Kafka accepts any number of milliseconds. The batch is in the checkpoint by then, with its offsets, so it can be read
once more in Python: to find the record, or to do the batch with null in place of such timestamps.
"""

from __future__ import annotations

import json
from contextlib import closing, suppress

from pyspark.sql import DataFrame, SparkSession

from app.config.settings import ClientSettings
from app.kafka.range_reader import RangeReader
from app.kafka.source_batch import UnreadBatch
from app.kafka.structs import TopicPartition
from jobs.driver.jvm import Files
from jobs.ingesting.command_line import IngestSettings
from jobs.ingesting.spark_logs import offsets
from jobs.reading.ranges import positions_json
from jobs.records.arrow import bad_timestamp, holds
from transforms.errors import WideloadError

_ISOLATION = "kafka.isolation.level"
_KEPT = (_ISOLATION, "failondataloss", "maxrecordsperpartition", "minpartitions")


def read_in_python(spark: SparkSession, settings: IngestSettings, files: Files, batch: int) -> DataFrame:
    """The stream of the records of a planned batch, with the columns of Spark's Kafka source."""
    from jobs.reading.record_source import RecordSource  # needs Spark 4.0 and PyArrow

    spark.dataSource.register(RecordSource)
    assert settings.client is not None  # `settings_of` makes sure of it
    begin, end = offsets(files, settings.checkpoint, batch)
    options = {name: text for name, text in settings.source_options().items() if name.lower() in _KEPT}
    options |= {
        f"kafka.{name}": str(value)
        for name, value in {**settings.client.security, "bootstrap.servers": settings.bootstrap_servers}.items()
        if value is not None
    }
    options |= {"subscribe": ",".join(sorted({topic for topic, _ in end}))}
    options |= {"startingOffsets": json.dumps(positions_json(begin)), "endingOffsets": json.dumps(positions_json(end))}
    return spark.readStream.format(RecordSource.name()).options(**options).load()


def first_bad_timestamp(settings: IngestSettings, files: Files, batch: int) -> str:
    """The first record of a planned batch whose timestamp Spark cannot hold, as a sentence."""
    with suppress(WideloadError):  # the sentence below is true without the record, too
        if settings.client is not None and (found := _first(settings, settings.client, files, batch)):
            return found
    return (
        f"a record of {settings.source} has a timestamp out of Spark's range (is it in another unit than milliseconds?)"
    )


def _first(settings: IngestSettings, client: ClientSettings, files: Files, batch: int) -> str | None:
    begin, end = offsets(files, settings.checkpoint, batch)
    with closing(RangeReader(client, isolation_level=settings.source_options()[_ISOLATION])) as reader:
        for topic, number in sorted(end):
            place = TopicPartition(topic, number)
            start = begin[topic, number] if (topic, number) in begin else reader.first(place)
            for record in reader.records(place, start, end[topic, number], fail_on_loss=False):
                if not isinstance(record, UnreadBatch) and not holds(record.timestamp):
                    return f"topic {topic} partition {number} offset {record.offset}: {bad_timestamp(record.timestamp)}"
    return None
