"""Preflight: what the cluster must have before anything is consumed; what is missing is created where that is allowed.

`wideload check` does this and nothing else; the worker does it first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from app.cluster.coordinator import check_transactions
from app.config.chunking import check_limit, check_topics
from app.config.reference_scope import reach
from app.config.settings import ClientSettings, PipelineSettings, Settings
from app.config.wrapping import check_sink
from app.deadletters.writer import check_dead_letters
from app.kafka.clients import ClusterError, admin, describe
from app.pipeline.topic_watcher import identities
from stores.keys import REQUIRED
from stores.registry import STORE_CLASS, open_store, store_keys
from stores.store import Check, PayloadStore
from transforms.errors import ConfigurationError, PayloadStoreError
from transforms.retention import FOREVER

__all__ = ["CLOCKS_APART_MS", "Plan", "Topic", "check", "check_stores", "plan_pipeline", "topics"]

log = logging.getLogger(__name__)

CLOCKS_APART_MS = 60_000
"""How far this clock and that of a broker may be apart where it does no harm to think so."""

_NO_TIMESTAMP = -1
_MAX_MESSAGE_BYTES = "max.message.bytes"
_TIMESTAMP_TYPE = "message.timestamp.type"
_OLDEST, _NEWEST = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"  # from Kafka 3.6 on
_EITHER_WAY = "message.timestamp.difference.max.ms"  # before
_CREATION_S = 15.0
_STORE_GRACE_S = 5.0  # beyond the time-out that a store keeps by itself, for a class that does not keep it


@dataclass(frozen=True, slots=True)
class Topic:
    """What the cluster says of a topic.

    Attributes:
        max_message_bytes: the most bytes of one batch.
        cleanup_policy: `delete`, `compact`, or both.
        retention_ms: how long records stay where the policy has `delete`; -1 for ever.
        segment_ms: how much longer they may, since segments go as a whole; 0 where the cluster does not say.
        id: tells it from a later topic of the same name; None where the cluster gives none.
        oldest_ms: how long ago the timestamp of a record may be at most; None where it may be any.
        newest_ms: how far ahead; None likewise.
    """

    name: str
    partitions: int
    max_message_bytes: int
    cleanup_policy: str
    retention_ms: int = FOREVER
    segment_ms: int = 0
    id: str | None = None
    oldest_ms: int | None = None
    newest_ms: int | None = None

    def takes_timestamp(self, timestamp_ms: int, margin_ms: int = 0) -> bool:
        """Whether brokers take a record with this timestamp now, if their clocks go with ours.

        Args:
            timestamp_ms: of the record.
            margin_ms: how much nearer than the topic allows it has to be; below 0, how much further it may be.
        """
        if timestamp_ms == _NO_TIMESTAMP:
            return True
        ahead_ms = timestamp_ms - int(time.time() * 1000)
        return (self.newest_ms is None or ahead_ms + margin_ms <= self.newest_ms) and (
            self.oldest_ms is None or margin_ms - ahead_ms <= self.oldest_ms
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pipeline found.

    Attributes:
        sources: the topics that it reads.
        sink: the topic that it writes.
        dead_letters: where records go that can never succeed; None where they stop the pipeline.
        created: the names of topics that were missing and have been made.
    """

    pipeline: str
    sources: tuple[Topic, ...]
    sink: Topic
    dead_letters: Topic | None
    created: tuple[str, ...] = ()

    def sink_partition(self, topic: str, partition: int) -> int | None:
        """The sink partition of a source partition; None where the counts differ, and the key decides."""
        for source in self.sources:
            if source.name == topic and source.partitions == self.sink.partitions:
                return partition
        return None


async def check(settings: Settings) -> list[Plan]:
    """A plan for each pipeline.

    Raises:
        ConfigurationError: a store, the cluster or a topic is not as the configuration needs it; nothing was consumed.
        ClusterError: the cluster did not answer.
    """
    await check_stores(settings.pipelines)
    return [await plan_pipeline(settings.client, pipeline) for pipeline in settings.pipelines]


async def check_stores(pipelines: Sequence[PipelineSettings]) -> None:
    """Asks every store whether it will work; a class of the user's own that cannot be asked is only opened.

    Raises:
        ConfigurationError: one will not; said of the pipeline and a key of its store.
    """
    # Writers first: what they make, such as the folder of the payloads, must be there for readers.
    for pipeline in sorted(pipelines, key=lambda each: not each.offloads):
        if not pipeline.store:
            continue
        try:
            store = open_store(pipeline.store)
            reach(pipeline.reach, store)
            await _check_store(store, pipeline)
        except ConfigurationError as exc:
            raise exc.within(pipeline.name) from exc


