"""The names that a live cluster has, and which of them a limit would refuse."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code
from aiokafka.protocol.types import Array, Bytes, Int16, Int32, Schema, String

from app.cluster.name_uses import Audit, NotRead, Use
from app.config.settings import ClientSettings
from app.kafka.admin import AdminClient
from app.kafka.clients import admin, describe
from app.kafka.group_queries import (
    DescribeConsumerGroups,
    DescribeGroups,
    DescribeShareGroups,
    FetchOffsets,
    ListGroups,
)
from app.kafka.queries import (
    DescribeAcls,
    DescribeCluster,
    DescribeQuotas,
    ListConfigResources,
    ListTransactions,
    Query,
)
from transforms.identifiers import IDENTIFIERS, LIMIT_KEY, Kind
from transforms.text import brief

__all__ = ["audit"]

_METADATA_KEY = "offset.metadata.max.bytes"
_GROUPS_AT_ONCE = 100
_NO_AUTHORIZER = 54
_DENIED = frozenset({29, 30, 31, 53})  # topic, group, cluster, transactional id
_PREFIXED = 4
_OFFSET_TYPES = ("classic", "consumer", "streams")
_DESCRIBE = 1 << 8  # bits of the operations that a user may do
_TOPIC = 2
_RESOURCES: Mapping[int, str] = {4: "broker", 8: "broker logger", 16: "client metrics", 32: "group"}
_ACL_RESOURCES: Mapping[int, str] = {
    2: "topic",
    3: "group",
    4: "cluster",
    5: "transactional id",
    6: "delegation token",
    7: "user",
}
_RACKS_SINCE = 3  # version of what a member of a classic group says of itself
_SUBSCRIPTION = Schema(
    ("topics", Array(String("utf-8"))),
    ("user_data", Bytes),
    ("owned_partitions", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))),
    ("generation", Int32),
    ("rack_id", String("utf-8")),
)
_LEFT_OUT = "brokers leave out what a user may not describe, without a word"


async def audit(client: ClientSettings) -> Audit:
    """Reads all names of a cluster that its brokers tell.

    Raises:
        ConfigurationError: no broker answers, or none lets the user in.
    """
    async with admin(client) as connection:
        return await _Reading(connection).read()


@dataclass(slots=True)
class _Seen:
    where: str
    count: int = 0


class _RefusedError(Exception):
    """The broker answered with an error.

    Attributes:
        denied: whether it is one of rights.
    """

    def __init__(self, code: int, message: str | None) -> None:
        super().__init__(_error(code, message))
        self.denied = code in _DENIED


class _Reading:
    """One audit: every part is asked for by itself, and one that fails is noted."""

    def __init__(self, connection: AdminClient) -> None:
        self._connection = connection
        self._seen: dict[tuple[Kind, bool], dict[str, _Seen]] = defaultdict(dict)
        self._not_read: list[NotRead] = []
        self._nodes: list[int] = []
        self._enforced: bool | None = None
        self._metadata_limit = IDENTIFIERS["offset-metadata"].limit
        self._authorizes = True
        self._operations = 0
        self._described: set[str] = set()

    async def read(self) -> Audit:
        """All parts, one after the other."""
        await self._cluster()
        await self._properties()
        await self._acls()
        await self._topics()
        await self._resources()
        await self._quotas()
        for node in self._nodes:
            await self._groups(node)
            await self._transactions(node)
        if self._authorizes and not self._operations & _DESCRIBE:
            self._miss("groups that this user may not describe", f"{_LEFT_OUT}; grant Describe on the cluster")
        if self._authorizes:
            self._miss(
                "transactional ids that this user may not describe",
                f"{_LEFT_OUT}; a super user sees all, and so does one with Describe on all transactional ids",
            )
        self._miss(
            "client ids and rack ids of clients that are in no group",
            "no request of Kafka's lists them; brokers have client ids in their request logs and metrics",
        )
        return Audit(tuple(self._uses()), tuple(self._not_read), self._enforced)

    def _uses(self) -> Iterable[Use]:
        for kind, identifier in IDENTIFIERS.items():
            limit = self._metadata_limit if kind == "offset-metadata" else identifier.limit
            found = [
                Use(kind, text, limit, seen.where, seen.count, judged)
                for judged in (True, False)
                for text, seen in self._seen[kind, judged].items()
            ]
            yield from sorted(found, key=lambda use: (-use.length, use.text))

    def _note(self, kind: Kind, text: str | None, where: str, *, judged: bool = True) -> None:
        if text:
            self._seen[kind, judged].setdefault(text, _Seen(where)).count += 1

    def _miss(self, what: str, reason: str) -> None:
        self._not_read.append(NotRead(what, reason))

    @asynccontextmanager
    async def _part(self, what: str, advice: str = "") -> AsyncIterator[None]:
        """Notes that a part was not read where asking for it fails."""
        try:
            yield
        except _RefusedError as exc:
            self._miss(what, f"{exc}; {advice}" if exc.denied and advice else str(exc))
        except (IncompatibleBrokerVersion, NotImplementedError):
            self._miss(what, "the brokers' version has no such request, or none that is known here")
        except (KafkaError, OSError, TimeoutError, ValueError) as exc:
            self._miss(what, describe(exc))

    async def _ask(self, query: Query, node: int | None = None) -> Any:
        answer = await self._connection.send(query, node)
        code = getattr(answer, "error_code", 0)
        if code not in (0, _NO_AUTHORIZER):
            raise _RefusedError(code, getattr(answer, "error_message", None))
        return answer

    async def _cluster(self) -> None:
        async with self._part("brokers and their racks"):
            for broker in (await self._connection.describe_cluster())["brokers"]:
                self._nodes.append(broker["node_id"])
                self._note("rack-id", broker["rack"], f"broker {broker['node_id']}")
        async with self._part("what this user may do with the cluster"):
            # A bit set that was not computed has its highest bit alone, and is negative.
            self._operations = max(0, (await self._ask(DescribeCluster())).authorized_operations)

    async def _properties(self) -> None:
        if not self._nodes:
            return
        async with self._part("the brokers' own settings of the limits", "grant DescribeConfigs on the cluster"):
            wanted = dict.fromkeys([_METADATA_KEY, LIMIT_KEY])
            resource = ConfigResource(ConfigResourceType.BROKER, str(self._nodes[0]), wanted)
            (response,) = await self._connection.describe_configs([resource])
            (result,) = response.to_object()["resources"]
            if result["error_code"]:
                raise _RefusedError(result["error_code"], result["error_message"])
            found = {entry["config_names"]: entry["config_value"] for entry in result["config_entries"]}
            self._metadata_limit = int(found.get(_METADATA_KEY) or self._metadata_limit)
            self._enforced = found.get(LIMIT_KEY) == "true"

    async def _acls(self) -> None:
        async with self._part("ACLs", "grant Describe on the cluster"):
            answer = await self._ask(DescribeAcls())
            if answer.error_code == _NO_AUTHORIZER:
                self._authorizes = False
                self._miss("ACLs", "no authorizer is configured on the brokers, so none count")
            for type_number, name, pattern, acls in map(_first(4), answer.resources):
                what = f"ACL of {_ACL_RESOURCES.get(type_number, 'resource')} {_named(name, pattern)}"
                self._note("resource-name", name, what)
                for principal, host in map(_first(2), acls):
                    self._note("acl-principal", principal, what)
                    self._note("acl-host", host, what)

    async def _topics(self) -> None:
        async with self._part("topics"):
            self._described = set(await self._connection.list_topics())
            for topic in self._described:
                self._note("topic", topic, "topics")

    async def _resources(self) -> None:
        complete = False
        async with self._part("config resources of groups and client metrics", "grant DescribeConfigs on the cluster"):
            answer = await self._ask(ListConfigResources())
            complete = True
            hidden = 0
            for name, type_number in map(_first(2), answer.resources):
                if type_number != _TOPIC:
                    self._note("resource-name", name, f"configs of {_RESOURCES.get(type_number, 'resource')}")
                elif name not in self._described:
                    hidden += 1
                    self._note("topic", name, "topics")
            if hidden:
                self._miss(
                    f"offset commit metadata of {hidden:,} topics",
                    "this user may not describe them; grant Describe on all topics",
                )
        if self._authorizes and not complete:
            self._miss(
                "topics that this user may not describe, and offset commit metadata of theirs",
                f"{_LEFT_OUT}; grant Describe on all topics",
            )

    async def _quotas(self) -> None:
        async with self._part("quotas", "grant DescribeConfigs on the cluster"):
            for entity, _ in (await self._ask(DescribeQuotas())).entries or ():
                for entity_type, name in entity:
                    kind: Kind = "client-id" if entity_type == "client-id" else "resource-name"
                    self._note(kind, name, f"quota of {entity_type}")

    async def _transactions(self, node: int) -> None:
        async with self._part(f"transactional ids of broker {node}"):
            for name, _, state in map(_first(3), (await self._ask(ListTransactions(), node)).transactions):
                self._note("transactional-id", name, f"transactions, {state}")

    async def _groups(self, node: int) -> None:
        groups: list[Any] = []
        async with self._part(f"groups of broker {node}, their members and offset commit metadata"):
            groups = (await self._ask(ListGroups(), node)).groups
        by_type: dict[str, list[str]] = defaultdict(list)
        for group_id, _, *more in groups:
            kind = more[1].lower() if more else "classic"
            self._note("group-id", group_id, f"groups, {kind}")
            by_type[kind].append(group_id)
        readers: Mapping[str, Callable[[int, Sequence[str]], Awaitable[None]]] = {
            "classic": self._classic,
            "consumer": self._consumer,
            "share": self._share,
        }
        for kind, ids in by_type.items():
            if kind not in readers:
                self._miss(f"members of {_count(ids)}", f"groups of type {kind} are not known here")
                continue
            for batch in _batches(ids):
                async with self._part(f"members of {_count(batch)}"):
                    await readers[kind](node, batch)
        committing = [group for kind in _OFFSET_TYPES for group in by_type.get(kind, ())]
        for batch in _batches(committing):
            async with self._part(f"offset commit metadata of {_count(batch)}"):
                await self._offsets(node, batch)

    def _refused(self, what: str, groups: Iterable[tuple[str, int, str | None]]) -> None:
        """Notes groups that were not described, together where the reason is the same."""
        by_reason: dict[str, list[str]] = defaultdict(list)
        for group, code, message in groups:
            if code:
                by_reason[_error(code, None if message and group in message else message)].append(group)
        for reason, ids in by_reason.items():
            self._miss(f"{what} of {_count(ids)}", reason)

    def _member(self, group: str, member: Any, *, judged: bool) -> None:
        where = f"group {brief(group)}, member on {member['client_host'].lstrip('/')}"
        self._note("member-id", member["member_id"], where, judged=judged)
        self._note("client-id", member["client_id"], where)
        self._note("group-instance-id", member.get("instance_id"), where)
        self._note("rack-id", member.get("rack_id"), where)

    async def _described_by(self, query: Query, node: int) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = (await self._ask(query, node)).to_object()["groups"]
        self._refused("members", ((each["group_id"], each["error_code"], each.get("error_message")) for each in groups))
        return groups

    async def _classic(self, node: int, ids: Sequence[str]) -> None:
        for group in await self._described_by(DescribeGroups(ids), node):
            for member in group["members"]:
                if group["protocol_type"] == "consumer":
                    member["rack_id"] = _rack(member["metadata"])
                self._member(group["group_id"], member, judged=False)

    async def _consumer(self, node: int, ids: Sequence[str]) -> None:
        for group in await self._described_by(DescribeConsumerGroups(ids), node):
            for member in group["members"]:
                self._member(group["group_id"], member, judged=True)

    async def _share(self, node: int, ids: Sequence[str]) -> None:
        for group in await self._described_by(DescribeShareGroups(ids), node):
            for member in group["members"]:
                self._member(group["group_id"], member, judged=True)

    async def _offsets(self, node: int, ids: Sequence[str]) -> None:
        groups = (await self._ask(FetchOffsets(ids), node)).groups
        self._refused("offset commit metadata", ((group, code, None) for group, _, code, _ in groups))
        for group, topics, _, _ in groups:
            for topic, partitions, _ in topics:
                for partition in partitions:
                    self._note("offset-metadata", partition[3], f"group {brief(group)}, {brief(topic)}/{partition[0]}")


def _first(count: int) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """The fields that are looked at: newer versions of a message have more of them, at the end."""
    return lambda fields: fields[:count]


def _error(code: int, message: str | None) -> str:
    if code in _DENIED:
        return "this user may not ask for them"
    return message or describe(for_code(code)())


def _named(name: str, pattern: int) -> str:
    return f"{brief(name)}{'*' if pattern == _PREFIXED else ''}"


def _count(groups: Sequence[str]) -> str:
    return f"group {brief(groups[0])}" if len(groups) == 1 else f"{len(groups):,} groups, {brief(groups[0])} the first"


def _batches(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(ids), _GROUPS_AT_ONCE):
        yield ids[start : start + _GROUPS_AT_ONCE]


def _rack(metadata: bytes) -> str | None:
    """The rack in what a member of a classic group says of itself; None where it says none that can be read."""
    data = BytesIO(metadata)
    try:
        if Int16.decode(data) < _RACKS_SINCE:
            return None
        rack: str | None = _SUBSCRIPTION.decode(data)[-1]
    except (ValueError, TypeError):  # of a client that has its own idea of it
        return None
    return rack
