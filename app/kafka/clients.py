"""Kafka clients: creates aiokafka's clients from settings, and translates aiokafka's errors into messages."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Never, cast

import aiokafka.errors as kafka_errors
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import collect_hosts, create_conn

from app.config.naming import client_id
from app.config.secret import renewed
from app.config.settings import ClientSettings, PipelineSettings
from app.kafka.admin import AdminClient
from app.kafka.batches.batch import UNLIMITED_BYTES
from app.kafka.batches.outbox import BatchSettings
from app.kafka.gate import create_no_topics
from app.kafka.refusals import newer_text
from app.kafka.tokens import TOKEN_MECHANISMS, token_provider
from transforms.commit_metadata import MOST_BYTES
from transforms.compression import Codec
from transforms.errors import ConfigurationError, WideloadError
from transforms.record_batch import CODECS

_PROBE_S = 5.0
_ID_WAIT_S, _ID_AGAIN_S = 2.0, 30.0
_OF_SOURCE = "source"


class ClusterError(WideloadError):
    """The cluster refused a request, or did not answer it.

    Attributes:
        retriable: True if another try may succeed.
        forbidden: True if the user lacks a permission, or has lost it.
    """

    def __init__(self, message: str, *, retriable: bool, forbidden: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable
        self.forbidden = forbidden


# Errors that aiokafka does not mark as retriable, though another try with new clients may succeed.
_PASSING = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.CommitFailedError,
    kafka_errors.OutOfOrderSequenceNumber,
    kafka_errors.UnknownProducerId,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.ProducerFenced,
    kafka_errors.InvalidTxnState,
    kafka_errors.InvalidProducerIdMapping,
    kafka_errors.ConcurrentTransactions,
    kafka_errors.IllegalOperation,  # a transaction has failed already; the next try meets the first error
    kafka_errors.ProducerClosed,
    kafka_errors.UnknownMemberIdError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.RebalanceInProgressError,
    kafka_errors.CorruptRecordException,
    kafka_errors.BrokerNotAvailableError,
    kafka_errors.ReplicaNotAvailableError,
    kafka_errors.IllegalStateError,
    kafka_errors.KafkaUnavailableError,
    kafka_errors.InvalidTimestampError,  # of a broker's own record, such as a commit: its clock was set back
    kafka_errors.UnknownError,  # also an error code that is newer than aiokafka: fenced and unknown leader epochs
)

# Errors that a new permission or password resolves while the pipeline waits.
_FORBIDDEN = (
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.GroupAuthorizationFailedError,
    kafka_errors.ClusterAuthorizationFailedError,
    kafka_errors.TransactionalIdAuthorizationFailed,
    kafka_errors.AuthenticationFailedError,
    kafka_errors.SaslAuthenticationFailed,
)

_FENCED = (
    "another producer has the transactional.id now: the partition has moved to another worker, or another pipeline "
    "with this name reads the topic; or the transaction took longer than producer.transaction.timeout.ms"
)

_FORGOTTEN = (
    "the brokers have forgotten the producer, which has written nothing for their transactional.id.expiration.ms or "
    "producer.id.expiration.ms; the next one gets another id"
)

_NOT_ACCEPTED = "the brokers do not accept sasl.username and sasl.password"

# How the user can resolve an error.
_ADVICE: Mapping[type[BaseException], str] = {
    kafka_errors.TopicAuthorizationFailedError: (
        "the user may not use this topic; grant Read on source topics and Write on output topics"
    ),
    kafka_errors.GroupAuthorizationFailedError: "the user may not use this group; grant Read on it",
    kafka_errors.ClusterAuthorizationFailedError: "the user lacks IdempotentWrite on the cluster",
    kafka_errors.TransactionalIdAuthorizationFailed: (
        "the user may not use this transactional.id; grant Write and Describe on all transactional ids that begin as "
        "it does, up to the colon"
    ),
    kafka_errors.InvalidTransactionTimeout: (
        "producer.transaction.timeout.ms is over the brokers' transaction.max.timeout.ms"
    ),
    **dict.fromkeys((kafka_errors.ProducerFenced, kafka_errors.InvalidProducerEpoch), _FENCED),
    **dict.fromkeys((kafka_errors.AuthenticationFailedError, kafka_errors.SaslAuthenticationFailed), _NOT_ACCEPTED),
    kafka_errors.InvalidSessionTimeoutError: (
        "consumer.session.timeout.ms is outside the brokers' group.min.session.timeout.ms to "
        "group.max.session.timeout.ms"
    ),
    kafka_errors.InconsistentGroupProtocolError: (
        "the group has members with another partition.assignment.strategy than roundrobin, or is not a group of "
        "consumers: set a group.id that nothing else uses"
    ),
    kafka_errors.OffsetOutOfRangeError: (
        "the records at the committed offset are gone, and consumer.auto.offset.reset is none"
    ),
    kafka_errors.InvalidRequestError: (
        "the brokers give no details; one possible reason is a name over its limit, if they have "
        "resource.identifier.limit.enable = true: wideload names audit shows all names and limits"
    ),
    **dict.fromkeys((kafka_errors.InvalidProducerIdMapping, kafka_errors.UnknownProducerId), _FORGOTTEN),
    kafka_errors.InvalidTxnState: (
        "the brokers know of no open transaction; those of Kafka 3.7 refuse the offsets of every transaction if their "
        "group.coordinator.rebalance.protocols names consumer (early access to KIP-848): set it to classic"
    ),
    kafka_errors.OffsetMetadataTooLargeError: (
        "offset.metadata.max.bytes of the brokers has no room for the metadata that is committed with an offset; raise "
        f"it to {MOST_BYTES}"
    ),
    kafka_errors.NoOffsetForPartitionError: "there is no committed offset, and consumer.auto.offset.reset is none",
}


def describe(error: BaseException) -> str:
    """The message for an error, with advice if there is any."""
    if type(error) is kafka_errors.KafkaError and isinstance(error.__cause__, kafka_errors.KafkaError):
        error = error.__cause__  # it has ended aiokafka's sender, which reports only that it was unexpected
    text = " ".join(str(error).split())  # it may have line breaks
    if isinstance(error, kafka_errors.CommitFailedError):
        text = "the group has assigned the partitions to another member"  # aiokafka's text is about its own settings
    name = type(error).__name__
    message = text if name in text else f"{name}: {text}" if text else name
    advice = _ADVICE.get(type(error))
    return f"{message} ({advice})" if advice else message


def translated(error: BaseException, doing: str, code: int | None = None) -> ClusterError:
    """A `ClusterError` for an error of aiokafka.

    Args:
        error: the error.
        doing: what the client was doing, with names.
        code: the error code of `Refusals`.
    """
    retriable = (
        isinstance(error, (*_PASSING, asyncio.TimeoutError, OSError))
        or type(error) is kafka_errors.KafkaError  # a task of aiokafka has failed
        or bool(getattr(error, "retriable", False))
    )
    message = f"{doing}: {describe(error)}{newer_text(code)}"
    return ClusterError(message, retriable=retriable, forbidden=isinstance(error, _FORBIDDEN))


def sharing_context(settings: ClientSettings) -> ClientSettings:
    """The settings for clients that share one TLS context, as each context costs 1 MiB, and 20 ms of the event loop.

    Authorities, certificate, key and password files are read now; to pick up replacements, call this again.
    """
    return replace(settings, shared=security_arguments(settings))


def security_arguments(settings: ClientSettings) -> dict[str, Any]:
    """The arguments of every aiokafka client: addresses, login and TLS.

    Raises:
        ConfigurationError: a certificate, a key or the file of a password cannot be used, or a package is missing.
    """
    if settings.shared is not None:
        return dict(settings.shared)
    security = renewed(settings.security)
    protocol = str(security["security.protocol"])
    arguments: dict[str, Any] = {"bootstrap_servers": settings.bootstrap_servers, "security_protocol": protocol}
    if protocol.startswith("SASL"):
        mechanism = security["sasl.mechanism"]
        if mechanism in TOKEN_MECHANISMS:
            provider = token_provider(security, settings.bootstrap_servers)
            arguments |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider}
        elif mechanism == "GSSAPI" and importlib.util.find_spec("gssapi") is None:
            raise ConfigurationError("sasl.mechanism", "found 'GSSAPI', which needs a package: pip install gssapi")
        else:
            arguments |= {
                "sasl_mechanism": mechanism,
                "sasl_plain_username": security["sasl.username"],
                "sasl_plain_password": security["sasl.password"],
                "sasl_kerberos_service_name": security["sasl.kerberos.service.name"],
            }
    if protocol.endswith("SSL"):
        arguments["ssl_context"] = _ssl_context(security)
    return arguments


def _ssl_context(security: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=security["ssl.ca.location"])
    except (ssl.SSLError, OSError) as exc:
        raise ConfigurationError("ssl.ca.location", f"is not a PEM file of certificates: {exc}") from exc
    if security["ssl.endpoint.identification.algorithm"] == "none":
        context.check_hostname = False
    if security["ssl.certificate.location"] is not None:
        try:
            context.load_cert_chain(
                security["ssl.certificate.location"], security["ssl.key.location"], security["ssl.key.password"] or ""
            )
        except (ssl.SSLError, OSError) as exc:
            reason = "certificate, key and ssl.key.password do not match"
            raise ConfigurationError("ssl.certificate.location", f"{reason}: {exc}") from exc
    return context


def consumer(settings: ClientSettings, pipeline: PipelineSettings) -> AIOKafkaConsumer:
    """The consumer of a pipeline, not started and not subscribed; it never commits or resets offsets by itself."""
    # Each property is named after aiokafka's argument.
    own = {name.removeprefix("consumer.").replace(".", "_"): value for name, value in pipeline.consumer.items()}
    own["auto_offset_reset"] = "none"  # any other value skips records silently; see `OffsetReset`
    made = AIOKafkaConsumer(
        **security_arguments(settings),
        **own,
        client_id=client_id(settings, pipeline.name),
        group_id=pipeline.group_id,
        enable_auto_commit=False,
        rebalance_timeout_ms=own["max_poll_interval_ms"],  # as in Kafka's own consumer
    )
    return create_no_topics(made)


def idempotent_producer(settings: ClientSettings, name: str, **arguments: Any) -> AIOKafkaProducer:
    """A producer, not started, none of whose batches overtakes a failed one."""
    made = AIOKafkaProducer(
        **security_arguments(settings),
        client_id=name,
        acks="all",
        enable_idempotence=True,
        max_request_size=UNLIMITED_BYTES,  # aiokafka would compare it with uncompressed records
        **arguments,
    )
    return create_no_topics(made)


def producer(
    settings: ClientSettings, pipeline: PipelineSettings, transactional_id: str | None = None
) -> AIOKafkaProducer:
    """The producer of a pipeline, not started."""
    values: Mapping[str, Any] = pipeline.producer
    codec = values["producer.compression.type"]
    return idempotent_producer(
        settings,
        client_id(settings, pipeline.name),
        compression_type=None if codec in ("none", _OF_SOURCE) else codec,
        metadata_max_age_ms=values["producer.metadata.max.age.ms"],
        request_timeout_ms=values["producer.request.timeout.ms"],
        retry_backoff_ms=values["producer.retry.backoff.ms"],
        transactional_id=transactional_id,
        transaction_timeout_ms=pipeline.guarantee.timeout_ms,
    )


def codec_number(pipeline: PipelineSettings) -> int | None:
    """The number of the codec of a pipeline's batches; None if each record keeps the codec of its source batch."""
    name = pipeline.producer["producer.compression.type"]
    return None if name == _OF_SOURCE else CODECS.index(None if name == "none" else cast("Codec", name))


