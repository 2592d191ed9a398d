"""Every name that is given to Kafka is held to its limit before a request is made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import faust
import pytest
from aiokafka import AIOKafkaConsumer
from click.testing import CliRunner

from app.chunks.consumer import AssemblingConsumer
from app.chunks.producer import ChunkingProducer
from app.cli import cli
from app.commands.connection import client_of
from app.commands.names import _table
from app.config.naming import client_id
from app.config.parsing import parse
from app.config.settings import Settings
from app.serializers import confluent, kafka_python
from app.serializers.aiokafka import DeserializingConsumer, SerializingProducer
from app.serializers.composable import ComposableSerializer
from app.serializers.faust import LargeMessageSchema, LargeMessageTopic
from transforms.commit_metadata import MOST_BYTES, note
from transforms.errors import ConfigurationError, ResourceIdentifierTooLargeError, SerializationError
from transforms.identifiers import LIMIT_KEY, check
from transforms.text import brief

FITS, OVER = "x" * 249, "x" * 250
WAY_OUT = f", or set {LIMIT_KEY} = false if the brokers accept it"
DLQ = "errors.deadletterqueue.topic.name"


def settings(worker: Mapping[str, object] = {}, pipeline: Mapping[str, object] = {}, name: str = "p") -> Settings:
    """Of a worker with one pipeline."""
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": ["inflate"], **pipeline}
    more = {"large.message.payload.store.class": "memory", "errors.tolerance": "all", DLQ: "dlq"}
    return parse({"bootstrap.servers": "b:1", **worker, "pipeline": {name: {**more, **table}}})


def refusal(make: Callable[[], object]) -> str:
    """What a configuration is refused with."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "kind", "way_out"),
    [
        ("group.id", "group id", WAY_OUT),
        ("consumer.group.instance.id", "group instance id", WAY_OUT),
        ("consumer.client.rack", "rack id", WAY_OUT),
        ("topics", "topic name", ""),
        ("output.topic", "topic name", ""),
        (DLQ, "topic name", ""),
    ],
)
def test_pipeline_name_over_the_limit(key: str, kind: str, way_out: str) -> None:
    """The message says which name of which pipeline, its length, the limit, the key, and the way out where one is."""
    fits, over = ([["raw", each] if key == "topics" else each] for each in (FITS, OVER))
    settings(pipeline={key: fits[0]})
    assert refusal(lambda: settings(pipeline={key: over[0]})) == (
        f"[pipeline.p] {key}: the {kind} has 250 characters, allowed are 249; shorten it{way_out}"
    )


def test_client_id_over_the_limit() -> None:
    """The worker's own client id is checked, and the one that is made of it and of the pipeline's name."""
    assert refusal(lambda: settings({"client.id": OVER})) == (
        f"client.id: the client id has 250 characters, allowed are 249; shorten it{WAY_OUT}"
    )
    settings({"client.id": "c" * 244}, name="p" * 4)
    assert refusal(lambda: settings({"client.id": "c" * 244}, name="p" * 5)) == (
        "[pipeline.ppppp] client.id: the client id, which is built from client.id and the pipeline's name, has 250 "
        f"characters, allowed are 249; shorten client.id and the pipeline's name{WAY_OUT}"
    )
    (pipeline,) = settings(name="p" * 200).pipelines
    check("group-id", pipeline.group_id)


def test_limits_off() -> None:
    """`resource.identifier.limit.enable = false` lets pass what Kafka 4.x takes, and nothing that it does not."""
    off = {LIMIT_KEY: False}
    found = settings({**off, "client.id": OVER}, {"group.id": OVER, "consumer.client.rack": OVER})
    assert found.client.limit_names is False
    assert client_id(found.client, "p") == f"{OVER}-p"
    assert refusal(lambda: settings(off, {"output.topic": OVER})).endswith("allowed are 249; shorten it")
    assert refusal(lambda: settings(off, {"group.id": "x" * 32_768})) == (
        "[pipeline.p] group.id: the group id has 32,768 bytes, allowed are 32,767; shorten it"
    )
    of_command = client_of("b:1", None, [f"{LIMIT_KEY}=false", f"client.id={OVER}"], {})
    assert (of_command.client_id, of_command.limit_names) == (OVER, False)
    assert refusal(lambda: client_of("b:1", None, [f"client.id={OVER}"], {})).startswith("client.id: the client id has")


def test_commit_metadata_is_short() -> None:
    """What is committed beside an offset is far within the limit, whatever the offset."""
    longest = note(0, 2**63 - 1, ["x" * 22] * 32)
    check("offset-metadata", longest)
    assert len(longest.encode()) == MOST_BYTES == 780


READS, WRITES = ["client.id", "group.id", "group.instance.id", "client.rack"], ["client.id", "transactional.id"]
CLIENTS: list[tuple[Callable[[Mapping[str, object]], object], list[str]]] = [
    (SerializingProducer, WRITES),
    (DeserializingConsumer, READS),
    (kafka_python.SerializingProducer, WRITES),
    (kafka_python.DeserializingConsumer, READS),
    (confluent.producer_config, [*READS, "transactional.id"]),
    (confluent.consumer_config, [*READS, "transactional.id"]),
    (ChunkingProducer, WRITES),
    (AssemblingConsumer, READS),
]


@pytest.mark.parametrize(
    ("client", "keys"), CLIENTS, ids=[f"{each.__module__}.{each.__qualname__}" for each, _ in CLIENTS]
)
def test_client_helper_name_over_the_limit(client: Callable[[Mapping[str, object]], object], keys: list[str]) -> None:
    """Each client of ours refuses each of its names when it is made, before it has asked a broker for anything."""
    for key in keys:
        assert refusal(partial(client, {"bootstrap.servers": "127.0.0.1:1", key: OVER})).startswith(f"{key}: the ")


