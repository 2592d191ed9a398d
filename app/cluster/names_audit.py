"""The audit of the names of a live cluster: which of them a limit would refuse."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, for_code
from aiokafka.protocol.admin import DescribeAclsRequest, DescribeClientQuotasRequest
from aiokafka.protocol.commit import OffsetFetchRequest

from app.cluster.enforced_limits import limits_of
from app.cluster.name_uses import Audit, NotRead, Use
from app.config.settings import ClientSettings
from app.kafka.admin import AdminClient
from app.kafka.clients import admin, describe
from app.kafka.queries import (
    GROUP_TYPES,
    DescribeCluster,
    DescribeGroups,
    DescribeScramUsers,
    ListConfigResources,
    ListGroups,
    ListTransactions,
    rack_of,
)
from transforms.identifiers import IDENTIFIERS, Kind
from transforms.text import brief

_GROUPS_AT_ONCE = 100
_NO_AUTHORIZER = 54
_DENIED = frozenset({29, 30, 31, 53})  # topic, group, cluster, transactional id
_ANY = 1  # in a filter of ACLs
_PREFIXED = 4
_OFFSET_TYPES = ("classic", "consumer", "streams")
_DESCRIBE = 1 << 8  # the bit of this operation in the operations that the user may do
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
_LEFT_OUT = "brokers omit names that a user may not describe, without reporting it"


async def audit(client: ClientSettings) -> Audit:
    """Reads all names of a cluster that its brokers return.

    Raises:
        ConfigurationError: no broker answers, or none accepts the login.
    """
    async with admin(client) as connection:
        return await _Reading(connection).read()


class _RefusedError(Exception):
    """The broker answered with an error.

    Attributes:
        denied: whether the user lacks a permission.
    """

    def __init__(self, code: int, message: str | None) -> None:
        super().__init__(_error(code, message))
        self.denied = code in _DENIED


class _Reading:
    """One audit. Each part is read by itself; a part that fails is noted, and the next one is read."""

    def __init__(self, connection: AdminClient) -> None:
        self._connection = connection
        self._first: dict[tuple[Kind, str, bool], str] = {}  # the first place of a name, by kind and if it is limited
        self._counts: Counter[tuple[Kind, str, bool]] = Counter()
        self._not_read: list[NotRead] = []
        self._nodes: list[int] = []
        self._enforced: bool | None = None
        self._metadata_limit = IDENTIFIERS["offset-metadata"].limit
        self._authorizes = True
        self._operations = 0
        self._described: set[str] = set()

    async def read(self) -> Audit:
        """Reads all parts, one after the other."""
        await self._cluster()
        await self._properties()
        await self._acls()
        await self._topics()
        await self._resources()
        await self._quotas()
        await self._users()
        for node in self._nodes:
            await self._groups(node)
            await self._transactions(node)
        if self._authorizes and not self._operations & _DESCRIBE:
            self._miss("groups that this user may not describe", f"{_LEFT_OUT}; grant Describe on the cluster")
        if self._authorizes:
            self._miss(
                "transactional ids that this user may not describe",
                f"{_LEFT_OUT}; a super user sees all, and so does a user with Describe on all transactional ids",
                failed=False,
            )
        self._miss(
            "client ids and rack ids of clients that are in no group",
            "no request of Kafka lists them; brokers have client ids in their request logs and metrics",
            failed=False,
        )
        return Audit(tuple(self._uses()), tuple(self._not_read), self._enforced)

    def _uses(self) -> Iterable[Use]:
        limits = {kind: each.limit for kind, each in IDENTIFIERS.items()} | {"offset-metadata": self._metadata_limit}
        uses = [
            Use(kind, text, limits[kind] if limited else None, where, self._counts[kind, text, limited])
            for (kind, text, limited), where in self._first.items()
        ]
        kinds = list(IDENTIFIERS)
        return sorted(uses, key=lambda use: (kinds.index(use.kind), -use.length, use.text))

    def _note(self, kind: Kind, text: str | None, where: str, *, limited: bool = True) -> None:
        if text:
            self._first.setdefault((kind, text, limited), where)
            self._counts[kind, text, limited] += 1

    def _miss(self, what: str, reason: str, *, failed: bool = True) -> None:
        self._not_read.append(NotRead(what, reason, failed))

    @asynccontextmanager
    async def _part(self, what: str, advice: str = "") -> AsyncIterator[None]:
        """Notes that a part was not read if its requests fail."""
        try:
            yield
        except _RefusedError as exc:
            self._miss(what, f"{exc}; {advice}" if exc.denied and advice else str(exc))
        except (IncompatibleBrokerVersion, NotImplementedError):
            self._miss(what, "the brokers do not support the request, or no version of it that Wideload supports")
        except (KafkaError, OSError, TimeoutError, ValueError) as exc:
            self._miss(what, describe(exc))

    async def _ask(self, request: Any, node: int | None = None) -> Any:
        response = await self._connection.send(request, node)
        code = getattr(response, "error_code", 0)
        if code not in (0, _NO_AUTHORIZER):
            raise _RefusedError(code, getattr(response, "error_message", None))
        return response

    async def _cluster(self) -> None:
        async with self._part("brokers and their racks"):
            for broker in (await self._connection.describe_cluster())["brokers"]:
                self._nodes.append(broker["node_id"])
                self._note("rack-id", broker["rack"], f"broker {broker['node_id']}")
        async with self._part("the operations on the cluster that this user may do"):
            # A broker that has not computed the bit set returns the highest bit alone: a negative number.
            response = await self._ask(DescribeCluster(include_authorized_operations=True))
            self._operations = max(0, response.authorized_operations)

    async def _properties(self) -> None:
        """Reads those of each broker: the strictest one counts, as it may be the coordinator of any group."""
        sizes: list[int] = []
        for node in self._nodes:
            async with self._part(f"the settings of the limits of broker {node}"):
                try:
                    found = await limits_of(self._connection, node)
                except KafkaError as exc:
                    denied = exc.errno in _DENIED
                    self._miss(
                        f"the settings of the limits of broker {node}",
                        f"{_error(exc.errno, None)}; grant DescribeConfigs on the cluster" if denied else describe(exc),
                    )
                    continue
                self._enforced = bool(self._enforced) or found.enforced
                if found.metadata_bytes is not None:
                    sizes.append(found.metadata_bytes)
        self._metadata_limit = min(sizes, default=self._metadata_limit)

    async def _acls(self) -> None:
        async with self._part("ACLs", "grant Describe on the cluster"):
            response = await self._ask(DescribeAclsRequest(_ANY, None, _ANY, None, None, _ANY, _ANY))
            if response.error_code == _NO_AUTHORIZER:
                self._authorizes = False
                told = "no authorizer is configured on the brokers, so ACLs have no effect"
                self._miss("ACLs", told, failed=False)
            for resource in response.to_object()["resources"]:
                name, type_name = resource["resource_name"], _ACL_RESOURCES.get(resource["resource_type"], "resource")
                prefixed = resource.get("resource_pattern_type") == _PREFIXED
                where = f"ACL of {type_name} {brief(name)}{'*' if prefixed else ''}"
                self._note("resource-name", name, where)
                for acl in resource["acls"]:
                    self._note("acl-principal", acl["principal"], where)
                    self._note("acl-host", acl["host"], where)

    async def _topics(self) -> None:
        async with self._part("topics"):
            self._described = set(await self._connection.list_topics())
            for topic in self._described:
                self._note("topic", topic, "topics")

    async def _resources(self) -> None:
        complete = False
        async with self._part("config resources of groups and client metrics", "grant DescribeConfigs on the cluster"):
            response = await self._ask(ListConfigResources())
            complete = True
            hidden = 0
            for name, type_number, _ in response.resources:
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
                "topics that this user may not describe, and their offset commit metadata",
                f"{_LEFT_OUT}; grant Describe on all topics",
            )

    async def _quotas(self) -> None:
        async with self._part("quotas", "grant DescribeConfigs on the cluster"):
            for entity, _ in (await self._ask(DescribeClientQuotasRequest([], strict=False))).entries or ():
                for entity_type, name in entity:
                    kind: Kind = "client-id" if entity_type == "client-id" else "resource-name"
                    self._note(kind, name, f"quota of {entity_type}")

    async def _users(self) -> None:
        async with self._part("SCRAM users", "grant Describe on the cluster"):
            for user, *_ in (await self._ask(DescribeScramUsers())).results:
                self._note("acl-principal", f"User:{user}", "SCRAM users")

    async def _transactions(self, node: int) -> None:
        async with self._part(f"transactional ids of broker {node}"):
            for name, _, state, _ in (await self._ask(ListTransactions(), node)).transactions:
                self._note("transactional-id", name, f"transactions, {state}")

    async def _groups(self, node: int) -> None:
        groups: list[Any] = []
        async with self._part(f"groups of broker {node}, their members and offset commit metadata"):
            groups = (await self._ask(ListGroups(), node)).groups
        by_type: dict[str, list[str]] = defaultdict(list)
        for group_id, _, *more in groups:
            group_type = more[1].lower() if more else "classic"
            self._note("group-id", group_id, f"groups, {group_type}")
            by_type[group_type].append(group_id)
        for group_type, ids in by_type.items():
            if group_type not in GROUP_TYPES:
                self._miss(f"members of {_count(ids)}", f"Wideload cannot describe groups of type {group_type} yet")
                continue
            for batch in _batches(ids):
                async with self._part(f"members of {_count(batch)}"):
                    await self._members(node, group_type, batch)
        committing = [group for group_type in _OFFSET_TYPES for group in by_type.get(group_type, ())]
        for batch in _batches(committing):
            async with self._part(f"offset commit metadata of {_count(batch)}"):
                await self._offsets(node, batch)

    def _refused(self, what: str, groups: Iterable[tuple[str, int, str | None]]) -> None:
        """Notes the groups that brokers refuse to describe; groups with the same reason make one note."""
        by_reason: dict[str, list[str]] = defaultdict(list)
        for group, code, message in groups:
            if code:
                by_reason[_error(code, None if message and group in message else message)].append(group)
        for reason, ids in by_reason.items():
            self._miss(f"{what} of {_count(ids)}", reason)

    async def _members(self, node: int, group_type: str, ids: Sequence[str]) -> None:
        groups = (await self._ask(DescribeGroups(ids, group_type), node)).to_object()["groups"]
        self._refused("members", ((each["group_id"], each["error_code"], each.get("error_message")) for each in groups))
        for group in groups:
            for member in group["members"]:
                where = f"group {brief(group['group_id'])}, member on {member['client_host'].lstrip('/')}"
                self._note("member-id", member["member_id"], where, limited=group_type != "classic")
                self._note("client-id", member["client_id"], where)
                self._note("group-instance-id", member.get("instance_id"), where)
                subscribes = group.get("protocol_type") == "consumer"
                self._note("rack-id", rack_of(member["metadata"]) if subscribes else member.get("rack_id"), where)

    async def _offsets(self, node: int, ids: Sequence[str]) -> None:
        # aiokafka's `list_consumer_group_offsets` hides the coordinator's error: it returns that there are no offsets.
        requests = (self._connection.send(OffsetFetchRequest(group, None), node) for group in ids)
        responses = dict(zip(ids, await asyncio.gather(*requests), strict=True))
        self._refused("offset commit metadata", ((group, each.error_code, None) for group, each in responses.items()))
        for group, response in responses.items():
            for topic, partitions in response.topics:
                for partition, _, metadata, _ in partitions:
                    self._note("offset-metadata", metadata, f"group {brief(group)}, {brief(topic)}/{partition}")


def _error(code: int, message: str | None) -> str:
    if code in _DENIED:
        return "this user may not ask for them"
    return message or describe(for_code(code)())


def _count(groups: Sequence[str]) -> str:
    return f"group {brief(groups[0])}" if len(groups) == 1 else f"{len(groups):,} groups, {brief(groups[0])} the first"


def _batches(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(ids), _GROUPS_AT_ONCE):
        yield ids[start : start + _GROUPS_AT_ONCE]