def batch_settings(pipeline: PipelineSettings) -> BatchSettings:
    """The settings of a pipeline's batches."""
    values: Mapping[str, Any] = pipeline.producer
    linger_ms, request_ms = values["producer.linger.ms"], values["producer.request.timeout.ms"]
    return BatchSettings(
        batch_bytes=values["producer.batch.size"],
        linger_s=linger_ms / 1000,
        delivery_timeout_s=max(values["producer.delivery.timeout.ms"], linger_ms + request_ms) / 1000,
    )


@asynccontextmanager
async def writing_producer(settings: ClientSettings, **more: Any) -> AsyncIterator[AIOKafkaProducer]:
    """The producer of a command, started, for the duration of a block.

    Raises:
        ClusterError: it cannot start.
    """
    producer = idempotent_producer(settings, settings.client_id, **more)
    try:
        try:
            await producer.start()
        except (kafka_errors.KafkaError, OSError) as exc:
            raise translated(exc, "the producer cannot start") from exc
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def admin(settings: ClientSettings, timeout_s: float = 15.0) -> AsyncIterator[AdminClient]:
    """An admin client, started, for the duration of a block.

    Raises:
        ConfigurationError: no broker of `bootstrap.servers` answers or accepts the login, or the addresses that the
            brokers advertise cannot be reached. If another try may succeed, its cause is a retriable `ClusterError`.
    """
    arguments = security_arguments(settings)
    client = AdminClient(**arguments, client_id=settings.client_id, request_timeout_ms=int(timeout_s * 1000))
    try:
        try:
            await asyncio.wait_for(client.start(), timeout_s)
        except (kafka_errors.KafkaError, OSError, ValueError) as exc:
            await _refuse_silence(settings, arguments, exc)
        try:
            yield client
        except (ClusterError, kafka_errors.NodeNotReadyError, kafka_errors.KafkaConnectionError):
            await _check_addresses(settings, arguments)
            raise
    finally:
        await client.close()


