"""The limits for names in Kafka's requests: the table of KIP-1233, which is under discussion, as data.

Kafka 5.0 is to refuse longer names, and Kafka 4.x if `resource.identifier.limit.enable` is true. Today only topic names
and the metadata of offset commits have a limit; for all others it is the longest string of the protocol, 32,767 bytes.

Lengths are counted in Java's characters: a character beyond U+FFFF counts as two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from transforms.errors import ResourceIdentifierTooLargeError

Kind = Literal[
    "topic",
    "group-id",
    "member-id",
    "group-instance-id",
    "client-id",
    "transactional-id",
    "offset-metadata",
    "rack-id",
    "resource-name",
    "acl-principal",
    "acl-host",
]
Unit = Literal["characters", "bytes"]

LIMIT_KEY = "resource.identifier.limit.enable"
"""The name of the brokers' property, and of the worker's."""

FIRST_VERSION = 5
"""The major version of Kafka in which `LIMIT_KEY` is true by default."""

STRING_BYTES = 32_767
"""The longest string that most of Kafka's requests can carry."""

_CHARACTERS = 249
_UUID_CHARACTERS = 36
_METADATA_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """An error of Kafka's protocol.

    Attributes:
        name: Kafka's name.
        number: None if it is not assigned yet.
    """

    name: str
    number: int | None

    def __str__(self) -> str:
        return self.name if self.number is None else f"{self.name} ({self.number})"


_INVALID_TOPIC = ErrorCode("INVALID_TOPIC_EXCEPTION", 17)
_METADATA_TOO_LARGE = ErrorCode("OFFSET_METADATA_TOO_LARGE", 12)
TOO_LARGE = ErrorCode("RESOURCE_IDENTIFIER_TOO_LARGE", None)
INVALID_REQUEST = ErrorCode("INVALID_REQUEST", 42)


@dataclass(frozen=True, slots=True)
class Identifier:
    """One row of the table.

    Attributes:
        name: for messages.
        limit: the maximum length, in `unit`.
        unit: of the length.
        error: the broker's error for a longer name.
        enforced: True if brokers refuse longer names today; False if they do so only when `LIMIT_KEY` is true.
    """

    name: str
    limit: int
    unit: Unit
    error: ErrorCode
    enforced: bool = False

    def length(self, text: str) -> int:
        """The length of `text`, in `unit`."""
        if self.unit == "bytes":
            return len(text.encode("utf-8", "surrogatepass"))
        return len(text.encode("utf-16-le", "surrogatepass")) // 2

    def answer(self, *, new_client: bool) -> ErrorCode:
        """The error that a client gets; one that is too old to know the new error gets another."""
        return INVALID_REQUEST if self.error is TOO_LARGE and not new_client else self.error


def _named(name: str) -> Identifier:
    return Identifier(name, _CHARACTERS, "characters", TOO_LARGE)


IDENTIFIERS: Mapping[Kind, Identifier] = MappingProxyType(
    {
        "topic": Identifier("topic name", _CHARACTERS, "characters", _INVALID_TOPIC, enforced=True),
        "group-id": _named("group id"),
        "member-id": Identifier("group member id", _UUID_CHARACTERS, "characters", INVALID_REQUEST),
        "group-instance-id": _named("group instance id"),
        "client-id": _named("client id"),
        "transactional-id": _named("transactional id"),
        "offset-metadata": Identifier(
            "offset commit metadata", _METADATA_BYTES, "bytes", _METADATA_TOO_LARGE, enforced=True
        ),
        "rack-id": _named("rack id"),
        "resource-name": _named("resource name for configs and ACLs"),
        "acl-principal": _named("ACL principal"),
        "acl-host": _named("ACL host"),
    }
)
"""The table, in the order of KIP-1233."""

CLIENT_KEYS: Mapping[str, Kind] = MappingProxyType(
    {
        "client.id": "client-id",
        "group.id": "group-id",
        "group.instance.id": "group-instance-id",
        "client.rack": "rack-id",
        "transactional.id": "transactional-id",
    }
)
"""The kinds of the names in a client's configuration, by property."""


def check(kind: Kind, text: str, *, enabled: bool = True) -> None:
    """Refuses a name that is too long.

    Args:
        kind: the kind of the name.
        text: the name.
        enabled: `LIMIT_KEY`. If False, only names are refused that brokers always refuse, or no request can carry.

    Raises:
        ResourceIdentifierTooLargeError: it is over the limit.
    """
    identifier = IDENTIFIERS[kind]
    if 4 * len(text) <= identifier.limit:  # no character has more than 4 of either unit
        return
    if enabled or identifier.enforced:
        length = identifier.length(text)
        if length > identifier.limit:
            raise ResourceIdentifierTooLargeError(kind, length, identifier.limit, identifier.unit)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > STRING_BYTES:
        raise ResourceIdentifierTooLargeError(kind, size, STRING_BYTES, "bytes")


_DIGEST_CHARACTERS = 40  # 160 bits, so two names never have the same one


def transactional_id(owner: str, topic: str, partition: int) -> str:
    """The `transactional.id` of a pipeline's transactions for one source partition: stable and unique.

    It is `pipeline:topic:partition`. With dashes, `a-b-c-0` could belong to two pipelines, which would fence each
    other. If this is over the limit, it is the beginning of the pipeline's name and a digest.

    Args:
        owner: the name of the pipeline, or the group of a replay of dead-letter records.
        topic: the source topic.
        partition: of the topic.
    """
    whole = f"{owner}:{topic}:{partition}"
    if IDENTIFIERS["transactional-id"].length(whole) <= _CHARACTERS:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    begin = owner.encode("utf-16-le")[: 2 * (_CHARACTERS - _DIGEST_CHARACTERS - 1)]
    return f"{begin.decode('utf-16-le', 'ignore')}:{digest}"  # without half a character at the end