async def _check_store(store: PayloadStore, pipeline: PipelineSettings) -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Exception | None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        if not done.done():
            done.set_result(error)

    def ask() -> None:
        error: Exception | None = None
        try:
            if isinstance(store, Check):
                store.check(writing=pipeline.offloads)
            store.close()
        except Exception as exc:  # noqa: BLE001  # it is raised again by who waits for it
            error = exc
        loop.call_soon_threadsafe(tell, error)

    # A thread of its own, which holds up nobody: one of a pool that hangs would keep the process from ending.
    threading.Thread(target=ask, name=f"check-{pipeline.name}", daemon=True).start()
    try:
        error = await asyncio.wait_for(done, pipeline.store_timeout_ms / 1000 + _STORE_GRACE_S)
    except TimeoutError as exc:
        raise ConfigurationError(
            _store_key(pipeline), f"the store did not answer within {pipeline.store_timeout_ms:,} ms"
        ) from exc
    if isinstance(error, PayloadStoreError):
        raise ConfigurationError(_store_key(pipeline), f"the store cannot be used: {error}") from error
    if error is not None:
        raise error


def _store_key(pipeline: PipelineSettings) -> str:
    """The key that says where the store is: the first that it cannot do without."""
    keys = store_keys(str(pipeline.store[STORE_CLASS])) or ()
    return next((key.name for key in keys if key.default is REQUIRED), STORE_CLASS)


async def plan_pipeline(client: ClientSettings, pipeline: PipelineSettings, *, began: bool = False) -> Plan:
    """The plan of one pipeline; see `check`.

    Args:
        client: how to reach the cluster.
        pipeline: which one.
        began: whether it has run already: then a limit of the sink that was lowered below its settings does not stop
            it, as it can do with that.

    Raises:
        ConfigurationError: as `check`, said of the pipeline.
    """
    async with admin(client) as connection:
        try:
            return await _plan(connection, pipeline, began=began)
        except ConfigurationError as exc:
            raise exc.within(pipeline.name) from exc


async def _plan(connection: AIOKafkaAdminClient, pipeline: PipelineSettings, *, began: bool) -> Plan:
    wanted = [*pipeline.topics, pipeline.output_topic]
    if pipeline.dead_letter_topic is not None:
        wanted.append(pipeline.dead_letter_topic)
    found = await topics(connection, wanted)
    for name in pipeline.topics:
        if name not in found:
            raise ConfigurationError(
                "topics", f"topic {name} does not exist; create it, correct the name, or grant Describe on it"
            )
    sources = tuple(found[name] for name in pipeline.topics)
    created = []
    targets = {"output.topic": pipeline.output_topic, "errors.deadletterqueue.topic.name": pipeline.dead_letter_topic}
    for key, target in targets.items():
        if target is None or target in found:
            continue
        if not pipeline.topic_creation:
            raise ConfigurationError(
                key, f"topic {target} does not exist; create it, or set topic.creation.enable = true"
            )
        partitions = max(source.partitions for source in sources)
        await _create(connection, key, target, partitions, pipeline.replication_factor)
        created.append(target)
    found |= await _until_known(connection, created)
    sink = found[pipeline.output_topic]
    try:
        _check_limits(pipeline, sink)
    except ConfigurationError as exc:
        if not began:
            raise
        log.warning("pipeline %s goes on, though it would not start any more: %s", pipeline.name, exc)
    await check_transactions(connection, pipeline)
    check_topics(pipeline, sources, sink)
    check_sink(pipeline, sink)
    dead_letters = None if pipeline.dead_letter_topic is None else found[pipeline.dead_letter_topic]
    if dead_letters is not None:
        check_dead_letters(dead_letters)
    return Plan(pipeline.name, sources, sink, dead_letters, tuple(created))


async def _until_known(connection: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, Topic]:
    """The topics that were just created, once the brokers have heard of them."""
    deadline = time.monotonic() + _CREATION_S
    while True:
        found = await topics(connection, names)
        if len(found) == len(names):
            return found
        if time.monotonic() > deadline:
            missing = ", ".join(name for name in names if name not in found)
            raise ClusterError(f"topic {missing} was created {_CREATION_S:.0f} s ago and is not there", retriable=True)
        await asyncio.sleep(0.1)


