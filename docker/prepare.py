"""Creates the missing topics and buckets of a configuration. For docker-compose.yml.

    python prepare.py --config wideload.toml --partitions 6 raw-large=33554432 orders=1048576

The number after a topic is its max.message.bytes. Existing topics and buckets stay unchanged.
Exit status: 0 success; 1 the cluster or the store failed; 2 the configuration or the command is wrong.
"""

# ruff: noqa: INP001, T201  (a script that prints)

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

import boto3
from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING or importlib.util.find_spec("wideload._internal") is None:  # in a checkout
    from app.config.parsing import load
    from app.config.settings import ClientSettings, PipelineSettings
    from app.kafka.clients import ClusterError, admin, describe
    from app.kafka.topics import topics
    from transforms.errors import ConfigurationError, WideloadError
else:  # in the image, where the package is installed
    from wideload._internal.app.config.parsing import load
    from wideload._internal.app.config.settings import ClientSettings, PipelineSettings
    from wideload._internal.app.kafka.clients import ClusterError, admin, describe
    from wideload._internal.app.kafka.topics import topics
    from wideload._internal.transforms.errors import ConfigurationError, WideloadError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class _BucketError(WideloadError):
    """A bucket does not exist, and could not be created."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Creates topics and buckets, prints each one, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Create the topics and the buckets of a configuration.")
    parser.add_argument("-c", "--config", required=True, metavar="FILE", help="The configuration.")
    parser.add_argument("--partitions", type=int, default=6, help="Number of partitions of a new topic.")
    parser.add_argument("topics", nargs="+", type=_topic, metavar="TOPIC=BYTES", help="A topic; its max.message.bytes.")
    options = parser.parse_args(arguments)
    # The logs of the client would surround the one line of an error.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        settings = load(options.config)
        limits = dict(options.topics)
        _check_named(settings.pipelines, limits)
        asyncio.run(_create_topics(settings.client, limits, options.partitions))
        _create_buckets(settings.pipelines)
    except WideloadError as exc:
        print(f"prepare: {exc}", file=sys.stderr)
        return 2 if isinstance(exc, ConfigurationError) else 1
    return 0


def _topic(text: str) -> tuple[str, int]:
    name, _, limit = text.rpartition("=")
    if not name or not limit.isdecimal() or int(limit) == 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, allowed is TOPIC=BYTES")
    return name, int(limit)


def _check_named(pipelines: Iterable[PipelineSettings], limits: Mapping[str, int]) -> None:
    for pipeline in pipelines:
        for topic in (*pipeline.topics, pipeline.output_topic, pipeline.dead_letter_topic):
            if topic is not None and topic not in limits:
                raise ConfigurationError(
                    "topics", f"topic {topic} is not in the arguments; add {topic}=BYTES", pipeline=pipeline.name
                )


async def _create_topics(client: ClientSettings, limits: Mapping[str, int], partitions: int) -> None:
    async with admin(client) as connection:
        present = await topics(connection, list(limits))
        for topic in present.values():
            _report(f"topic {topic.name} exists: {topic.partitions} partitions, {topic.max_message_bytes:,} bytes")
        for name, limit in limits.items():
            if name in present:
                continue
            new = NewTopic(name, partitions, 1, topic_configs={"max.message.bytes": str(limit)})
            try:
                response = await connection.create_topics([new])
            except KafkaError as exc:
                raise ClusterError(f"topic {name} cannot be created: {describe(exc)}", retriable=exc.retriable) from exc
            for _, code, *message in response.topic_errors:
                error = for_code(code)
                if error.errno != 0 and error is not TopicAlreadyExistsError:
                    reason = message[0] if message and message[0] else describe(error())
                    raise ClusterError(f"topic {name} cannot be created: {reason}", retriable=False)
            _report(f"topic {name} created: {partitions} partitions, {limit:,} bytes")


def _create_buckets(pipelines: Iterable[PipelineSettings]) -> None:
    by_bucket = {str(store["s3.bucket"]): store for store in (each.store for each in pipelines) if "s3.bucket" in store}
    for bucket, store in by_bucket.items():
        names = ("s3.endpoint", "s3.region", "s3.access.key", "s3.secret.key")
        endpoint, region, access, secret = (str(store[name]) if name in store else None for name in names)
        try:
            client = boto3.client(
                "s3",
                endpoint_url=endpoint,
                region_name=region,
                aws_access_key_id=access,
                aws_secret_access_key=secret,
            )
            _create_bucket(client, bucket)
        except (BotoCoreError, ClientError, ValueError) as exc:
            raise _BucketError(f"bucket {bucket} cannot be created: {exc}") from exc


def _create_bucket(client: S3Client, bucket: str) -> None:
    try:
        client.head_bucket(Bucket=bucket)
    except ClientError as exc:
        if exc.response["ResponseMetadata"]["HTTPStatusCode"] != HTTPStatus.NOT_FOUND:
            raise
        client.create_bucket(Bucket=bucket)
        _report(f"bucket {bucket} created")
    else:
        _report(f"bucket {bucket} exists")


def _report(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
