"""Preflight: what the cluster must have before anything is consumed; what is missing is created where that is allowed.

`wideload check` does this and nothing else; the worker does it first.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from app.cluster.coordinator import check_transactions
from app.cluster.topic_checks import check_chunks, check_dead_letters, check_limits, check_wrappers
from app.config.reference_scope import reference_scope
from app.config.settings import ClientSettings, PipelineSettings, Settings
from app.kafka.clients import ClusterError, admin, describe
from app.kafka.topics import Topic, topics
from stores.keys import REQUIRED
from stores.registry import STORE_CLASS, open_store, store_keys
from stores.store import Check, PayloadStore
from transforms.errors import ConfigurationError, PayloadStoreError

__all__ = ["CLOCKS_APART_MS", "Plan", "check", "check_stores", "plan_pipeline"]

log = logging.getLogger(__name__)

CLOCKS_APART_MS = 60_000
"""How far this clock and that of a broker may be apart where it does no harm to think so."""

_CREATION_S = 15.0
_STORE_GRACE_S = 5.0  # beyond the time-out that a store keeps by itself, for a class that does not keep it


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
            reference_scope(pipeline.reference_scope, store)
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
        check_limits(pipeline, sink)
    except ConfigurationError as exc:
        if not began:
            raise
        log.warning("pipeline %s goes on, though it would not start any more: %s", pipeline.name, exc)
    await check_transactions(connection, pipeline)
    check_chunks(pipeline, sources, sink)
    check_wrappers(pipeline, sink)
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


async def _create(connection: AIOKafkaAdminClient, key: str, name: str, partitions: int, replicas: int) -> None:
    topic = NewTopic(name, partitions, 1)
    topic.replication_factor = replicas  # -1, the cluster's default (KIP-464), is more than NewTopic takes
    response = await connection.create_topics([topic])
    for _, code, *message in response.topic_errors:
        error = for_code(code)
        if error.errno != 0 and error is not TopicAlreadyExistsError:
            told = message[0] if message and message[0] else describe(error())
            raise ConfigurationError(key, f"topic {name} cannot be created: {told}")
