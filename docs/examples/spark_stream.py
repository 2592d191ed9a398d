"""A custom Spark program with streams: what was added to a topic since the last run, as values that producers sent.

python spark_stream.py BOOTSTRAP_SERVERS TOPIC FOLDER_OF_PAYLOADS OUTPUT_FOLDER
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from wideload.jobs.chunks import assemble
from wideload.jobs.executors import require_executors
from wideload.jobs.inflate import inflate
from wideload.jobs.source import WideloadDataSource, read_available


def main(servers: str, topic: str, folder: str, output: str) -> None:
    """Reads the topic in three ways, and writes Parquet files with a checkpoint each."""
    spark = SparkSession.builder.appName("large-orders-stream").getOrCreate()
    store = {"large.message.payload.store.class": "filesystem", "filesystem.root": folder}  # as in the worker's file
    kafka = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}

    # If executors lack a package or run another Python, the last line of the output says so in a sentence.
    require_executors(spark, "assemble", "inflate", "wideload")

    source = spark.readStream.format("kafka").options(**kafka).option("includeHeaders", "true").load()

    # References become values, with Spark's own Kafka source.
    references = inflate(source, store).writeStream.format("parquet").option("path", f"{output}/inflate")
    references = references.option("checkpointLocation", f"{output}/inflate-checkpoint")
    references.trigger(availableNow=True).start().awaitTermination()

    # Chunks are assembled in each micro-batch; a message whose chunks are in two of them needs the source below.
    def write(batch: DataFrame, number: int) -> None:
        rows = inflate(assemble(batch), store)
        rows.write.mode("overwrite").parquet(f"{output}/assemble/batch={number}")

    batches = source.writeStream.foreachBatch(write).option("checkpointLocation", f"{output}/assemble-checkpoint")
    batches.trigger(availableNow=True).start().awaitTermination()

    # The source of this project reads references and chunks, wherever a micro-batch ends.
    spark.dataSource.register(WideloadDataSource)
    whole = spark.readStream.format("wideload").options(**kafka, **store).load()
    stream = whole.writeStream.format("parquet").option("path", f"{output}/wideload")
    stream = stream.option("checkpointLocation", f"{output}/wideload-checkpoint").trigger(availableNow=True)
    read_available(stream.start)

    for way in ("inflate", "assemble", "wideload"):
        found = spark.read.parquet(f"{output}/{way}").where("value IS NOT NULL")
        print(f"{way}: {found.count()} values")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
