"""From settings to aiokafka's clients, and from aiokafka's errors to sentences."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import socket
import ssl
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka.errors as kafka_errors
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.conn import collect_hosts

from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS
from app.config.parsing import parse
from app.config.settings import ClientSettings, Settings
from app.kafka import clients
from app.kafka.clients import ClusterError, admin, describe, security_arguments, sharing_context, translated
from tests.app.kafka.scripted_broker import Broker, Handler, close, say_nothing, server
from transforms.errors import ConfigurationError

LOGIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "p"}


def settings_of(**keys: object) -> Settings:
    """Settings with these keys at the top; they have `_` for dots."""
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": ["offload"]}
    table["large.message.payload.store.class"] = "memory"
    top = {"bootstrap.servers": "localhost:1"} | {name.replace("_", "."): value for name, value in keys.items()}
    return parse({**top, "pipeline": {"p": table}}, {})


def client_of(**keys: object) -> ClientSettings:
    """Settings of the connection with these keys."""
    return settings_of(**keys).client


# --- certificates ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificates:
    """Files of an authority, a server called localhost and a client, made for one test session."""

    folder: Path

    def __getattr__(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def tls(self, **names: str) -> ClientSettings:
        """Settings of a client with TLS; a location is the name of a file."""
        files = {key: getattr(self, name) if key.endswith("location") else name for key, name in names.items()}
        return client_of(security_protocol="SSL", **files)

    def server(self, *, mutual: bool = False) -> ssl.SSLContext:
        """The broker's side of TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.localhost, self.localhost_key)
        if mutual:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Real certificates, made with the openssl command."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the openssl command is not installed")
    folder = tmp_path_factory.mktemp("certificates")

    def run(arguments: str) -> None:
        subprocess.run([openssl, *arguments.split()], cwd=folder, check=True, capture_output=True)

    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2 -nodes"
    for authority in ("ca", "stranger"):
        # Python 3.13 takes no authority that does not say that it is one (VERIFY_X509_STRICT).
        usage = "-addext keyUsage=critical,keyCertSign,cRLSign"
        run(f"{new} -subj /CN={authority} {usage} -keyout {authority}_key.pem -out {authority}.pem")
    for name, more in (("localhost", "-addext subjectAltName=DNS:localhost"), ("client", "")):
        signed = f"{new} -CA ca.pem -CAkey ca_key.pem -addext basicConstraints=critical,CA:FALSE {more}"
        run(f"{signed} -subj /CN={name} -keyout {name}_key.pem -out {name}.pem")
    run("ec -in client_key.pem -aes256 -passout pass:hunter2 -out locked_key.pem")
    (folder / "text.pem").write_text("not a certificate")
    return Certificates(folder)


async def greeted(settings: ClientSettings, port: int, host: str = "localhost") -> bytes:
    """What a TLS server says to a client with these settings."""
    context = security_arguments(settings)["ssl_context"]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_tls_trusts_the_given_authority_and_checks_the_name(pem: Certificates) -> None:
    """`none` takes a certificate of another name, but still wants the authority's signature."""
    lax = {"ssl.endpoint.identification.algorithm": "none"}
    async with server(close, pem.server()) as port:
        assert await greeted(pem.tls(ssl_ca_location="ca"), port) == b"hello"
        assert await greeted(pem.tls(ssl_ca_location="ca", **lax), port, "broker.example") == b"hello"
        for names in ({"ssl_ca_location": "stranger"}, {}, lax):
            with pytest.raises(ssl.SSLCertVerificationError):
                await greeted(pem.tls(**names), port)
        with pytest.raises(ssl.SSLCertVerificationError, match=r"doesn't match|mismatch|not valid for"):
            await greeted(pem.tls(ssl_ca_location="ca"), port, "broker.example")