def _check_limits(pipeline: PipelineSettings, sink: Topic) -> None:
    limit = f"{_MAX_MESSAGE_BYTES} of topic {sink.name} is {sink.max_message_bytes:,}"
    if pipeline.offloads and pipeline.threshold_bytes > sink.max_message_bytes:
        raise ConfigurationError(
            "large.message.threshold.bytes",
            f"found {pipeline.threshold_bytes:,}, which is above the sink's limit: {limit}; lower the one or raise the "
            "other",
        )
    batch = pipeline.producer["producer.batch.size"]
    assert isinstance(batch, int)
    if batch > sink.max_message_bytes:
        raise ConfigurationError(
            "producer.batch.size", f"found {batch:,}, allowed is no more than the sink takes: {limit}"
        )
    check_limit(pipeline, sink)


async def topics(connection: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, Topic]:
    """Those of the topics that exist, by name.

    Raises:
        ConfigurationError: the user may not look at one of them.
        ClusterError: the cluster did not answer.
    """
    try:
        # All topics are asked for: asking for one by name makes it, on clusters that create topics by themselves.
        described = {entry["topic"]: entry for entry in await connection.describe_topics()}
        present = [name for name in dict.fromkeys(names) if name in described]
        configs = await _configs(connection, present)
        found_ids = await identities(connection._send_request, present)  # noqa: SLF001  # nothing else takes a `Query`
    except KafkaError as exc:
        raise ClusterError(f"topics cannot be described: {describe(exc)}", retriable=exc.retriable) from exc
    found = {}
    for name in present:
        error = for_code(described[name]["error_code"])
        if error.errno != 0:
            raise ConfigurationError("topics", f"topic {name} cannot be described: {describe(error())}")
        config = configs[name]
        identity = found_ids.get(name)
        found[name] = Topic(
            name=name,
            partitions=len(described[name]["partitions"]),
            max_message_bytes=int(config[_MAX_MESSAGE_BYTES]),
            cleanup_policy=config["cleanup.policy"],
            retention_ms=int(config["retention.ms"]),
            segment_ms=int(config.get("segment.ms") or 0),
            id=identity.id if identity is not None else None,
            oldest_ms=_timestamp_bound_ms(config, _OLDEST),
            newest_ms=_timestamp_bound_ms(config, _NEWEST),
        )
    return found


async def _configs(connection: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, Mapping[str, str]]:
    if not names:
        return {}
    timestamps = (_TIMESTAMP_TYPE, _OLDEST, _NEWEST, _EITHER_WAY)
    wanted = dict.fromkeys([_MAX_MESSAGE_BYTES, "cleanup.policy", "retention.ms", "segment.ms", *timestamps])
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, wanted) for name in names]
    configs: dict[str, Mapping[str, str]] = {}
    for response in await connection.describe_configs(resources):
        for resource in response.to_object()["resources"]:
            error = for_code(resource["error_code"])
            if error.errno != 0:
                raise ConfigurationError(
                    "topics",
                    f"the configuration of topic {resource['resource_name']} cannot be read: {describe(error())}; "
                    "grant DescribeConfigs on it",
                )
            configs[resource["resource_name"]] = {
                entry["config_names"]: entry["config_value"] for entry in resource["config_entries"]
            }
    return configs


def _timestamp_bound_ms(config: Mapping[str, str], name: str) -> int | None:
    """How far from now a timestamp may be; None where brokers set it themselves, or do not say."""
    if config.get(_TIMESTAMP_TYPE) == "LogAppendTime":
        return None
    value = config.get(name) or config.get(_EITHER_WAY)
    return int(value) if value else None


async def _create(connection: AIOKafkaAdminClient, key: str, name: str, partitions: int, replicas: int) -> None:
    topic = NewTopic(name, partitions, 1)
    topic.replication_factor = replicas  # -1, the cluster's default (KIP-464), is more than NewTopic takes
    response = await connection.create_topics([topic])
    for _, code, *message in response.topic_errors:
        error = for_code(code)
        if error.errno != 0 and error is not TopicAlreadyExistsError:
            told = message[0] if message and message[0] else describe(error())
            raise ConfigurationError(key, f"topic {name} cannot be created: {told}")
