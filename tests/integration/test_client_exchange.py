"""Every client and the worker write, and every client and the worker read what the others have written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.serializers import LargeMessageDeserializer, LargeMessageSerializer
from tests.integration.aiokafka_records import Source, produce
from tests.integration.client_config import LARGE, Config, on_s3, to_json, worker_both_ways
from tests.integration.client_readers import READERS, Client, ConfluentsOwn
from tests.integration.client_stores import delete_payloads, run_example
from tests.integration.client_writers import STORES
from tests.integration.faust_process import FaustProcess, digest
from tests.integration.topics import end_offsets, read_all, send
from tests.integration.way import MakeTopic
from tests.integration.worker_process import until
from tests.s3_server import S3Server

VALUES = [b"small", LARGE, b"x" * 2_000_000, None]
HEADERS: list[tuple[str, bytes | None]] = [("a", b"1"), ("b", b"2")]
_KEY_IDS = ["worker", *(each.__name__ for each in STORES)]
_SECRETS = {name: f"{number:02x}" * 32 for number, name in enumerate(_KEY_IDS)}


@pytest.mark.matrix
@pytest.mark.parametrize("encrypted", [False, True], ids=["compressed", "encrypted"])
async def test_clients_and_workers_read_each_other(
    broker: str,
    make_topic: MakeTopic,
    versitygw: S3Server,
    tmp_path: Path,
    encrypted: bool,  # noqa: FBT001
) -> None:
    """References of the producers, and of a worker's `offload`, are restored by consumers and by `inflate`."""
    raw, topic, inflated = (make_topic(**{"max.message.bytes": 4_000_000}) for _ in range(3))
    keys = [f"{name}:{secret}" for name, secret in _SECRETS.items()]
    previous: Config = {"large.message.encryption.previous.keys": ",".join(keys)} if encrypted else {}
    key = b"k" if encrypted else b"k" * 2_000

    def writing(name: str) -> Config:
        if not encrypted:
            return {**on_s3(versitygw), "large.message.compression.type": "zstd"}
        return {
            **on_s3(versitygw),
            "large.message.encryption.type": "aes-256-gcm",
            "large.message.encryption.key.id": name,
            "large.message.encryption.key.secret": _SECRETS[name],
        }

    reading: Config = {**on_s3(versitygw), **previous}
    both = {**writing("worker"), **dict.fromkeys(previous, keys), "consumer.auto.offset.reset": "earliest"}
    count = len(VALUES) * (1 + len(STORES))
    with worker_both_ways(tmp_path, broker, both, offload=(raw, topic), inflate=(topic, inflated)):
        await asyncio.to_thread(send, broker, raw, [(0, key, value, HEADERS, 1_700_000_000_000) for value in VALUES])
        await asyncio.to_thread(until, lambda: end_offsets(broker, topic) == {0: len(VALUES)}, "all is offloaded")
        for writer in STORES:
            stages: Config = {"value.serializer": LargeMessageSerializer}
            if not encrypted:
                stages["key.serializers"] = [LargeMessageSerializer]
            async with writer({"bootstrap.servers": broker, **stages, **writing(writer.__name__)}) as producer:
                for value in VALUES:
                    await producer.send(topic, value, key, headers=list(HEADERS))
        await asyncio.to_thread(until, lambda: end_offsets(broker, inflated) == {0: count}, "all is inflated")
    expected = [(key, value, HEADERS) for value in VALUES] * (1 + len(STORES))
    found = (await asyncio.to_thread(read_all, broker, inflated))[0]
    assert [(each.key, each.value, list(each.headers)) for each in found] == expected
    if encrypted:
        headers = [dict(each.headers) for each in (await asyncio.to_thread(read_all, broker, topic))[0]]
        ids = [each.get("large-message.encryption.key", b"") for each in headers[1::4]]
        assert ids == [name.encode() for name in _KEY_IDS]

    async def check(client: Client) -> None:
        large = {"value.deserializer": LargeMessageDeserializer, "key.deserializer": LargeMessageDeserializer}
        group = {"group.id": f"{topic}-{client.__name__}"}
        async with client(Source(broker, topic), {**large, **reading, **group}) as reader:
            records = await reader.read(count)
        assert [(each.key, each.value, each.headers) for each in records] == expected

    await asyncio.gather(*map(check, READERS), check(ConfluentsOwn))
    with FaustProcess(tmp_path / "faust", broker, topic, reading, keys=True) as faust:
        events = await asyncio.to_thread(faust.events, count)
    assert [each["value"] for each in events] == [digest(value) for _, value, _ in expected]
    assert {each["key"].encode() for each in events} == {key}


@pytest.mark.parametrize("client", ["confluent", "aiokafka", "kafka_python"])
async def test_the_examples(broker: str, make_topic: MakeTopic, versitygw: S3Server, client: str) -> None:
    """A script of the documentation passes over a payload that is gone, and reads what it has sent."""
    topic = make_topic()
    await produce(broker, {**on_s3(versitygw), "s3.prefix": ""}, topic, [to_json({"id": 0, "scan": "y" * 5_000})])
    await asyncio.to_thread(delete_payloads, versitygw, broker, topic, 0)
    printed = await asyncio.to_thread(run_example, f"{client}_client.py", broker, topic, versitygw)
    gone, sent = printed.splitlines()
    assert f"topic {topic} partition 0 offset 0 " in gone
    assert "there is no payload at" in gone
    assert sent.startswith("offset 1: order ")
    assert sent.endswith(" 5,000,000 characters")
