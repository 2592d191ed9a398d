"""A custom Spark program: values as producers sent them, and large ones back to Kafka as references.

python spark_program.py BOOTSTRAP_SERVERS TOPIC COPY_TOPIC FOLDER_OF_PAYLOADS
"""

import sys

from pyspark.sql import DataFrame, SparkSession, functions

from wideload.jobs.chunks import assemble
from wideload.jobs.executors import require_executors
from wideload.jobs.inflate import inflate
from wideload.jobs.offload import offload
from wideload.jobs.source import WideloadDataSource


def show(how: str, rows: DataFrame) -> None:
    """Prints how many values there are, and how long they are together."""
    size = functions.coalesce(functions.sum(functions.length("value")), functions.lit(0))
    for count, total in rows.agg(functions.count("value"), size).collect():
        print(f"{how}: {count} values, {total} bytes")


def main(servers: str, topic: str, copy: str, folder: str) -> None:
    """Reads the topic in two ways, and writes it with references."""
    spark = SparkSession.builder.appName("large-orders").getOrCreate()
    store = {"large.message.payload.store.class": "filesystem", "filesystem.root": folder}  # as in the worker's file
    kafka = {"kafka.bootstrap.servers": servers}

    # If executors lack a package or run another Python, the last line of the output says so in a sentence.
    require_executors(spark, "assemble", "inflate", "offload", "wideload")

    # Spark's own Kafka source; references and chunks become values.
    source = spark.read.format("kafka").options(**kafka).option("subscribe", topic)
    orders = inflate(assemble(source.option("includeHeaders", "true").load()), store)
    show("inflate", orders)

    # The source of this project does both, and also reads streams of chunks.
    spark.dataSource.register(WideloadDataSource)
    whole = spark.read.format("wideload").options(**kafka, **store).option("subscribe", topic).load()
    show("wideload", whole)

    # Values of more than 1,000 bytes go to the store, and references to Kafka.
    rows = offload(orders.select("key", "value"), store, 1_000, topic=copy)
    rows.write.format("kafka").options(**kafka).option("topic", copy).option("includeHeaders", "true").save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
