"""The preflight: checks stores and topics before anything is consumed, and creates missing topics if that is allowed.

`wideload check` does this and nothing else; the worker does it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from app.cluster.beginning import Beginnings
from app.cluster.control_topic import check_control_topic
from app.cluster.coordinator import check_transactions
from app.cluster.enforced_limits import check_enforced, check_notes, commit_limits_of, refused_names
from app.cluster.topic_checks import check_chunks, check_dead_letters, check_limits, check_wrappers
from app.cluster.topic_creation import create_topic, until_known
from app.config.findings import Findings, WrongValueError
from app.config.handover import root_errors
from app.config.reference_scope import reference_scope
from app.config.settings import ClientSettings, PipelineSettings, Settings
from app.kafka.admin import AdminClient
from app.kafka.clients import ClusterError, admin
from app.kafka.topics import Topic, missing_topic, topics
from stores.encryption import open_keyring
from stores.keys import REQUIRED
from stores.registry import STORE_CLASS, open_store, store_keys
from stores.registry import check as check_store
from stores.store import PayloadStore, Store
from transforms.commit_metadata import KAFKAS_BYTES
from transforms.errors import ConfigurationError, PayloadStoreError, of_pipeline
from transforms.keyring import TYPE_NAME
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

CLOCKS_APART_MS = 60_000
"""How far apart the clocks of this machine and of a broker are assumed to be at most."""

_STORE_GRACE_S = 5.0  # after the timeout of the store, for a class that exceeds it


@dataclass(frozen=True, slots=True)
class Plan:
    """The topics of a pipeline as the preflight found them.

    Attributes:
        pipeline: its name.
        sources: the topics that it reads.
        sink: its output topic.
        dead_letters: the dead-letter topic; None if a record that can never succeed stops the pipeline.
        created: the names of topics that were missing and were created.
        beginning: where its group starts, as a sentence; empty if this was not determined.
        metadata_bytes: the longest commit metadata that the brokers accept; read only if chunks are assembled.
    """

    pipeline: str
    sources: tuple[Topic, ...]
    sink: Topic
    dead_letters: Topic | None
    created: tuple[str, ...] = ()
    metadata_bytes: int = KAFKAS_BYTES
    beginning: str = ""

    @property
    def topics(self) -> Iterator[Topic]:
        """All topics of the pipeline."""
        yield from (*self.sources, self.sink)
        if self.dead_letters is not None:
            yield self.dead_letters

    def sink_partition(self, topic: str, partition: int) -> int | None:
        """The output partition of a source partition; None if the counts differ, so that the key decides."""
        for source in self.sources:
            if source.name == topic and source.partitions == self.sink.partitions:
                return partition
        return None


async def check(settings: Settings, findings: Findings | None = None) -> list[Plan]:
    """Checks all pipelines, and returns a plan for each.

    Args:
        settings: of the file.
        findings: errors that are already known, and are reported with the others.

    Raises:
        ConfigurationError: all errors of stores, cluster and topics. Nothing was consumed, and no topic was created,
            unless the brokers refuse only some of them.
        ClusterError: nothing else is wrong, and the cluster did not respond.
    """
    findings = findings or Findings()
    with findings.noted():
        await check_stores(settings.pipelines)
    try:
        with findings.noted():
            await check_control_topic(settings, create=False)
        plans = await _plans(settings, findings)
        if not findings.errors:
            with findings.noted():
                await check_control_topic(settings)
    except ClusterError as exc:
        if not findings.errors:
            raise
        error = ConfigurationError("bootstrap.servers", str(exc))
        error.__cause__ = exc
        findings.add(error)
    findings.check(settings.place)
    return plans


async def _plans(settings: Settings, findings: Findings) -> list[Plan]:
    """The plans of all pipelines. Topics that are missing are created last, if nothing is wrong."""
    plans: dict[str, Plan] = {}
    lacking: set[str] = set()
    starting = Beginnings(settings)
    for pipeline in settings.pipelines:
        with findings.noted():
            plans[pipeline.name] = await plan_pipeline(settings.client, pipeline, lacking=lacking, starting=starting)
    if not findings.errors:
        for pipeline in settings.pipelines:
            if pipeline.name not in plans:
                with findings.noted():
                    plans[pipeline.name] = await plan_pipeline(settings.client, pipeline, starting=starting)
    return [plans[pipeline.name] for pipeline in settings.pipelines if pipeline.name in plans]


async def check_stores(pipelines: Sequence[PipelineSettings]) -> None:
    """Checks that every store works. A user's own class without `check` is only opened.

    Raises:
        ConfigurationError: stores do not work; it names pipelines and keys of their stores.
    """
    findings = Findings()
    roots: dict[str, str] = {}
    # Writers first: they create what readers need, such as the directory of the payloads.
    for pipeline in sorted(pipelines, key=lambda each: not each.offloads):
        if not pipeline.store:
            continue
        with findings.noted(), of_pipeline(pipeline.name):
            store = open_store(pipeline.store)
            reference_scope(pipeline.reference_scope, store)
            if isinstance(store, Store):
                roots[pipeline.name] = store.root.uri
            await _check_store(store, pipeline)
    for error in root_errors(pipelines, roots):
        findings.add(error)
    findings.check()


async def _check_store(store: PayloadStore, pipeline: PipelineSettings) -> None:
    checked: Future[None] = Future()
    checked.set_running_or_notify_cancel()  # the thread may still set a result after the time-out

    def run() -> None:
        try:
            _check_and_close(store, pipeline)
            _check_keys(pipeline)
            checked.set_result(None)
        except Exception as exc:  # noqa: BLE001  # raised again where the result is awaited
            checked.set_exception(exc)

    # A daemon thread: a thread of a pool that hangs would keep the process from ending.
    threading.Thread(target=run, name=f"check-{pipeline.name}", daemon=True).start()
    try:
        await asyncio.wait_for(asyncio.wrap_future(checked), pipeline.store_timeout_ms / 1000 + _STORE_GRACE_S)
    except TimeoutError as exc:
        raise ConfigurationError(
            _store_key(pipeline), f"the store did not answer within {pipeline.store_timeout_ms:,} ms"
        ) from exc
    except PayloadStoreError as exc:
        raise ConfigurationError(exc.key or _store_key(pipeline), f"the store cannot be used: {exc}") from exc


def _check_and_close(store: PayloadStore, pipeline: PipelineSettings) -> None:
    try:
        check_store(store, pipeline.payload_topic, writing=pipeline.offloads)
    except BaseException:
        with contextlib.suppress(PayloadStoreError):  # the first error is the one to report
            store.close()
        raise
    store.close()


def _check_keys(pipeline: PipelineSettings) -> None:
    """Requests a data key if payloads are to be encrypted. A reader's permissions cannot be checked in advance."""
    keyring = open_keyring(pipeline.encryption, pipeline.store_timeout_ms)
    if keyring is not None and keyring.writes:
        try:
            keyring.current()
        except PayloadStoreError as exc:
            raise ConfigurationError(exc.key or TYPE_NAME, f"payloads cannot be encrypted: {exc}") from exc


