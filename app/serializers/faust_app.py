"""The settings of a Faust app: its names, its limits, and how its clients reach the cluster.

The only module that uses Faust's private names; each line is marked.
"""

from __future__ import annotations

from typing import Any, cast

from aiokafka import AIOKafkaConsumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, credentials_to_aiokafka_auth, server_list
from faust.types import AppT, ProcessingGuarantee

from app.config.naming import check_name
from app.kafka.consumer_controls import count_as_poll, idle_s


def check_names(app: AppT, *, enabled: bool) -> None:
    """Checks the app's names in Kafka; its id is its consumer group.

    Raises:
        ConfigurationError: one is over its limit.
    """
    check_name("group-id", app.conf.id, "id", enabled=enabled)
    check_name("client-id", app.conf.broker_client_id, "broker_client_id", enabled=enabled)
    instance = app.conf.consumer_group_instance_id or ""
    check_name("group-instance-id", instance, "consumer_group_instance_id", enabled=enabled)


def client_keys(app: AppT) -> dict[str, object]:
    """The properties of the app's own clients that the serializers read."""
    conf = app.conf
    known: dict[str, object] = {
        "max.request.size": conf.producer_max_request_size,
        "max.poll.interval.ms": int(conf.broker_max_poll_interval * 1000),
    }
    if conf.broker_credentials is None:
        known["bootstrap.servers"] = ",".join(f"{url.host}:{url.port or 9092}" for url in conf.broker)
    return known


def cluster_arguments(app: AppT) -> dict[str, Any]:
    """How the app's own clients reach the cluster, for a client of aiokafka."""
    conf = app.conf
    return {
        "bootstrap_servers": server_list(list(conf.broker), 9092),
        "client_id": conf.broker_client_id,
        "request_timeout_ms": int(conf.broker_request_timeout * 1000),
        **credentials_to_aiokafka_auth(conf.broker_credentials, conf.ssl_context),
    }


def consumer_arguments(app: AppT) -> dict[str, Any]:
    """As `cluster_arguments`, for a consumer that reads like the app's own."""
    conf = app.conf
    committed = cast("Any", conf).processing_guarantee is ProcessingGuarantee.EXACTLY_ONCE
    return {
        **cluster_arguments(app),
        "bootstrap_servers": server_list(list(conf.broker_consumer), 9092),
        "max_partition_fetch_bytes": conf.consumer_max_fetch_size,
        "check_crcs": conf.broker_check_crcs,
        "isolation_level": "read_committed" if committed else "read_uncommitted",
    }


async def partition_of(app: AppT, topic: str, key: bytes | None) -> int:
    """The partition that the app's producer chooses for a key, or a random one; looks up the topic if it is new to it.

    Raises:
        KafkaError: the cluster does not know the topic.
    """
    producer: Any = app.producer
    await producer._producer.partitions_for(topic)  # noqa: SLF001  # `key_partition` fails for a topic it does not know
    return int(producer.key_partition(topic, key).partition)


def _consumer(app: AppT) -> AIOKafkaConsumer | None:
    """The aiokafka client with which Faust reads, while the app runs."""
    thread = getattr(app.consumer, "_thread", None) if app.started else None
    return thread._consumer if isinstance(thread, AIOKafkaConsumerThread) else None  # noqa: SLF001  # nothing public does


def idle_seconds(app: AppT) -> float:
    """For how long Faust has not polled: it does not while its agents have all the records that they can hold."""
    consumer = _consumer(app)
    return 0.0 if consumer is None else idle_s(consumer)


def keep_membership(app: AppT) -> None:
    """Counts as a poll of Faust's consumer, which does not poll during a download.

    A consumer that does not poll for `broker_max_poll_interval` leaves its group. Then aiokafka waits for a poll before
    it rejoins, and Faust waits for the group before it polls, so neither ever happens (tried).
    """
    if (consumer := _consumer(app)) is not None:
        count_as_poll(consumer)


def outlive_crash(app: AppT) -> None:
    """Keeps the thread of Faust's consumer running when the app crashes, until it is stopped; call it before.

    A crash ends the thread immediately. If the app's last commit is requested while the thread accepts no more work and
    has not ended yet, Faust waits forever for the end of the commit, and the worker does not stop (tried).
    """
    thread = getattr(getattr(app, "_consumer", None), "_thread", None)
    if isinstance(thread, AIOKafkaConsumerThread):
        # Replaces what marks a service as crashed, which ends its thread.
        cast("Any", thread)._crash = lambda _: None  # noqa: SLF001  # nothing public separates it from the app's crash
