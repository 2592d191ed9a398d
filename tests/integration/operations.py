"""What an operator does to a cluster while workers run: groups, topics, and the passwords of users."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from aiokafka.admin import NewTopic
from aiokafka.errors import for_code
from aiokafka.protocol.admin import DeleteGroupsRequest
from aiokafka.protocol.group import LeaveGroupRequest

from app.config.settings import ClientSettings
from app.kafka.admin import AdminClient
from app.kafka.clients import admin
from app.kafka.queries import Query, version
from app.kafka.topics import Topic, topics
from tests.integration.worker_process import until

_SCRAM_SHA_256 = 1
_ITERATIONS = 4096

_T = TypeVar("_T")


class _AlterPasswords(Query):
    VERSION = version(
        "51.0 deletions:[name:text mechanism:int8] "
        "upsertions:[name:text mechanism:int8 iterations:int32 salt:bytes salted_password:bytes]",
        "throttle_time_ms:int32 results:[user:text error_code:int16 error_message:text]",
    )


class Operations:
    """Commands for one cluster, each with a connection of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def create_topic(self, name: str, configs: Mapping[str, object], partitions: int = 1) -> None:
        """Makes a topic, and waits until it is there."""
        new = NewTopic(name, partitions, 1, topic_configs={key: str(value) for key, value in configs.items()})

        async def create(client: AdminClient) -> None:
            answer = await client.create_topics([new])
            assert [code for _, code, *_ in answer.topic_errors] == [0], answer

        self._run(create)
        until(lambda: self.topic(name), f"topic {name} is there")

    def delete_topic(self, name: str) -> None:
        """Deletes a topic; does not wait until each broker has heard of it."""
        self._run(lambda client: client.delete_topics([name]))

    def remove_topic(self, name: str) -> None:
        """Deletes a topic, and waits until the broker knows: who makes it again could write to the former one."""
        self.delete_topic(name)
        until(lambda: self.topic(name) is None, f"topic {name} is gone")

    def topic(self, name: str) -> Topic | None:
        """A topic as it is now; None if there is none."""
        return self._run(lambda client: _topic(client, name))

    def members(self, group: str) -> list[str]:
        """The ids of the members of a group."""

        async def describe(client: AdminClient) -> list[str]:
            (answer,) = await client.describe_consumer_groups([group])
            return [member[0] for member in answer.groups[0][5]]

        return self._run(describe)

    def remove_members(self, group: str) -> None:
        """Takes all members out of a group, as brokers do with a member that they do not hear of for a session."""

        async def remove(client: AdminClient) -> None:
            node = await client.find_coordinator(group)
            (answer,) = await client.describe_consumer_groups([group])
            for member, *_ in answer.groups[0][5]:
                left = await client.send(LeaveGroupRequest(group, member), node)
                assert left.error_code == 0, left

        self._run(remove)

    def delete_group(self, group: str) -> str:
        """Deletes a group with its offsets; returns the name of the error, "NoError" for none."""

        async def delete(client: AdminClient) -> str:
            answer = await client.send(DeleteGroupsRequest([group]), await client.find_coordinator(group))
            ((_, code),) = answer.results
            return str(for_code(code).__name__)

        return self._run(delete)

    def set_password(self, user: str, password: str | None) -> None:
        """Gives a user a password for SCRAM-SHA-256, or takes it away. Connections that there are go on."""
        salt = os.urandom(16)
        taken: list[tuple[Any, ...]] = []
        given: list[tuple[Any, ...]] = []
        if password is None:
            taken = [(user, _SCRAM_SHA_256, {})]
        else:
            salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ITERATIONS)
            given = [(user, _SCRAM_SHA_256, _ITERATIONS, salt, salted, {})]

        async def alter(client: AdminClient) -> None:
            answer = await client.send(_AlterPasswords(deletions=taken, upsertions=given))
            assert [code for _, code, *_ in answer.results] == [0], answer

        self._run(alter)

    def _run(self, what: Callable[[AdminClient], Awaitable[_T]]) -> _T:
        async def run() -> _T:
            async with admin(ClientSettings(self.bootstrap)) as client:
                return await what(client)

        return asyncio.run(run())


async def _topic(client: AdminClient, name: str) -> Topic | None:
    found: Mapping[str, Any] = await topics(client, [name])
    return found.get(name)