async def test_client_helper_limits_off() -> None:
    """The key turns the limits off for a client, too, and the client itself does not see it."""
    config = {"bootstrap.servers": "b:1", "group.id": OVER, LIMIT_KEY: "false"}
    assert confluent.consumer_config(config) == {"bootstrap.servers": "b:1", "group.id": OVER}
    consumer = AssemblingConsumer(config)
    assert isinstance(consumer, AIOKafkaConsumer)
    assert consumer._group_id == OVER
    await consumer.stop()
    assert refusal(lambda: confluent.consumer_config({**config, LIMIT_KEY: "perhaps"})).startswith(LIMIT_KEY)


async def test_client_helper_topics() -> None:
    """So are the topics that a client of aiokafka reads or writes: it would ask brokers for them."""
    config = {"bootstrap.servers": "127.0.0.1:1"}
    for kind in (DeserializingConsumer, AssemblingConsumer):
        grouped = {**config, "group.id": "g"}
        assert refusal(partial(kind, grouped, OVER)).startswith("topics: the topic name has 250")
        consumer = kind(grouped)
        assert refusal(partial(consumer.subscribe, [OVER])).startswith("topics: the topic name has 250")
        consumer.subscribe([FITS])
        assert consumer.subscription() == {FITS}
        await consumer.stop()
    for make in (SerializingProducer, ChunkingProducer):
        producer: Any = make(config)
        with pytest.raises(ConfigurationError, match="topic: the topic name has 250 characters"):
            await producer.send(OVER, b"v")
        await producer.stop()


def test_serializer_topic() -> None:
    """A serializer refuses a record for such a topic, and says why in its cause."""
    serializer = ComposableSerializer([lambda data: data])
    assert serializer.serialize(FITS, [], b"v") == b"v"
    with pytest.raises(SerializationError, match="the topic has 250 characters, the limit is 249") as caught:
        serializer.serialize(OVER, [], b"v")
    assert isinstance(caught.value.__cause__, ResourceIdentifierTooLargeError)
    assert caught.value.retriable is False


def test_faust_names(tmp_path: Path) -> None:
    """With Faust, the app's id is the group, and topics are those of the app."""
    app = faust.App(OVER, broker="kafka://127.0.0.1:1", Topic=LargeMessageTopic, datadir=str(tmp_path))
    schema = LargeMessageSchema({"large.message.payload.store.class": "memory"})
    assert refusal(lambda: schema._opened(app)).startswith("id: the group id has 250 characters")
    assert refusal(lambda: app.topic(OVER)).startswith("topics: the topic name has 250 characters")
    app = faust.App(FITS, consumer_group_instance_id=OVER, datadir=str(tmp_path))
    reason = "consumer_group_instance_id: the group instance id has 250 characters"
    assert refusal(lambda: schema._opened(app)).startswith(reason)


TOO_LARGE = "brokers answer RESOURCE_IDENTIFIER_TOO_LARGE, and INVALID_REQUEST (42) to older clients"
SINCE = "from Kafka 5.0 on or with resource.identifier.limit.enable=true"


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("group-id", FITS, "group id: 249 characters, within the limit of 249"),
        ("group-id", OVER, f"group id: 250 characters, the limit is 249; {TOO_LARGE}, {SINCE}"),
        (
            "topic",
            OVER,
            "topic name: 250 characters, the limit is 249; brokers answer INVALID_TOPIC_EXCEPTION (17)",
        ),
        (
            "offset-metadata",
            "ä" * 2049,
            "offset commit metadata: 4,098 bytes, the limit is 4,096; brokers answer OFFSET_METADATA_TOO_LARGE (12)",
        ),
        (
            "member-id",
            "m" * 37,
            f"group member id: 37 characters, the limit is 36; brokers answer INVALID_REQUEST (42), {SINCE}",
        ),
    ],
)
def test_command_check(kind: str, name: str, text: str) -> None:
    """`names check` says how long a name is, the limit, and what a broker answers; the status is 1 where it is over."""
    done = CliRunner().invoke(cli, ["names", "check", kind, name], standalone_mode=False)
    assert (done.return_value, done.output) == (int("within" not in text), f"{text}\n")


def test_command_check_json() -> None:
    """`--json` has the same for machines, and no name; a kind that is not known gets all that are."""
    done = CliRunner().invoke(cli, ["names", "check", "group-id", OVER, "--json"], standalone_mode=False)
    assert json.loads(done.output) == {
        "kind": "group-id",
        "length": 250,
        "limit": 249,
        "unit": "characters",
        "over": True,
        "error": "RESOURCE_IDENTIFIER_TOO_LARGE",
    }
    done = CliRunner().invoke(cli, ["names", "check", "grup-id", "x"])
    assert (done.exit_code, "'group-id'" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\nb\x1b[2J\u202e", "a\\nb\\x1b[2J\\u202e"),
        ("\udc80", "\\udc80"),
        ("a" * 40, "a" * 40),
        ("a" * 30 + "b" * 30, "a" * 26 + "…" + "b" * 13),
    ],
)
def test_brief(text: str, shown: str) -> None:
    """A name in a table is one short line that drives no terminal, and both its ends are to be seen."""
    assert brief(text) == shown


@pytest.mark.parametrize("name", ["orders:key:0", "[red]a[/red]", "a\\[b]", "[link=x]a\\", ":warning:"])
def test_table_shows_names_as_they_are(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in a name is taken for markup or for the code of an emoji."""
    _table("over the limit", ("kind", "name"), iter([("client-id", name)]))
    assert f"│ {name} " in capsys.readouterr().out
