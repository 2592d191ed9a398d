"""Names of any length in a real cluster, by requests of our own: clients refuse some of what brokers take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from confluent_kafka import Consumer

from app.kafka.queries import Query, version

_LOAD_SECONDS = 30
_LOADING = {14, 15, 16}  # the coordinator is loading, not available, another one
_HEARD = "throttle_time_ms:int32 error_code:int16 error_message:text member_id:text epoch:int32 interval_ms:int32"
# … and an assignment, which nobody here looks at


class _ConsumerHeartbeat(Query):
    VERSION = version(
        "68.1 group:text member_id:text epoch:int32 instance_id:text rack_id:text timeout_ms:int32 topics:[text] "
        "regex:text assignor:text partitions:[int32]",
        _HEARD,
    )


class _ShareHeartbeat(Query):
    VERSION = version("76.1 group:text member_id:text epoch:int32 rack_id:text topics:[text]", _HEARD)


_TEXTS = "[key:text value:text]"
_TOPICS = f"[name:text partitions:int32 replication_factor:int16 configs:{_TEXTS}]"
_TASKS = "[subtopology:text partitions:[int32]]"
_TASK_OFFSETS = "[subtopology:text partition:int32 offset:int64]"
_SUBTOPOLOGY = (
    f"subtopology:text sources:[text] source_regex:[text] changelogs:{_TOPICS} repartition_sinks:[text] "
    f"repartition_sources:{_TOPICS} copartition:[sources:[int16] regex:[int16] repartition:[int16]]"
)


class _StreamsHeartbeat(Query):
    VERSION = version(
        "88.0 group:text member_id:text epoch:int32 endpoint_epoch:int32 instance_id:text rack_id:text "
        f"timeout_ms:int32 topology:{{epoch:int32 subtopologies:[{_SUBTOPOLOGY}]}} active:{_TASKS} standby:{_TASKS} "
        f"warmup:{_TASKS} process_id:text endpoint:{{host:text port:int16}} client_tags:{_TEXTS} "
        f"task_offsets:{_TASK_OFFSETS} task_end_offsets:{_TASK_OFFSETS} shutdown:boolean",
        _HEARD,
    )


class _CreateAcls(Query):
    VERSION = version(
        "30.1 acls:[resource_type:int8 resource_name:text pattern_type:int8 principal:text host:text operation:int8 "
        "permission_type:int8]",
        "throttle_time_ms:int32 results:[error_code:int16 error_message:text]",
        flexible=False,
    )


_ENTITY = "[entity_type:text entity_name:text]"


class _AlterQuotas(Query):
    VERSION = version(
        f"49.0 entries:[entity:{_ENTITY} ops:[key:text value:float64 remove:boolean]] validate_only:boolean",
        f"throttle_time_ms:int32 entries:[error_code:int16 error_message:text entity:{_ENTITY}]",
        flexible=False,
    )


class _AlterConfigs(Query):
    VERSION = version(
        "44.0 resources:[resource_type:int8 resource_name:text configs:[name:text operation:int8 value:text]] "
        "validate_only:boolean",
        "throttle_time_ms:int32 responses:[error_code:int16 error_message:text resource_type:int8 resource_name:text]",
        flexible=False,
    )


class _AlterScramUsers(Query):
    VERSION = version(
        "51.0 deletions:[name:text mechanism:int8] "
        "upsertions:[name:text mechanism:int8 iterations:int32 salt:bytes salted_password:bytes]",
        "throttle_time_ms:int32 results:[user:text error_code:int16 error_message:text]",
    )


class _CommitOffsets(Query):
    VERSION = version(
        "8.2 group:text generation:int32 member_id:text retention_ms:int64 "
        "topics:[topic:text partitions:[partition:int32 offset:int64 metadata:text]]",
        "topics:[topic:text partitions:[partition:int32 error_code:int16]]",
        flexible=False,
    )


class Names:
    """Makes names; what one of the methods has made is there when it returns.

    Args:
        bootstrap: of a cluster of one broker.
        connection: to it.
    """

    def __init__(self, bootstrap: str, connection: AIOKafkaAdminClient) -> None:
        self._bootstrap = bootstrap
        self._connection = connection
        self._running: list[AIOKafkaConsumer] = []
        self._with_rack: list[Consumer] = []

    async def close(self) -> None:
        """Ends what still runs."""
        for each in self._running:
            await each.stop()
        for rack in self._with_rack:
            await asyncio.to_thread(rack.close)

    async def topic(self, name: str) -> int:
        """The error code of creating it."""
        response = await self._connection.create_topics([NewTopic(name, 1, 1)])
        return int(response.topic_errors[0][1])

    async def acl(
        self,
        principal: str = "User:a",
        host: str = "*",
        resource: str = "t",
        type_number: int = 2,
        operation: int = 3,
        pattern: int = 3,
    ) -> None:
        """Lets `principal` do `operation` (3: Read) with a resource (2: a topic) of this name (3), or prefix (4)."""
        answer = await self._ask(
            _CreateAcls(acls=[(type_number, resource, pattern, principal, host, operation, 3)]),
        )
        assert [code for code, _ in answer.results] == [0], answer

    async def quota(self, entity_type: str, name: str) -> None:
        """Bounds what a client id, or a user, may write."""
        entry = ([(entity_type, name)], [("producer_byte_rate", 1e9, False)])
        answer = await self._ask(_AlterQuotas(entries=[entry], validate_only=False))
        assert answer.entries[0][0] == 0, answer

    async def scram_user(self, name: str) -> None:
        """A user with a password for SCRAM-SHA-256 (1)."""
        no_tags: Mapping[int, bytes] = {}
        user = (name, 1, 4096, b"s" * 16, b"p" * 32, no_tags)
        answer = await self._ask(_AlterScramUsers(deletions=[], upsertions=[user]))
        assert answer.results[0][1] == 0, answer

    async def group_config(self, group: str) -> None:
        """Sets a property of a group."""
        configs = [("consumer.session.timeout.ms", 0, "50000")]
        answer = await self._ask(_AlterConfigs(resources=[(32, group, configs)], validate_only=False))
        assert answer.responses[0][0] == 0, answer

    async def commit(self, group: str, topic: str, metadata: str) -> int:
        """The error code of a commit with this metadata."""
        query = _CommitOffsets(
            group=group, generation=-1, member_id="", retention_ms=-1, topics=[(topic, [(0, 0, metadata)])]
        )
        deadline = time.monotonic() + _LOAD_SECONDS
        while True:
            answer = await self._ask(query)
            code = int(answer.topics[0][1][0][1])
            if code not in _LOADING or time.monotonic() > deadline:
                return code
            await asyncio.sleep(0.1)

    async def classic_member(self, group: str, topic: str, **arguments: Any) -> None:
        """A consumer of the classic protocol, which stays."""
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=self._bootstrap, group_id=group, auto_offset_reset="earliest", **arguments
        )
        self._running.append(consumer)
        await consumer.start()
        deadline = time.monotonic() + _LOAD_SECONDS
        while not consumer.assignment():
            assert time.monotonic() < deadline, f"group {group} gave no partition"
            await consumer.getmany(timeout_ms=100)

    async def rack_member(self, group: str, topic: str, rack: str) -> None:
        """A consumer of librdkafka's, which tells its group where it is; it stays."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "client.rack": rack,
                "client.id": "with-a-rack",
                "partition.assignment.strategy": "range",
            }
        )
        self._with_rack.append(consumer)
        consumer.subscribe([topic])
        deadline = time.monotonic() + _LOAD_SECONDS
        while not consumer.assignment():
            assert time.monotonic() < deadline, f"group {group} gave no partition"
            await asyncio.to_thread(consumer.poll, 0.2)

    async def transactions(self, transactional_id: str) -> None:
        """A producer that has asked for this id."""
        async with AIOKafkaProducer(bootstrap_servers=self._bootstrap, transactional_id=transactional_id):
            pass

    async def consumer_member(
        self, group: str, member_id: str, instance_id: str | None = None, rack_id: str | None = None
    ) -> None:
        """A member of a group of KIP-848, until its session ends."""
        await self._join(
            _ConsumerHeartbeat(
                group=group,
                member_id=member_id,
                epoch=0,
                instance_id=instance_id,
                rack_id=rack_id,
                timeout_ms=60_000,
                topics=["t"],
                regex=None,
                assignor=None,
                partitions=[],
            )
        )

    async def share_member(self, group: str, member_id: str, rack_id: str | None = None) -> None:
        """A member of a share group, until its session ends."""
        await self._join(_ShareHeartbeat(group=group, member_id=member_id, epoch=0, rack_id=rack_id, topics=["t"]))

    async def streams_member(self, group: str, member_id: str, instance_id: str | None, rack_id: str) -> None:
        """A member of a streams group that reads the topic `t`, until its session ends."""
        no_tags: Mapping[int, bytes] = {}
        subtopology: tuple[Any, ...] = ("0", ["t"], [], [], [], [], [], no_tags)
        await self._join(
            _StreamsHeartbeat(
                group=group,
                member_id=member_id,
                epoch=0,
                endpoint_epoch=0,
                instance_id=instance_id,
                rack_id=rack_id,
                timeout_ms=60_000,
                topology=(1, [subtopology], no_tags),
                active=[],
                standby=[],
                warmup=[],
                process_id="p",
                endpoint=("localhost", 1, no_tags),
                client_tags=[],
                task_offsets=None,
                task_end_offsets=None,
                shutdown=False,
            )
        )

    async def _join(self, query: Query) -> None:
        deadline = time.monotonic() + _LOAD_SECONDS
        while True:
            answer = await self._ask(query)
            if answer.error_code not in _LOADING or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
        assert answer.error_code == 0, answer

    async def _ask(self, query: Query) -> Any:
        return await self._connection._send_request(query)


def properties(users: Mapping[str, str]) -> dict[str, str]:
    """Of a broker with the standard authorizer, where PLAINTEXT may do all, and these users log in over SASL."""
    accounts = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required {accounts};"
        ),
    }