def _store_key(pipeline: PipelineSettings) -> str:
    """The first key that the store requires: it says where the store is."""
    keys = store_keys(str(pipeline.store[STORE_CLASS])) or ()
    return next((key.name for key in keys if key.default is REQUIRED), STORE_CLASS)


async def plan_pipeline(
    client: ClientSettings,
    pipeline: PipelineSettings,
    *,
    began: bool = False,
    lacking: set[str] | None = None,
    existed: Collection[str] = (),
    starting: Beginnings | None = None,
) -> Plan:
    """Checks the topics of one pipeline, and returns its plan.

    Args:
        client: how to reach the cluster.
        pipeline: the pipeline.
        began: whether it has run before. If so, a lowered limit of the output topic does not stop it, because it can
            write smaller records.
        lacking: names of topics that are to be created, but not now; those of this pipeline are added. None to create
            them.
        existed: names of topics that an earlier plan has found.
        starting: if a worker starts: finds where the group starts, which may have to be configured.

    Raises:
        ConfigurationError: topics do not fit, or the start of the group must be configured; it names the pipeline.
        ClusterError: the cluster did not respond.
        WrongValueError: a topic that it needs is among `lacking`, so there is no plan yet.
    """
    async with admin(client) as connection:
        with of_pipeline(pipeline.name):
            await check_enforced(connection, client, pipeline)
            try:
                plan = await _plan(connection, pipeline, began=began, lacking=lacking, existed=existed)
                if starting is None:
                    return plan
                beginning = await starting.find(connection, pipeline, plan.sources, plan.sink)
                return replace(plan, beginning=beginning)
            except (ClusterError, ConfigurationError):
                refused = refused_names(client, pipeline, connection.refusals.code)
                if refused is not None:
                    raise refused from refused.__cause__  # which name: `is_over_limit` looks for it
                raise


