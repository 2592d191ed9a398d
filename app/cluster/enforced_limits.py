"""Whether the brokers enforce the limits of names (seed 003), and which length of offset metadata each takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, for_code

from app.config.naming import name_errors
from app.config.settings import ClientSettings, PipelineSettings
from app.kafka.admin import AdminClient
from app.kafka.clients import admin
from transforms.errors import ConfigurationError, ResourceIdentifierTooLargeError
from transforms.identifiers import IDENTIFIERS, INVALID_REQUEST, LIMIT_KEY

__all__ = [
    "METADATA_KEY",
    "BrokerLimits",
    "check_enforced",
    "is_over_limit",
    "limits_of",
    "metadata_limit",
    "refused_names",
]

METADATA_KEY = "offset.metadata.max.bytes"


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """What one broker says of its limits.

    Attributes:
        enforced: `resource.identifier.limit.enable`; False if the broker does not know it.
        metadata_bytes: `offset.metadata.max.bytes`; None if the broker does not say.
    """

    enforced: bool
    metadata_bytes: int | None


async def limits_of(connection: AdminClient, broker: int) -> BrokerLimits:
    """Asks one broker.

    Raises:
        KafkaError: it does not answer, or the user may not ask.
    """
    resource = ConfigResource(ConfigResourceType.BROKER, str(broker), dict.fromkeys([METADATA_KEY, LIMIT_KEY]))
    (response,) = await connection.describe_configs([resource])
    (result,) = response.to_object()["resources"]
    if result["error_code"]:
        raise for_code(result["error_code"])(result["error_message"] or "")
    found: Mapping[str, str] = {entry["config_names"]: entry["config_value"] for entry in result["config_entries"]}
    size = found.get(METADATA_KEY)
    return BrokerLimits(found.get(LIMIT_KEY) == "true", int(size) if size else None)


async def metadata_limit(client: ClientSettings) -> int:
    """The longest metadata of a commit, in bytes, that each broker takes; Kafka's default for those that do not say.

    Raises:
        ConfigurationError: no broker answers, or none accepts the login.
    """
    default = IDENTIFIERS["offset-metadata"].limit
    async with admin(client) as connection:
        try:
            brokers = (await connection.describe_cluster())["brokers"]
            found = [await limits_of(connection, each["node_id"]) for each in brokers]
        except (KafkaError, TimeoutError):
            return default  # the user may not ask
    return min((each.metadata_bytes or default for each in found), default=default)


async def check_enforced(connection: AdminClient, client: ClientSettings, pipeline: PipelineSettings) -> None:
    """Refuses names over the limits if a broker enforces these, though the configuration says that none does.

    The broker would answer INVALID_REQUEST, or an error that clients do not know yet, without the name that it means.

    Raises:
        ConfigurationError: it tells of each such name, by its key, and of the broker.
    """
    errors = _over_limit(client, pipeline)
    if not errors:
        return
    try:
        brokers = (await connection.describe_cluster())["brokers"]
        enforcing = [each["node_id"] for each in brokers if (await limits_of(connection, each["node_id"])).enforced]
    except (KafkaError, TimeoutError):
        return  # the user may not ask
    if enforcing:
        raise _told(errors, f"broker {enforcing[0]} enforces the limit: its {LIMIT_KEY} is true, and here it is false")


def refused_names(client: ClientSettings, pipeline: PipelineSettings, code: int | None) -> ConfigurationError | None:
    """The names over the limits that brokers have refused; None if the error has another reason.

    Args:
        client: of the configuration.
        pipeline: whose names.
        code: the error that may mean one of them (`app.kafka.refusals`); None for none.
    """
    errors = [] if code is None else _over_limit(client, pipeline)
    if not errors:
        return None
    name = INVALID_REQUEST if code == INVALID_REQUEST.number else f"error {code}, which is newer than this client"
    return _told(errors, f"the brokers enforce the limit: they answer {name}")


def is_over_limit(error: BaseException) -> bool:
    """Whether an error tells of a name over its limit: it stays so until somebody shortens it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ResourceIdentifierTooLargeError):
        cause = cause.__cause__
    return cause is not None


def _over_limit(client: ClientSettings, pipeline: PipelineSettings) -> Sequence[ConfigurationError]:
    """The names that only a configuration without limits lets pass; with limits they were checked when it was read."""
    return [] if client.limit_names else list(name_errors(replace(client, limit_names=True), pipeline))


def _told(errors: Sequence[ConfigurationError], why: str) -> ConfigurationError:
    told = []
    for each in errors:
        error = ConfigurationError(each.key, f"{why}; {each.reason.rpartition(', or set ')[0]}", pipeline=each.pipeline)
        error.__cause__ = each.__cause__
        told.append(error)
    return ConfigurationError.together(told)