class ClusterId:
    """The id of the cluster, cached. If no broker reports it, they are asked again at most every 30 seconds."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._found: str | None = None
        self._due_s = 0.0

    async def get(self) -> str | None:
        """The id; None if no broker reports it within two seconds."""
        if self._found is None and time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _ID_AGAIN_S
            with contextlib.suppress(kafka_errors.KafkaError, WideloadError, OSError, TimeoutError):
                async with asyncio.timeout(_ID_WAIT_S), admin(self._settings) as connection:
                    self._found = (await connection.describe_cluster()).get("cluster_id")
        return self._found


async def _check_addresses(settings: ClientSettings, arguments: Mapping[str, Any]) -> None:
    """Refuses brokers that answer, but cannot be reached at the addresses that they advertise."""
    client = AIOKafkaClient(**arguments, request_timeout_ms=int(_PROBE_S * 1000))
    try:
        await client.bootstrap()
        addresses = ",".join(f"{broker.host}:{broker.port}" for broker in client.cluster.brokers())
    except (kafka_errors.KafkaError, OSError):
        return
    finally:
        await client.close()
    if not addresses and settings.security["sasl.mechanism"] in TOKEN_MECHANISMS:
        # aiokafka ignores the brokers' answer to a token, and treats a refusal as metadata without brokers.
        raise ConfigurationError(
            "sasl.mechanism",
            f"the brokers at {settings.bootstrap_servers} do not accept the token; check its issuer, audience, scope "
            "and expiry, and the log of a broker",
        )
    found = await _probed({**arguments, "bootstrap_servers": addresses}) if addresses else {}
    if found:
        message = (
            f"{settings.bootstrap_servers} answers, and reports that the brokers are at {addresses}, where none can be "
            f"reached: {'; '.join(found)}; correct advertised.listeners of the brokers, or how this machine resolves "
            "these names"
        )
        raise ConfigurationError("bootstrap.servers", message) from ClusterError(message, retriable=_is_silence(found))


async def _refuse_silence(settings: ClientSettings, arguments: Mapping[str, Any], error: Exception) -> Never:
    found = await _probed(arguments) or {describe(error): error}
    reason = "; ".join(found)
    protocol, security = arguments["security_protocol"], settings.security
    closed = protocol.endswith("SSL") and "closed" in reason and security["ssl.certificate.location"] is None
    advice = (
        "; brokers that require a client certificate close connections in this way: set ssl.certificate.location"
        if closed
        else ""
    )
    message = (
        f"no broker answers at {settings.bootstrap_servers} over {protocol}: {reason}; check "
        f"that the cluster runs, the addresses, and security.protocol{advice}"
    )
    raise ConfigurationError("bootstrap.servers", message) from ClusterError(message, retriable=_is_silence(found))


def _is_silence(found: Mapping[str, Exception]) -> bool:
    """True if no broker was reached, or none answered; False if a login or a certificate is refused."""
    tls = any(isinstance(each, ssl.SSLError) for error in found.values() for each in (error, error.__cause__))
    return not tls and all(isinstance(each, OSError) or getattr(each, "retriable", False) for each in found.values())


async def _probed(arguments: Mapping[str, Any]) -> Mapping[str, Exception]:
    """Why no address can be connected to, by reason, which aiokafka only logs; empty if one address can."""
    rest = {name: value for name, value in arguments.items() if name != "bootstrap_servers"}
    reasons: dict[str, Exception] = {}
    for host, port, _ in collect_hosts(arguments["bootstrap_servers"], randomize=False):
        try:
            connection = await asyncio.wait_for(create_conn(host, port, **rest), _PROBE_S)
        except TimeoutError as exc:
            reasons[f"no answer within {_PROBE_S:g} s"] = exc
        except (kafka_errors.KafkaError, OSError, ValueError) as exc:
            reasons[describe(exc)] = exc
        else:
            connection.close()
            return {}
    return reasons
