"""Whether the brokers enforce the limits of names (KIP-1233), and which commit metadata they accept, for how long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from aiokafka.errors import KafkaError

from app.config.naming import name_errors
from app.config.settings import ClientSettings, PipelineSettings
from app.kafka.admin import AdminClient
from app.kafka.clients import admin
from app.kafka.refusals import answer_text, enforced
from transforms.commit_metadata import KAFKAS_BYTES, LEAST_BYTES
from transforms.errors import ConfigurationError, ResourceIdentifierTooLargeError
from transforms.identifiers import IDENTIFIERS, LIMIT_KEY

METADATA_KEY = "offset.metadata.max.bytes"
RETENTION_KEY = "offsets.retention.minutes"

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """The limits of one broker.

    Attributes:
        enforced: `resource.identifier.limit.enable`; False if the broker does not support or report it.
        metadata_bytes: `offset.metadata.max.bytes`; None if the broker does not report it.
        retention_ms: `offsets.retention.minutes`, in milliseconds; None if the broker does not report it.
    """

    enforced: bool = False
    metadata_bytes: int | None = None
    retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """Which commit metadata each broker accepts, and for how long; Kafka's defaults if brokers do not report it.

    Attributes:
        metadata_bytes: the longest metadata of a commit.
        retention_ms: how long a commit stays if its group has no members.
    """

    metadata_bytes: int = IDENTIFIERS["offset-metadata"].limit
    retention_ms: int = 7 * 24 * 60 * _MINUTE_MS


async def limits_of(connection: AdminClient, broker: int) -> BrokerLimits:
    """Asks one broker.

    Raises:
        KafkaError: it does not answer, or the user may not ask.
    """
    found = await connection.broker_configs(broker, [METADATA_KEY, RETENTION_KEY, LIMIT_KEY])
    size, minutes = found.get(METADATA_KEY), found.get(RETENTION_KEY)
    return BrokerLimits(
        found.get(LIMIT_KEY) == "true",
        int(size) if size else None,
        int(minutes) * _MINUTE_MS if minutes else None,
    )


async def _all_limits(connection: AdminClient) -> Mapping[int, BrokerLimits]:
    """The limits of each broker, by its id, without those that do not respond or that the user may not ask."""
    found: dict[int, BrokerLimits] = {}
    with suppress(KafkaError, TimeoutError):
        for broker in (await connection.describe_cluster())["brokers"]:
            number = broker["node_id"]
            found[number] = BrokerLimits()
            with suppress(KafkaError, TimeoutError):  # of this broker; the others may say more
                found[number] = await limits_of(connection, number)
    return found


async def commit_limits(client: ClientSettings) -> CommitLimits:
    """The limits that all brokers accept: the strictest one counts, because it may be the coordinator of any group.

    Raises:
        ConfigurationError: no broker answers, or none accepts the login.
    """
    async with admin(client) as connection:
        return await commit_limits_of(connection)


async def commit_limits_of(connection: AdminClient) -> CommitLimits:
    """As `commit_limits`, over a connection that is there."""
    found = (await _all_limits(connection)).values()
    default = CommitLimits()
    return CommitLimits(
        min(_given(default.metadata_bytes, (each.metadata_bytes for each in found))),
        min(_given(default.retention_ms, (each.retention_ms for each in found))),
    )


def _given(default: int, found: Iterable[int | None]) -> Sequence[int]:
    """The values of brokers, with the default for those that do not report it, or if there is no broker."""
    return [default if each is None else each for each in found] or [default]


def check_notes(pipeline: PipelineSettings, metadata_bytes: int) -> None:
    """Refuses brokers that do not accept the metadata that a pipeline with chunks commits with its offsets.

    If chunks are not expected, and records may be duplicated, `inflate` runs without notes.

    Raises:
        ConfigurationError: the longest metadata that they accept is too short.
    """
    needed = pipeline.chunks.expects_chunks or (pipeline.chunks.assembles and pipeline.guarantee.exactly_once)
    if needed and metadata_bytes < LEAST_BYTES:
        raise ConfigurationError(
            "transforms",
            f"found {list(pipeline.transforms)}: a commit at an incomplete message notes which later messages were "
            f"delivered, in up to {LEAST_BYTES} bytes, and {METADATA_KEY} of a broker is {metadata_bytes:,}; raise it "
            f"on all brokers to {LEAST_BYTES} or more (Kafka's default is {KAFKAS_BYTES:,})",
        )


async def check_enforced(connection: AdminClient, client: ClientSettings, pipeline: PipelineSettings) -> None:
    """Refuses names over the limits if a broker enforces them, although the configuration disables the limits.

    The broker would answer INVALID_REQUEST, or an error that clients do not know yet, without the name that it means.

    Raises:
        ConfigurationError: each such name, with its property, and the broker.
    """
    errors = _over_limit(client, pipeline)
    if not errors:
        return
    enforcing = [number for number, each in (await _all_limits(connection)).items() if each.enforced]
    if enforcing:
        raise _enforced_errors(
            errors, f"broker {enforcing[0]} enforces the limit: its {LIMIT_KEY} is true, and here it is false"
        )


def refused_names(client: ClientSettings, pipeline: PipelineSettings, code: int | None) -> ConfigurationError | None:
    """The names over the limits that brokers have refused; None if the error has another reason.

    Args:
        client: of the configuration.
        pipeline: the pipeline of the names.
        code: the error that may mean one of them (`app.kafka.refusals`); None for none.
    """
    if code is None or not (errors := _over_limit(client, pipeline)):
        return None
    return _enforced_errors(errors, f"the brokers enforce the limit: they answer {answer_text(code)}")


def is_over_limit(error: BaseException) -> bool:
    """Whether an error reports a name over its limit, which is permanent until the name is shortened."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ResourceIdentifierTooLargeError):
        cause = cause.__cause__
    return cause is not None


def _over_limit(client: ClientSettings, pipeline: PipelineSettings) -> Sequence[ConfigurationError]:
    """The names that only a configuration without limits allows; with limits, they were checked when it was read."""
    return [] if client.limit_names else list(name_errors(replace(client, limit_names=True), pipeline))


def _enforced_errors(errors: Sequence[ConfigurationError], why: str) -> ConfigurationError:
    return ConfigurationError.together([enforced(each, why) for each in errors])