@pytest.mark.parametrize(
    "key", [{"ssl_key_location": "client_key"}, {"ssl_key_location": "locked_key", "ssl_key_password": "hunter2"}]
)
async def test_tls_shows_the_clients_certificate(pem: Certificates, key: dict[str, str]) -> None:
    """A broker that wants one gets the client's certificate, its key with a password or without."""
    settings = pem.tls(ssl_ca_location="ca", ssl_certificate_location="client", **key)
    async with server(close, pem.server(mutual=True)) as port:
        assert await greeted(settings, port) == b"hello"
        answer = b""
        with contextlib.suppress(ssl.SSLError, ConnectionError):  # or nothing at all, by the TLS version
            answer = await greeted(pem.tls(ssl_ca_location="ca"), port)
        assert answer == b""


NOT_TOGETHER = "certificate, key and ssl.key.password do not match"


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"ssl_ca_location": "text"}, "is not a PEM file of certificates"),
        ({"ssl_ca_location": "client_key"}, "is not a PEM file of certificates"),
        ({"ssl_certificate_location": "client", "ssl_key_location": "localhost_key"}, NOT_TOGETHER),
        ({"ssl_certificate_location": "text", "ssl_key_location": "client_key"}, NOT_TOGETHER),
        ({"ssl_certificate_location": "client", "ssl_key_location": "text"}, NOT_TOGETHER),
        ({"ssl_certificate_location": "client_key", "ssl_key_location": "client"}, NOT_TOGETHER),
        ({"ssl_certificate_location": "client", "ssl_key_location": "locked_key"}, NOT_TOGETHER),
        (
            {"ssl_certificate_location": "client", "ssl_key_location": "locked_key", "ssl_key_password": "wrong-one"},
            NOT_TOGETHER,
        ),
    ],
)
def test_certificates_that_cannot_be_used(
    pem: Certificates, names: dict[str, str], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message names the key, and no password; a locked key without its own is no question on the terminal."""
    with pytest.raises(ConfigurationError) as caught:
        security_arguments(pem.tls(**names))
    error = caught.value
    assert (error.key, error.reason.partition(":")[0]) == (next(iter(names)).replace("_", "."), reason)
    assert "wrong-one" not in f"{error!r} {error.__cause__!r}"
    assert capfd.readouterr() == ("", "")


# --- security --------------------------------------------------------------------------------------------------------


def test_security_is_what_the_protocol_says() -> None:
    """Without TLS and SASL nothing of either is handed to aiokafka; TLS trusts the system, and checks names."""
    settings = client_of(bootstrap_servers="a:1,b:2", sasl_username="u", sasl_password="p")
    assert security_arguments(settings) == {"bootstrap_servers": "a:1,b:2", "security_protocol": "PLAINTEXT"}
    context = security_arguments(client_of(security_protocol="SSL"))["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_sasl_hands_on_user_and_password(protocol: str, mechanism: str) -> None:
    """The password reaches aiokafka as it is; TLS only where the protocol says so."""
    keys = {"security_protocol": protocol, "sasl_mechanism": mechanism, "sasl_password": "hunter2"}
    arguments = security_arguments(client_of(**{**LOGIN, **keys}))
    assert (arguments["sasl_mechanism"], arguments["sasl_plain_username"]) == (mechanism, "u")
    assert arguments["sasl_plain_password"] == "hunter2"
    assert ("ssl_context" in arguments) is (protocol == "SASL_SSL")
    assert "hunter2" not in repr(arguments)


async def test_clients_that_share_a_tls_context_differ_in_nothing_else() -> None:
    """Of two clients each has the same context; user, addresses and names are those of the settings."""
    settings = client_of(**{**LOGIN, "security_protocol": "SASL_SSL"})
    shared = sharing_context(settings)
    made = [security_arguments(client) for client in (shared, shared, settings)]
    first, second, own = [each.pop("ssl_context") for each in made]
    assert first is second
    assert first is not own
    assert made[0] == made[1] == made[2]
    assert security_arguments(sharing_context(client_of())) == security_arguments(client_of())


def test_the_file_of_a_password_is_read_for_each_client_or_once_for_a_flow(tmp_path: Path) -> None:
    """An agent may replace it. Clients that share what was read then all log in alike."""
    (tmp_path / "password").write_text("of yesterday")
    client = client_of(**{**LOGIN, "sasl_password": f"${{file:{tmp_path}/password}}"})
    shared = sharing_context(client)
    (tmp_path / "password").write_text("of today")
    of = [security_arguments(each)["sasl_plain_password"] for each in (client, shared, sharing_context(client))]
    assert of == ["of today", "of yesterday", "of today"]
    (tmp_path / "password").unlink()
    assert security_arguments(shared)["sasl_plain_password"] == "of yesterday"
    with pytest.raises(ConfigurationError, match=r"sasl\.password: file .*password' cannot be read"):
        sharing_context(client)


@pytest.mark.skipif(importlib.util.find_spec("gssapi") is not None, reason="gssapi is installed")
def test_kerberos_without_its_package() -> None:
    """aiokafka would fail an assertion; the message says what to install."""
    with pytest.raises(ConfigurationError, match=r"^sasl.mechanism: .* pip install gssapi$"):
        security_arguments(client_of(security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI"))


# --- clients ---------------------------------------------------------------------------------------------------------

OTHER_VALUES: dict[str, object] = {
    "consumer.auto.offset.reset": "latest",
    "consumer.isolation.level": "read_uncommitted",
    "consumer.client.rack": "rack-7",
    "consumer.group.instance.id": "instance-7",
    "producer.acks": "-1",
    "producer.compression.type": "zstd",
}


@pytest.mark.parametrize("prefix", ["consumer.", "producer."])
async def test_every_key_reaches_aiokafka(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is dropped or mixed up with another; the group never commits by itself, and nothing is put out of order."""
    values: dict[str, object] = {}
    for number, key in enumerate(CONSUMER_KEYS if prefix == "consumer." else PRODUCER_KEYS):
        count = key.default + number + 1 if isinstance(key.default, int) else None
        values[key.name] = (
            count if key.kind in ("int", "bytes") else OTHER_VALUES.get(key.name, key.default is not True)
        )
    settings = settings_of(**values)
    (pipeline,) = settings.pipelines
    expected: dict[str, Any] = {name.removeprefix(prefix).replace(".", "_"): each for name, each in values.items()}
    given: dict[str, object] = {}
    kind: Any = AIOKafkaConsumer if prefix == "consumer." else AIOKafkaProducer

    def make(**arguments: object) -> Any:
        given.update(arguments)
        return kind(**arguments)

    monkeypatch.setattr(clients, kind.__name__, make)
    if prefix == "consumer.":
        made = clients.consumer(settings.client, pipeline)
        assert made.subscription() == frozenset()
        expected |= {
            "auto_offset_reset": "none",  # `OffsetReset` does by the key what aiokafka would do in silence
            "group_id": "wideload-p",
            "enable_auto_commit": False,
            "rebalance_timeout_ms": expected["max_poll_interval_ms"],
        }
    else:
        made = clients.producer(settings.client, pipeline, "p:raw:0")
        batches = clients.batch_settings(pipeline)  # which are not aiokafka's business
        assert batches.batch_bytes == expected.pop("batch_size")
        assert batches.linger_s * 1000 == expected.pop("linger_ms")
        assert batches.delivery_timeout_s * 1000 == expected.pop("delivery_timeout_ms")
        expected |= {
            "acks": "all",
            "enable_idempotence": True,
            "max_request_size": 2**31 - 1,
            "transactional_id": "p:raw:0",
        }
    await made.stop()
    common = {"bootstrap_servers": "localhost:1", "security_protocol": "PLAINTEXT", "client_id": "wideload-p"}
    assert given == expected | common


# --- errors ----------------------------------------------------------------------------------------------------------

PASSING = """
KafkaTimeoutError RequestTimedOutError NodeNotReadyError NotLeaderForPartitionError LeaderNotAvailableError
NotEnoughReplicasError UnknownTopicOrPartitionError GroupCoordinatorNotAvailableError GroupLoadInProgressError
CommitFailedError IllegalGenerationError UnknownMemberIdError RebalanceInProgressError OutOfOrderSequenceNumber
UnknownProducerId ProducerFenced ProducerClosed CorruptRecordException IllegalStateError InvalidTimestampError
KafkaConnectionError
"""
FINAL = """
TopicAuthorizationFailedError GroupAuthorizationFailedError ClusterAuthorizationFailedError MessageSizeTooLargeError
AuthenticationFailedError SaslAuthenticationFailed UnsupportedSaslMechanismError OffsetOutOfRangeError
NoOffsetForPartitionError InvalidTopicError InvalidGroupIdError InconsistentGroupProtocolError
InvalidSessionTimeoutError OffsetMetadataTooLargeError PolicyViolationError UnsupportedCodecError
UnsupportedVersionError
"""


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        *((getattr(kafka_errors, name)("gone"), True) for name in PASSING.split()),
        (kafka_errors.for_code(-1)(), True),
        (kafka_errors.for_code(74)(), True),  # FENCED_LEADER_EPOCH, which aiokafka does not know
        (kafka_errors.KafkaError("a task has failed"), True),
        (TimeoutError(), True),
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (socket.gaierror(-2, "Name or service not known"), True),
        *((getattr(kafka_errors, name)("orders"), False) for name in FINAL.split()),
        (AssertionError("a defect"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_translated_says_whether_to_try_again(error: Exception, retriable: bool) -> None:  # noqa: FBT001
    """What new clients may get over begins again; what a user must mend stops the pipeline."""
    ours = translated(error, "writing to topic orders")
    assert isinstance(ours, ClusterError)
    assert ours.retriable is retriable
    assert str(ours).startswith("writing to topic orders: ")
    assert type(error).__name__ in str(ours)
    assert "\n" not in str(ours)


def test_an_error_that_is_newer_has_its_number() -> None:
    """aiokafka does not tell it; a name over its limit may be meant, or anything else."""
    told = [str(translated(kafka_errors.UnknownError(), "topic t", code)) for code in (None, 42, 150)]
    assert told[0] == told[1] == "topic t: [Error -1] UnknownError"
    assert told[2] == f"{told[0]}; the brokers answer error 150, which is newer than this client"


def _caused(cause: Exception) -> Exception:
    error = kafka_errors.KafkaError("Unexpected error")
    error.__cause__ = cause
    assert isinstance(error, Exception)
    return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (kafka_errors.KafkaConnectionError("gone"), "KafkaConnectionError: gone"),
        (kafka_errors.RequestTimedOutError(), "[Error 7] RequestTimedOutError"),
        (
            kafka_errors.TopicAuthorizationFailedError("orders"),
            (
                "[Error 29] TopicAuthorizationFailedError: orders (the user may not use this topic; grant "
                "Read on source topics and Write on output topics)"
            ),
        ),
        *(
            (error, "CommitFailedError: the group has assigned the partitions to another member")
            for error in (kafka_errors.CommitFailedError(), kafka_errors.CommitFailedError("rebalanced"))
        ),
        (kafka_errors.KafkaError("two\n  lines"), "KafkaError: two lines"),
        (
            _caused(kafka_errors.InvalidProducerIdMapping()),
            (
                "[Error 49] InvalidProducerIdMapping (the brokers have forgotten the producer, which has written "
                "nothing for their transactional.id.expiration.ms or producer.id.expiration.ms; the next one gets "
                "another id)"
            ),
        ),
        (
            kafka_errors.InvalidTxnState(),
            (
                "[Error 48] InvalidTxnState (the brokers know of no open transaction; those of Kafka 3.7 refuse the "
                "offsets of every transaction if their group.coordinator.rebalance.protocols names consumer (early "
                "access to KIP-848): set it to classic)"
            ),
        ),
        (_caused(ValueError("a defect")), "KafkaError: Unexpected error"),
        (TimeoutError(), "TimeoutError"),
        (OSError(111, "refused"), "ConnectionRefusedError: [Errno 111] refused"),
    ],
)
def test_describe_has_name_text_and_advice(error: BaseException, told: str) -> None:
    """The name stands once, and what the user can do about it is added where it is known."""
    assert describe(error) == told


# --- no broker -------------------------------------------------------------------------------------------------------

ADVICE = "; check that the cluster runs, the addresses, and security.protocol"


async def refusal_of(settings: ClientSettings, timeout_s: float) -> tuple[str, bool]:
    """The sentence with which the admin client gives up, and whether another try may help."""
    with pytest.raises(ConfigurationError) as caught:
        async with admin(settings, timeout_s):
            pytest.fail("there is no broker")
    assert caught.value.key == "bootstrap.servers"
    assert isinstance(caught.value.__cause__, ClusterError)
    return caught.value.reason, caught.value.__cause__.retriable


@pytest.fixture
def closed_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("handler", "keys", "reason", "retriable"),
    [
        (None, {}, "ConnectionRefusedError: [Errno 111] ", True),
        (None, LOGIN, "ConnectionRefusedError: [Errno 111] ", True),
        (None, {"bootstrap_servers": "no-such-host.invalid:9092"}, "gaierror", True),
        (say_nothing, {}, "", True),
        (close, {}, "", None),
        (Broker(asks=True), LOGIN, "Authentication failed", False),
        (Broker(), LOGIN, "", False),
        (close, {"security_protocol": "SSL"}, "", False),
        (close, {"security_protocol": "SSL", "ssl_ca_location": "stranger"}, "certificate verify failed", False),
    ],
    ids=[
        "refused",
        "refused before the login",
        "unknown",
        "silent",
        "none",
        "login",
        "no login",
        "no TLS",
        "untrusted",
    ],
)
async def test_a_client_that_no_broker_lets_in(
    handler: Handler | None,
    keys: dict[str, Any],
    reason: str,
    retriable: bool | None,  # noqa: FBT001
    closed_port: int,
    pem: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence, long before a request's time-out, with addresses, protocol and reason. Who is away may come."""
    started = time.monotonic()
    context = pem.server() if "ssl_ca_location" in keys else None
    if context is not None:
        keys = {**keys, "ssl_ca_location": pem.stranger}
    monkeypatch.setattr(clients, "_PROBE_S", 0.2 if handler is say_nothing else 5.0)
    async with contextlib.AsyncExitStack() as stack:
        port = closed_port if handler is None else await stack.enter_async_context(server(handler, context))
        addresses = f"localhost:{port}" if context else f"127.0.0.1:{closed_port}, 127.0.0.1:{port}"  # one is enough
        settings = client_of(**{"bootstrap_servers": addresses, **keys})
        told, again = await refusal_of(settings, 0.4 if handler is say_nothing else 15.0)
    protocol = keys.get("security_protocol", "PLAINTEXT")
    assert told.startswith(f"no broker answers at {settings.bootstrap_servers} over {protocol}: ")
    assert reason in told
    assert ADVICE in told
    assert told.count("ConnectionRefusedError") <= 1, "what addresses have in common is said once"
    assert "\n" not in told
    assert retriable in (None, again)
    assert time.monotonic() - started < 30


async def test_address_that_never_answers_leaves_time_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first address takes connections and says nothing; the second one is a broker, and is reached in time."""
    monkeypatch.setattr("aiokafka.client.collect_hosts", lambda hosts: collect_hosts(hosts, randomize=False))
    async with server(say_nothing) as silent, server(Broker()) as port:
        addresses = f"127.0.0.1:{silent},127.0.0.1:{port}"
        async with admin(client_of(bootstrap_servers=addresses), 1.0) as connection:
            assert [each["port"] for each in (await connection.describe_cluster())["brokers"]] == [port]
