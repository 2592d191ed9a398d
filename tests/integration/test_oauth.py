"""Logins by OAUTHBEARER: tokens of an OIDC provider, which Kafka's own validator checks by the provider's key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.cluster.preflight import check
from app.cluster.startup import _may_pass
from app.config.parsing import parse
from app.local.broker import EmbeddedBroker
from app.serializers import kafka_python
from app.serializers.aiokafka import DeserializingConsumer, SerializingProducer
from tests.integration.rest import ask
from tests.integration.topics import read_all, send
from tests.integration.way import MakeTopic, Way, digests, expected, first_occurrences, mixed
from tests.integration.worker_process import WorkerProcess, until
from tests.oidc import CLIENT, ISSUER, SECRET, Provider, provider
from transforms.errors import ConfigurationError

CONTROL = "token-of-who-may-steer-1"
_LISTENER = "listener.name.sasl_plaintext.oauthbearer"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
_SHORT_S = 4


@dataclass
class Secured:
    """A broker that lets in who has a token of the provider."""

    broker: EmbeddedBroker
    provider: Provider

    def keys(self) -> dict[str, object]:
        return {
            "bootstrap.servers": self.broker.address("SASL_PLAINTEXT"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": self.provider.url,
            "sasl.oauthbearer.client.credentials.client.id": CLIENT,
            "sasl.oauthbearer.client.credentials.client.secret": SECRET,
            "sasl.oauthbearer.scope": "records",
        }


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A provider, and a broker that ends a connection when its token is over."""
    with provider(tmp_path_factory.mktemp("oidc")) as made:
        properties = {
            "connections.max.reauth.ms": "3600000",
            # The default validator of Kafka does not look at signatures.
            "sasl.oauthbearer.jwt.validator.class": f"{_PACKAGE}.BrokerJwtValidator",
            f"{_LISTENER}.sasl.jaas.config": f"{_PACKAGE}.OAuthBearerLoginModule required;",
            f"{_LISTENER}.sasl.server.callback.handler.class": f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": made.keys_url,
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": ISSUER,  # Kafka 4.4 does not start without it
        }
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={made.keys_url}"
        with EmbeddedBroker(properties, protocols=("SASL_PLAINTEXT",), java_options=[allowed]) as broker:
            yield Secured(broker, made)


@pytest.fixture(scope="module")
def broker(running: Secured) -> str:
    """Its other listener lets everybody in; the tests make and read topics there."""
    return running.broker.bootstrap_servers


@pytest.fixture
def secured(running: Secured) -> Iterator[Secured]:
    """The same, with a provider that works."""
    said = running.provider
    said.seconds, said.audience, said.status = 3600, "kafka", 200
    yield running
    said.status = 200


@pytest.fixture
def way(broker: str, make_topic: MakeTopic, tmp_path: Path) -> Way:
    """Topics of one test, one partition each."""
    return Way(broker, make_topic, tmp_path, partitions=1, large=100_000, session_ms=6_000)


def test_tokens_are_renewed(secured: Secured, way: Way) -> None:
    """A run outlives its tokens, and a provider that is away for the time of one; no log has a token or the secret."""
    secured.provider.seconds = _SHORT_S
    records = mixed(300, seed=5, partitions=1)
    pipelines = {**way.offload(), **way.inflate()}
    control = {"web.control.enable": True, "web.control.token": CONTROL, "control.topic": f"{way.raw}-control"}
    with WorkerProcess(way.folder, {**way.settings(), **secured.keys(), **control}, pipelines) as worker:
        worker.wait_ready()
        given = len(secured.provider.tokens)
        send(way.broker, way.raw, records[:100])
        until(lambda: len(secured.provider.tokens) >= given + 2, "the tokens of the start are over")
        send(way.broker, way.raw, records[100:200])
        until(lambda: way.arrived(200), "the records have come, with new tokens")
        secured.provider.status = 503
        asked = len(secured.provider.forms)
        until(lambda: len(secured.provider.forms) >= asked + 2, "tokens are asked for in vain")
        send(way.broker, way.raw, records[200:])
        secured.provider.status = 200
        until(
            lambda: first_occurrences(digests(read_all(way.broker, way.inflated))) == expected(records),
            "each record has arrived, in order",
        )
        bearer = {"Authorization": f"Bearer {CONTROL}"}
        assert ask(worker.port, "PUT", "/connectors/inflate/pause", headers=bearer).status == 202
        until(lambda: worker.get("/pipelines")[1][1]["state"] == "PAUSED", "the topic has told it")
        assert worker.terminate() == 0
        log = worker.log.read_text()
    assert "answers 503" in log
    assert not any(token in log for token in (*secured.provider.tokens, SECRET, CONTROL))
    assert secured.provider.forms[0] == {"grant_type": ["client_credentials"], "scope": ["records"]}


@pytest.mark.parametrize(
    ("change", "told", "may_pass"),
    [
        (
            {"sasl.oauthbearer.client.credentials.client.secret": "wrong-one"},
            "answers 401: 'invalid_client: who are",
            False,
        ),
        ({"status": 500}, "answers 500: 'temporarily_unavailable'", True),
        ({"status": 302}, "answers 302", False),
        ({"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token"}, "does not answer: ", True),
        ({"audience": "somebody-else"}, "do not accept the token; check its issuer, audience", False),
    ],
    ids=["secret", "away", "moved", "nobody", "audience"],
)
def test_refused_at_start(secured: Secured, way: Way, change: dict[str, object], told: str, *, may_pass: bool) -> None:
    """What is wrong with the provider, or with its tokens, is one sentence without a secret."""
    document = {**way.settings(), **secured.keys(), "pipeline": way.offload()}
    # A login of its own: another one's token may still be good.
    document["sasl.oauthbearer.scope"] = way.raw
    for name, value in change.items():
        if hasattr(secured.provider, name):
            setattr(secured.provider, name, value)
        else:
            document[name] = value
    with pytest.raises(ConfigurationError) as refused:
        asyncio.run(check(parse(document, {})))
    assert told in str(refused.value)
    assert all(map(_may_pass, refused.value.each)) is may_pass
    assert not any(secret in str(refused.value) for secret in (*secured.provider.tokens, SECRET, "wrong-one"))


async def test_clients_log_in(secured: Secured, way: Way) -> None:
    """The clients for applications take the same keys, and those of kafka-python, which knows none of them itself."""
    store = {**way.store, "large.message.threshold.bytes": 1_000}
    serializers = "wideload.serializers.LargeMessage"
    writes = {**secured.keys(), **store, "value.serializer": f"{serializers}Serializer"}
    del writes["sasl.oauthbearer.scope"]
    async with SerializingProducer(writes) as producer:
        await producer.send_and_wait(way.raw, b"x" * 5_000)
    reads = {**secured.keys(), **store, "value.deserializer": f"{serializers}Deserializer"}
    reads["auto.offset.reset"] = "earliest"
    async with DeserializingConsumer(reads, way.raw) as consumer:
        assert (await consumer.getone()).value == b"x" * 5_000

    def blocking() -> None:
        with kafka_python.SerializingProducer(writes) as producer:
            producer.send(way.raw, b"y" * 5_000).get(30)
        with closing(kafka_python.DeserializingConsumer({**reads, "consumer.timeout.ms": 30_000}, way.raw)) as consumer:
            assert [next(consumer).value[:1] for _ in range(2)] == [b"x", b"y"]

    await asyncio.to_thread(blocking)