async def _plan(
    connection: AdminClient,
    pipeline: PipelineSettings,
    *,
    began: bool,
    lacking: set[str] | None,
    existed: Collection[str],
) -> Plan:
    found, missing = await _found(connection, pipeline, lacking, existed)
    findings = Findings()
    sources = tuple(found[name] for name in pipeline.topics)
    for key, name in missing.items():
        await create_topic(connection, key, name, max(each.partitions for each in sources), pipeline.replication_factor)
    created = tuple(missing.values())
    found |= await until_known(connection, created)
    sink = found[pipeline.output_topic]
    dead_letters = None if pipeline.dead_letter_topic is None else found[pipeline.dead_letter_topic]
    with findings.noted():
        try:
            check_limits(pipeline, sink)
        except ConfigurationError as exc:
            if not began:
                raise
            log.warning("pipeline %s continues, although it could not be started now: %s", pipeline.name, exc)
    with findings.noted():
        await check_transactions(connection, pipeline)
    with findings.noted():
        check_chunks(pipeline, sources, sink)
    with findings.noted():
        check_wrappers(pipeline, sink)
    with findings.noted():
        if dead_letters is not None:
            check_dead_letters(dead_letters)
    metadata_bytes = KAFKAS_BYTES
    if pipeline.chunks.assembles:
        metadata_bytes = (await commit_limits_of(connection)).metadata_bytes
        with findings.noted():
            check_notes(pipeline, metadata_bytes)
    findings.check()
    return Plan(pipeline.name, sources, sink, dead_letters, created, metadata_bytes)


async def _found(
    connection: AdminClient, pipeline: PipelineSettings, lacking: set[str] | None, existed: Collection[str]
) -> tuple[dict[str, Topic], dict[str, str]]:
    """The topics of the pipeline that exist, and those that are to be created, by key; see `plan_pipeline`."""
    targets = {"output.topic": pipeline.output_topic}
    if pipeline.dead_letter_topic is not None:
        targets["errors.deadletterqueue.topic.name"] = pipeline.dead_letter_topic
    found = await topics(connection, [*pipeline.topics, *targets.values()])
    findings = Findings()
    for name in pipeline.topics:
        if name not in found and name not in (lacking or ()):
            seen = name in existed
            correct = "" if seen else ", correct the name"
            hint = f"; create it (wideload topics create){correct}, or grant Describe on it"
            findings.add(ConfigurationError("topics", await missing_topic(connection, name, hint, existed=seen)))
    missing = {key: name for key, name in targets.items() if name not in found}
    for key, name in missing.items():
        if not pipeline.topic_creation:
            hint = "; create it (wideload topics create), or set topic.creation.enable = true"
            message = await missing_topic(connection, name, hint, existed=name in existed)
            findings.add(ConfigurationError(key, message))
    findings.check()
    if lacking is not None:
        lacking |= {*missing.values()}
        if not lacking.isdisjoint([*pipeline.topics, *targets.values()]):
            raise WrongValueError(pipeline.name)
    return found, missing
