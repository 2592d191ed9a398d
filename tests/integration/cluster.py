"""A cluster of three embedded brokers with users, TLS, ACLs and disks that fail, for the tests that need one."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.client import CoordinationType
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError
from aiokafka.protocol.admin import DescribeAclsRequest

from app.config.settings import ClientSettings
from app.kafka.clients import admin
from app.kafka.queries import Query, version
from app.local.broker import EmbeddedBroker, new_cluster_id
from tests.integration.names import Names
from tests.integration.worker_process import until
from tests.s3_server import free_port

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
KEY_PASSWORD = "of-a-key"

_NODES = 3
_PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL", "SSL")
_REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.replication.factor": "3",
}
_ALLOW = 3

_ACL = "type:int8 resource:text pattern:int8 principal:text host:text operation:int8 permission:int8"


class _DeleteAcls(Query):
    VERSION = version(
        f"31.1 filters:[{_ACL}]",
        "throttle_time_ms:int32 results:[error_code:int16 error_message:text "
        f"matching:[error_code:int16 error_message:text {_ACL}]]",
        flexible=False,
    )


class Cluster:
    """Three KRaft nodes, each a controller and a broker. Who is on the PLAINTEXT listener may do everything.

    Args:
        folder: for certificates and logs; `ca` is there after the start, `certificate` and `key` of `CN=client` too.
        users: who may log in, by PLAIN and SCRAM, with passwords; what they may do ACLs say.
        properties: more of each node.
        heap: of each node; a longer log takes more when a node starts again.

    Attributes:
        nodes: the brokers; node n has id n + 1.
    """

    def __init__(
        self, folder: Path, users: Mapping[str, str], *, properties: Mapping[str, str] | None = None, heap: str = "256m"
    ) -> None:
        self.ca, self.certificate, self.key = (folder / name for name in ("ca.pem", "client.pem", "client_key.pem"))
        _make_certificates(folder)
        names = ("CONTROLLER", "PLAINTEXT", *_PROTOCOLS)
        ports = [{name: free_port() for name in names} for _ in range(_NODES)]
        voters = ",".join(f"{number}@127.0.0.1:{each['CONTROLLER']}" for number, each in enumerate(ports, 1))
        shared = {**_REPLICATED, **_security(folder, users), "controller.quorum.voters": voters, **(properties or {})}
        identity = new_cluster_id()
        self._logs = folder / "logs"
        self.nodes = [
            EmbeddedBroker(
                {**shared, **self._disks(number), "node.id": str(number)},
                protocols=_PROTOCOLS,
                ports=each,
                cluster_id=identity,
                format_arguments=_scram(users),
                heap=heap,
            )
            for number, each in enumerate(ports, 1)
        ]

    def _disks(self, number: int) -> dict[str, str]:
        disks = [self._logs / f"{number}-{disk}" for disk in ("a", "b")]
        return {"log.dirs": ",".join(map(str, disks)), "metadata.log.dir": str(self._logs / f"{number}-metadata")}

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(_NODES) as pool:  # one alone waits for the others' votes
                list(pool.map(EmbeddedBroker.start, self.nodes))
            until(lambda: len(self.alive()) == _NODES, "the cluster is complete")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends all nodes."""
        for node in self.nodes:
            node.close()
        shutil.rmtree(self._logs, ignore_errors=True)

    @property
    def bootstrap_servers(self) -> str:
        """Where everything is allowed."""
        return self.addresses("PLAINTEXT")

    def addresses(self, protocol: str) -> str:
        """`bootstrap.servers` of the listeners of a protocol."""
        return ",".join(node.address(protocol) for node in self.nodes)

    def make_topic(self, name: str, partitions: int, **configs: str) -> None:
        """Makes a topic of three replicas, and waits until its partitions have leaders."""
        self.make_topics(name, partitions=partitions, configs=configs)

    def make_topics(
        self, *names: str, partitions: int, configs: Mapping[str, str], replicas: Sequence[int] = ()
    ) -> None:
        """As `make_topic`, for several; `replicas` are the ids of the nodes of each partition, the leader first."""
        how: tuple[Any, ...] = (partitions, _NODES)
        if replicas:
            how = -1, -1, {number: list(replicas) for number in range(partitions)}
        topics = [NewTopic(name, *how, topic_configs=dict(configs)) for name in names]

        async def create(client: AIOKafkaAdminClient) -> None:
            answer = await client.create_topics(topics)
            assert not any(code for _, code, *_ in answer.topic_errors), answer

        self._ask(create)
        until(lambda: all(len(self.leaders(name)) == partitions for name in names), "the topics are there")

    def leaders(self, topic: str) -> dict[int, int]:
        """The node ids of the leaders, by partition; without those that have none."""
        described = self._ask(lambda client: client.describe_topics([topic]))
        return {each["partition"]: each["leader"] for each in described[0]["partitions"] if each["leader"] >= 0}

    @contextlib.contextmanager
    def failing_disk(self, number: int, topic: str, partition: int) -> Iterator[None]:
        """Takes from a running node the one of its disks that has a partition; gives it back, and starts it again."""
        (disk,) = (each.parent for each in self._logs.glob(f"{number}-?/{topic}-{partition}"))
        gone = disk.with_name(f"{disk.name}-gone")
        node = self.nodes[number - 1]
        disk.rename(gone)
        try:
            yield
        finally:
            node.kill()
            shutil.rmtree(disk, ignore_errors=True)
            gone.rename(disk)
            node.start()

    def in_sync(self, topic: str, replicas: int = _NODES) -> bool:
        """Whether so many replicas of a topic count as having all records, and no more."""
        described = self._ask(lambda client: client.describe_topics([topic]))
        return all(len(each["isr"]) == replicas for each in described[0]["partitions"])

    def alive(self) -> set[int]:
        """The ids of the brokers that the cluster knows of."""
        described = self._ask(lambda client: client.describe_cluster())
        return {int(broker["node_id"]) for broker in described["brokers"]}

    def coordinator(self, transactional_id: str) -> int:
        """The node id of the coordinator of its transactions."""
        return int(
            self._ask(lambda client: client._client.coordinator_lookup(CoordinationType.TRANSACTION, transactional_id))
        )

    def allow(self, user: str, resource: str, *operations: int, kind: int = 2, pattern: int = 3) -> None:
        """Lets a user do these with a resource: 3 Read, 4 Write, 8 Describe, 10 DescribeConfigs; of kind 2, a topic.

        The resource is that of this name (pattern 3), or all whose names begin so (4).
        """

        async def run() -> None:
            async with admin(ClientSettings(self.bootstrap_servers)) as connection:
                names = Names(self.bootstrap_servers, connection)
                for operation in operations:
                    await names.acl(
                        f"User:{user}", "*", resource, type_number=kind, operation=operation, pattern=pattern
                    )
                await _applied(connection, _filters(user, resource, operations, kind, pattern), there=True)

        asyncio.run(run())

    def forbid(self, user: str, resource: str, *operations: int, kind: int = 2, pattern: int = 3) -> None:
        """Takes these rights from a user."""
        filters = _filters(user, resource, operations, kind, pattern)

        async def run() -> None:
            async with admin(ClientSettings(self.bootstrap_servers)) as connection:
                controller = connection._client.cluster.controller.nodeId
                answer = await connection._send_request(_DeleteAcls(filters=filters), controller)
                assert [len(matching) for _, _, matching in answer.results] == [1] * len(operations), answer
                await _applied(connection, filters, there=False)

        asyncio.run(run())

    def _ask(self, what: Any) -> Any:
        async def run() -> Any:
            client = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
            await client.start()
            try:
                return [await what(client)]
            except (NodeNotReadyError, KafkaConnectionError):
                return None  # it asks any node, also one that is away
            finally:
                await client.close()

        return until(lambda: asyncio.run(run()), "a node answers")[0]


_Filter = tuple[int, str, int, str, str, int, int]


def _filters(user: str, resource: str, operations: Sequence[int], kind: int, pattern: int) -> list[_Filter]:
    return [(kind, resource, pattern, f"User:{user}", "*", operation, _ALLOW) for operation in operations]


async def _applied(connection: AIOKafkaAdminClient, filters: Sequence[_Filter], *, there: bool) -> None:
    """Waits until each node goes by rights that were given or taken: the controller answers a moment before."""

    async def is_there(which: _Filter, node: int) -> bool:
        return bool((await connection._send_request(DescribeAclsRequest(*which), node)).resources)

    async with asyncio.timeout(30):
        for node in connection._client.cluster.brokers():
            for each in filters:
                while await is_there(each, node.nodeId) != there:  # noqa: ASYNC110  # nobody says when
                    await asyncio.sleep(0.01)


def _make_certificates(folder: Path) -> None:
    openssl = shutil.which("openssl")
    assert openssl is not None, "the openssl command is not installed"
    new = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2"
    usage = "-addext keyUsage=critical,keyCertSign,cRLSign"
    signed = "-CA ca.pem -CAkey ca_key.pem -addext basicConstraints=critical,CA:FALSE"
    server = f"{signed} -addext subjectAltName=IP:127.0.0.1"
    for command in (
        f"{new} -nodes -subj /CN=authority {usage} -keyout ca_key.pem -out ca.pem",
        f"{new} -nodes {server} -subj /CN=broker -keyout broker_key.pem -out broker.pem",
        f"{new} -passout pass:{KEY_PASSWORD} {signed} -subj /CN=client -keyout client_key.pem -out client.pem",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    (folder / "keystore.pem").write_text((folder / "broker_key.pem").read_text() + (folder / "broker.pem").read_text())


def _scram(users: Mapping[str, str]) -> list[str]:
    accounts = [f"{each}=[name={name},password={password}]" for name, password in users.items() for each in SCRAM]
    return [argument for account in accounts for argument in ("--add-scram", account)]


def _security(folder: Path, users: Mapping[str, str]) -> dict[str, str]:
    accounts = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {accounts};"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    encrypted, named = (
        [f"listener.name.{protocol.lower()}" for protocol in _PROTOCOLS if word in protocol.split("_")]
        for word in ("SSL", "SASL")
    )
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        **{f"{listener}.sasl.enabled.mechanisms": ",".join(("PLAIN", *SCRAM)) for listener in named},
        **{f"{listener}.plain.sasl.jaas.config": login for listener in named},
        **{f"{listener}.{each.lower()}.sasl.jaas.config": scram for listener in named for each in SCRAM},
        **{f"{listener}.ssl.keystore.type": "PEM" for listener in encrypted},
        **{f"{listener}.ssl.keystore.location": str(folder / "keystore.pem") for listener in encrypted},
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.truststore.type": "PEM",
        "listener.name.ssl.ssl.truststore.location": str(folder / "ca.pem"),
    }
