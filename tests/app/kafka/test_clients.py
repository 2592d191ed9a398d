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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiokafka.errors as kafka_errors
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import collect_hosts

from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS
from app.config.parsing import parse
from app.config.settings import ClientSettings, Settings
from app.kafka import clients
from app.kafka.broker_health import BrokerHealth
from app.kafka.clients import ClusterError, admin, describe, security_arguments, sharing_context, translated
from app.kafka.topic_log import TopicLog
from app.kafka.troubles import Troubles
from tests.app.kafka.scripted_broker import Broker, Handler, close, say_nothing, server
from transforms.compression import CODECS
from transforms.errors import ConfigurationError, WideloadError


def settings_of(**keys: object) -> Settings:
    """Settings with these keys at the top."""
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


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Real certificates, made with the openssl command."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the openssl command is not installed")
    folder = tmp_path_factory.mktemp("certificates")

    def run(arguments: str) -> None:
        subprocess.run([openssl, *arguments.split()], cwd=folder, check=True, capture_output=True)

    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2"
    for authority in ("ca", "stranger"):
        # Python 3.13 takes no authority that does not say that it is one (VERIFY_X509_STRICT).
        usage = "-addext keyUsage=critical,keyCertSign,cRLSign"
        run(f"{new} -nodes -subj /CN={authority} {usage} -keyout {authority}_key.pem -out {authority}.pem")
    signed = f"{new} -CA ca.pem -CAkey ca_key.pem -addext basicConstraints=critical,CA:FALSE"
    run(f"{signed} -nodes -subj /CN=server -addext subjectAltName=DNS:localhost -keyout server_key.pem -out server.pem")
    run(f"{signed} -nodes -subj /CN=client -keyout client_key.pem -out client.pem")
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


def server_context(pem: Certificates, *, mutual: bool = False) -> ssl.SSLContext:
    """The broker's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem.server, pem.server_key)
    if mutual:
        context.load_verify_locations(pem.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


# --- security --------------------------------------------------------------------------------------------------------


def test_plaintext_takes_nothing_but_the_addresses() -> None:
    """Without TLS and SASL, nothing of either is handed to aiokafka."""
    settings = client_of(bootstrap_servers="a:1,b:2", sasl_username="u", sasl_password="p")
    assert security_arguments(settings) == {"bootstrap_servers": "a:1,b:2", "security_protocol": "PLAINTEXT"}


def test_tls_trusts_the_system_by_default() -> None:
    """Without a file of authorities the system's count; names are checked."""
    context = security_arguments(client_of(security_protocol="SSL"))["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


async def test_clients_that_share_a_tls_context_differ_in_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two clients each has the same context; user, addresses and names are those of the settings."""
    monkeypatch.setattr(clients, "AIOKafkaProducer", RecordedProducer)
    settings = settings_of(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="u", sasl_password="p")
    shared = sharing_context(settings.client)
    made = [clients.producer(client, settings.pipelines[0]) for client in (shared, shared, settings.client)]
    try:
        first, second, own = [each.arguments.pop("ssl_context") for each in made]
        assert first is second
        assert first is not own
        assert made[0].arguments == made[2].arguments
    finally:
        for each in made:
            await each.stop()
    plain = client_of()
    assert security_arguments(sharing_context(plain)) == security_arguments(plain)


def test_the_file_of_a_password_is_read_for_each_client_or_once_for_a_flow(tmp_path: Path) -> None:
    """An agent may replace it. Clients that share what was read then all log in alike."""
    (tmp_path / "password").write_text("of yesterday")
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "u"}
    client = client_of(**login, sasl_password=f"${{file:{tmp_path}/password}}")
    shared = sharing_context(client)
    (tmp_path / "password").write_text("of today")
    of = [security_arguments(each)["sasl_plain_password"] for each in (client, shared, sharing_context(client))]
    assert of == ["of today", "of yesterday", "of today"]
    (tmp_path / "password").unlink()
    assert security_arguments(shared)["sasl_plain_password"] == "of yesterday"
    with pytest.raises(ConfigurationError, match=r"sasl\.password: file .*password' cannot be read"):
        sharing_context(client)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_sasl_hands_on_user_and_password(protocol: str, mechanism: str) -> None:
    """The password reaches aiokafka as it is; TLS only where the protocol says so."""
    arguments = security_arguments(
        client_of(security_protocol=protocol, sasl_mechanism=mechanism, sasl_username="u", sasl_password="hunter2")
    )
    assert (arguments["sasl_mechanism"], arguments["sasl_plain_username"]) == (mechanism, "u")
    assert arguments["sasl_plain_password"] == "hunter2"
    assert ("ssl_context" in arguments) is (protocol == "SASL_SSL")
    assert "hunter2" not in repr(arguments)


@pytest.mark.skipif(importlib.util.find_spec("gssapi") is not None, reason="gssapi is installed")
def test_kerberos_without_its_package() -> None:
    """aiokafka would fail an assertion; the message says what to install."""
    with pytest.raises(ConfigurationError, match=r"^sasl.mechanism: .* pip install gssapi$"):
        security_arguments(client_of(security_protocol="SASL_PLAINTEXT", sasl_mechanism="GSSAPI"))


async def test_tls_trusts_the_given_authority(pem: Certificates) -> None:
    """A server whose certificate the authority has signed is trusted, another one is not."""
    async with server(close, server_context(pem)) as port:
        assert await greeted(client_of(security_protocol="SSL", ssl_ca_location=pem.ca), port) == b"hello"
        for stranger in ({"ssl_ca_location": pem.stranger}, {}):
            with pytest.raises(ssl.SSLCertVerificationError):
                await greeted(client_of(security_protocol="SSL", **stranger), port)


async def test_tls_checks_the_name_unless_told_not_to(pem: Certificates) -> None:
    """`https` refuses a certificate of another name; `none` takes it, but still wants the authority's signature."""
    name = "ssl.endpoint.identification.algorithm"
    async with server(close, server_context(pem)) as port:
        with pytest.raises(ssl.SSLCertVerificationError, match=r"doesn't match|mismatch|not valid for"):
            await greeted(client_of(security_protocol="SSL", ssl_ca_location=pem.ca), port, "broker.example")
        lax = client_of(security_protocol="SSL", ssl_ca_location=pem.ca, **{name: "none"})
        assert await greeted(lax, port, "broker.example") == b"hello"
        with pytest.raises(ssl.SSLCertVerificationError):
            await greeted(client_of(security_protocol="SSL", **{name: "none"}), port, "broker.example")


@pytest.mark.parametrize("locked", [False, True])
async def test_tls_shows_the_clients_certificate(pem: Certificates, locked: bool) -> None:  # noqa: FBT001
    """A broker that wants one gets the client's certificate, its key with a password or without."""
    keys = {"ssl_key_location": pem.locked_key if locked else pem.client_key}
    if locked:
        keys["ssl_key_password"] = "hunter2"
    settings = client_of(security_protocol="SSL", ssl_ca_location=pem.ca, ssl_certificate_location=pem.client, **keys)
    async with server(close, server_context(pem, mutual=True)) as port:
        assert await greeted(settings, port) == b"hello"
        answer = b""
        with contextlib.suppress(ssl.SSLError, ConnectionError):  # or nothing at all, by the TLS version
            answer = await greeted(client_of(security_protocol="SSL", ssl_ca_location=pem.ca), port)
        assert answer == b""


@pytest.mark.parametrize(
    ("names", "key", "reason"),
    [
        ({"ssl_ca_location": "text"}, "ssl.ca.location", "is not a PEM file of certificates"),
        ({"ssl_ca_location": "client_key"}, "ssl.ca.location", "is not a PEM file of certificates"),
        *(
            (
                {"ssl_certificate_location": certificate, "ssl_key_location": key},
                "ssl.certificate.location",
                "certificate, key and ssl.key.password do not go together",
            )
            for certificate, key in [
                ("client", "server_key"),
                ("text", "client_key"),
                ("client", "text"),
                ("client_key", "client"),
                ("client", "locked_key"),
            ]
        ),
    ],
)
def test_certificates_that_cannot_be_used(
    pem: Certificates, names: dict[str, str], key: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message names the key; a locked key without its password is an error, not a question on the terminal."""
    files = {name: getattr(pem, file) for name, file in names.items()}
    with pytest.raises(ConfigurationError) as caught:
        security_arguments(client_of(security_protocol="SSL", **files))
    assert (caught.value.key, caught.value.reason.partition(":")[0]) == (key, reason)
    assert capfd.readouterr() == ("", "")


def test_wrong_password_of_a_key_is_not_shown(pem: Certificates) -> None:
    """The message does not have the password that was tried."""
    files = {"ssl_certificate_location": pem.client, "ssl_key_location": pem.locked_key}
    with pytest.raises(ConfigurationError) as caught:
        security_arguments(client_of(security_protocol="SSL", ssl_key_password="wrong-one", **files))
    assert "wrong-one" not in f"{caught.value!r} {caught.value.__cause__!r}"


# --- clients ---------------------------------------------------------------------------------------------------------


class RecordedConsumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's own consumer, which remembers what it was made with."""

    def __init__(self, **arguments: object) -> None:
        self.arguments = arguments
        super().__init__(**arguments)


class RecordedProducer(AIOKafkaProducer):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's own producer likewise."""

    def __init__(self, **arguments: object) -> None:
        self.arguments = arguments
        super().__init__(**arguments)


OTHER_VALUES: dict[str, object] = {
    "consumer.auto.offset.reset": "latest",
    "consumer.isolation.level": "read_uncommitted",
    "consumer.client.rack": "rack-7",
    "consumer.group.instance.id": "instance-7",
    "producer.acks": "-1",
    "producer.compression.type": "zstd",
}
TO_AIOKAFKA = {"batch_size": "max_batch_size"}


def changed(settings: Settings, prefix: str) -> tuple[Settings, dict[str, object]]:
    """Settings in which each key of a client has a value that no other has, and what aiokafka should get."""
    keys = CONSUMER_KEYS if prefix == "consumer." else PRODUCER_KEYS
    values: dict[str, object] = {}
    for number, key in enumerate(keys):
        if key.kind in ("int", "bytes"):
            assert isinstance(key.default, int)
            values[key.name] = key.default + number + 1
        else:
            values[key.name] = OTHER_VALUES.get(key.name, key.default is not True)
    arguments = {name.removeprefix(prefix).replace(".", "_"): value for name, value in values.items()}
    return settings_of(**values), {TO_AIOKAFKA.get(name, name): value for name, value in arguments.items()}


async def test_every_consumer_key_reaches_aiokafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is dropped or mixed up with another; the group never commits, or resets offsets, by itself."""
    monkeypatch.setattr(clients, "AIOKafkaConsumer", RecordedConsumer)
    settings, expected = changed(settings_of(), "consumer.")
    made = clients.consumer(settings.client, settings.pipelines[0])
    try:
        assert made.arguments == expected | {
            "auto_offset_reset": "none",  # `OffsetReset` does by the key what aiokafka would do in silence
            "bootstrap_servers": "localhost:1",
            "security_protocol": "PLAINTEXT",
            "client_id": "wideload-p",
            "group_id": "wideload-p",
            "enable_auto_commit": False,
            "rebalance_timeout_ms": expected["max_poll_interval_ms"],
        }
        assert made.subscription() == frozenset()
    finally:
        await made.stop()


async def test_every_producer_key_reaches_aiokafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is dropped or mixed up with another; whatever is configured, nothing is lost or put out of order."""
    monkeypatch.setattr(clients, "AIOKafkaProducer", RecordedProducer)
    settings, expected = changed(settings_of(), "producer.")
    made = clients.producer(settings.client, settings.pipelines[0], "p:raw:0")
    # The batches are not aiokafka's business.
    made_of = clients.batch_settings(settings.pipelines[0])
    assert made_of.batch_bytes == expected.pop("max_batch_size")
    assert made_of.linger_s * 1000 == expected.pop("linger_ms")
    assert made_of.delivery_timeout_s * 1000 == expected.pop("delivery_timeout_ms")
    try:
        assert made.arguments == expected | {
            "bootstrap_servers": "localhost:1",
            "security_protocol": "PLAINTEXT",
            "client_id": "wideload-p",
            "acks": "all",
            "enable_idempotence": True,
            "max_request_size": 2**31 - 1,
            "transactional_id": "p:raw:0",
        }
    finally:
        await made.stop()


@pytest.mark.parametrize("codec", ["none", *CODECS])
async def test_every_compression_has_its_library(codec: str) -> None:
    """aiokafka refuses a codec at start whose library is not installed; all of ours are."""
    pipeline = settings_of(**{"producer.compression.type": codec}).pipelines[0]
    await clients.producer(client_of(), pipeline).stop()
    assert pipeline.producer["producer.compression.type"] == codec


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


# --- errors ----------------------------------------------------------------------------------------------------------

PASSING = [
    kafka_errors.KafkaConnectionError("gone"),
    kafka_errors.KafkaTimeoutError(),
    kafka_errors.RequestTimedOutError(),
    kafka_errors.NodeNotReadyError(),
    kafka_errors.NotLeaderForPartitionError(),
    kafka_errors.LeaderNotAvailableError(),
    kafka_errors.NotEnoughReplicasError(),
    kafka_errors.UnknownTopicOrPartitionError(),
    kafka_errors.GroupCoordinatorNotAvailableError(),
    kafka_errors.GroupLoadInProgressError(),
    kafka_errors.CommitFailedError("rebalanced"),
    kafka_errors.IllegalGenerationError(),
    kafka_errors.UnknownMemberIdError(),
    kafka_errors.RebalanceInProgressError(),
    kafka_errors.OutOfOrderSequenceNumber(),
    kafka_errors.UnknownProducerId(),
    kafka_errors.ProducerFenced(),
    kafka_errors.ProducerClosed(),
    kafka_errors.CorruptRecordException(),
    kafka_errors.IllegalStateError("not assigned"),
    kafka_errors.for_code(-1)(),
    kafka_errors.for_code(74)(),  # FENCED_LEADER_EPOCH, which aiokafka does not know
    TimeoutError(),
    kafka_errors.InvalidTimestampError(),
    ConnectionResetError(104, "Connection reset by peer"),
    socket.gaierror(-2, "Name or service not known"),
]

FINAL = [
    kafka_errors.TopicAuthorizationFailedError("orders"),
    kafka_errors.GroupAuthorizationFailedError("g"),
    kafka_errors.ClusterAuthorizationFailedError(),
    kafka_errors.MessageSizeTooLargeError(),
    kafka_errors.AuthenticationFailedError(),
    kafka_errors.SaslAuthenticationFailed(),
    kafka_errors.UnsupportedSaslMechanismError(),
    kafka_errors.OffsetOutOfRangeError(),
    kafka_errors.NoOffsetForPartitionError(),
    kafka_errors.InvalidTopicError(),
    kafka_errors.InvalidGroupIdError(),
    kafka_errors.InconsistentGroupProtocolError(),
    kafka_errors.InvalidSessionTimeoutError(),
    kafka_errors.OffsetMetadataTooLargeError(),
    kafka_errors.PolicyViolationError(),
    kafka_errors.UnsupportedCodecError(),
    kafka_errors.UnsupportedVersionError(),
    AssertionError("a defect"),
]


@pytest.mark.parametrize(
    ("error", "retriable"),
    [*((error, True) for error in PASSING), *((error, False) for error in FINAL)],
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


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (kafka_errors.KafkaConnectionError("gone"), "KafkaConnectionError: gone"),
        (kafka_errors.RequestTimedOutError(), "[Error 7] RequestTimedOutError"),
        (
            kafka_errors.TopicAuthorizationFailedError("orders"),
            (
                "[Error 29] TopicAuthorizationFailedError: orders (the user may not use this topic; grant "
                "Read on sources, "
                "Write on sinks)"
            ),
        ),
        *(
            (error, "CommitFailedError: the group has given the partitions to another member")
            for error in (kafka_errors.CommitFailedError(), kafka_errors.CommitFailedError("rebalanced"))
        ),
        (kafka_errors.KafkaError("two\n  lines"), "KafkaError: two lines"),
        (
            _caused(kafka_errors.KafkaError("Unexpected error"), kafka_errors.InvalidProducerIdMapping()),
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
        (_caused(kafka_errors.KafkaError("Unexpected error"), ValueError("a defect")), "KafkaError: Unexpected error"),
        (TimeoutError(), "TimeoutError"),
        (OSError(111, "refused"), "ConnectionRefusedError: [Errno 111] refused"),
    ],
)
def test_describe_has_name_text_and_advice(error: BaseException, told: str) -> None:
    """The name stands once, and what the user can do about it is added where it is known."""
    assert describe(error) == told


# --- no broker -------------------------------------------------------------------------------------------------------


async def refusal_of(settings: ClientSettings, timeout_s: float = 15.0) -> str:
    """The sentence with which the admin client gives up."""
    return (await error_of(settings, timeout_s)).reason


async def error_of(settings: ClientSettings, timeout_s: float = 15.0) -> ConfigurationError:
    """The error with which it does so."""
    with pytest.raises(ConfigurationError) as caught:
        async with admin(settings, timeout_s):
            pytest.fail("there is no broker")
    assert caught.value.key == "bootstrap.servers"
    return caught.value


def may_pass(error: ConfigurationError) -> bool:
    """What the error says of another try."""
    assert isinstance(error.__cause__, ClusterError)
    return error.__cause__.retriable


@pytest.fixture
def closed_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


ADVICE = "; check that the cluster runs, the addresses, and security.protocol"


async def test_closed_port_is_one_sentence(closed_port: int) -> None:
    """Long before a request's time-out of 40 s, with the address, the protocol and the system's reason."""
    started = time.monotonic()
    address = f"127.0.0.1:{closed_port}"
    told = await refusal_of(client_of(bootstrap_servers=address))
    assert told.startswith(f"no broker answers at {address} over PLAINTEXT: ConnectionRefusedError: [Errno 111] ")
    assert told.endswith(ADVICE)
    assert "\n" not in told
    assert time.monotonic() - started < 30


async def test_several_closed_ports_give_each_reason_once(closed_port: int) -> None:
    """All addresses are named; what they have in common is said once."""
    addresses = f"127.0.0.1:{closed_port}, 127.0.0.1:{closed_port}"
    told = await refusal_of(client_of(bootstrap_servers=addresses))
    assert (told.count(addresses), told.count("ConnectionRefusedError")) == (1, 1)


async def test_unknown_host_is_one_sentence() -> None:
    """A name that does not resolve is said to be one; it may come, as those of containers do."""
    error = await error_of(client_of(bootstrap_servers="no-such-host.invalid:9092"))
    assert "gaierror" in error.reason
    assert may_pass(error)


async def test_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What listens but is no broker does not hold the worker up."""
    monkeypatch.setattr(clients, "_PROBE_S", 0.2)
    async with server(say_nothing) as port:
        told = await refusal_of(client_of(bootstrap_servers=f"127.0.0.1:{port}"), 0.3)
    assert told.endswith("TimeoutError" + ADVICE) or "no answer within 0.2 s" in told


async def test_server_that_is_no_broker_is_given_up() -> None:
    """An answer that is not Kafka's is no answer."""
    async with server(close) as port:
        told = await refusal_of(client_of(bootstrap_servers=f"127.0.0.1:{port}"), 3.0)
    assert told.startswith(f"no broker answers at 127.0.0.1:{port} over PLAINTEXT: ")


async def test_untrusted_broker_is_named_as_the_reason(pem: Certificates) -> None:
    """aiokafka says no more than that it could not connect; the message says that it is the certificate."""
    async with server(close, server_context(pem)) as port:
        settings = client_of(
            bootstrap_servers=f"localhost:{port}", security_protocol="SSL", ssl_ca_location=pem.stranger
        )
        error = await error_of(settings, 3.0)
    assert "over SSL: " in error.reason
    assert "certificate verify failed" in error.reason
    assert not may_pass(error)


async def test_plaintext_broker_is_not_spoken_to_over_tls() -> None:
    """A wrong security.protocol ends in a sentence that names it."""
    async with server(close) as port:
        told = await refusal_of(client_of(bootstrap_servers=f"localhost:{port}", security_protocol="SSL"), 3.0)
    assert "over SSL: " in told
    assert told.endswith(ADVICE)


# --- several brokers, and those that come later ----------------------------------------------------------------------


async def test_address_that_never_answers_leaves_time_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first address takes connections and says nothing; the second one is a broker, and is reached in time."""
    monkeypatch.setattr("aiokafka.client.collect_hosts", lambda hosts: collect_hosts(hosts, randomize=False))
    async with server(say_nothing) as silent, server(Broker()) as port:
        addresses = f"127.0.0.1:{silent},127.0.0.1:{port}"
        async with admin(client_of(bootstrap_servers=addresses), 2.0) as connection:
            assert [each["port"] for each in (await connection.describe_cluster())["brokers"]] == [port]


async def flow_client(settings: ClientSettings) -> None:
    """Starts a client as those of a flow."""
    client = AIOKafkaClient(**security_arguments(settings))
    BrokerHealth([], 1.0, Troubles("p")).watch(client)
    await client.bootstrap()


async def admin_client(settings: ClientSettings) -> None:
    """Starts an admin client."""
    async with admin(settings):
        pytest.fail("there is no broker")


def log(settings: ClientSettings) -> TopicLog:
    """A log of nobody's."""
    return TopicLog(settings, "control", lambda *_: None, lambda _: None)


@pytest.mark.parametrize(
    ("start", "whole_ms"),
    [
        (admin_client, 15_000),
        (flow_client, 40_000),
        (lambda settings: log(settings).read(60.0), 10_000),
        (lambda settings: log(settings).append(b"k", b"v"), 10_000),
    ],
    ids=["admin", "flow", "log read", "log written"],
)
@pytest.mark.parametrize(("addresses", "parts"), [(1, 1), (2, 2), (3, 3), (12, 3)])
async def test_the_time_of_a_start_is_for_three_addresses(
    start: Callable[[ClientSettings], Awaitable[None]],
    whole_ms: int,
    addresses: int,
    parts: int,
    closed_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each gets its part of the time of a request, but no less than a third; later requests have all of it."""
    started: list[AIOKafkaClient] = []
    times_ms: list[int] = []

    async def bootstrap(client: AIOKafkaClient) -> None:
        started.append(client)
        times_ms.append(client._request_timeout_ms)
        raise kafka_errors.KafkaConnectionError("nobody")

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)
    settings = client_of(bootstrap_servers=",".join([f"127.0.0.1:{closed_port}"] * addresses))
    with pytest.raises((WideloadError, kafka_errors.KafkaConnectionError)):
        await start(settings)
    assert times_ms == [whole_ms // parts]
    assert started[0]._request_timeout_ms == whole_ms


LOGIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": "p"}


@pytest.mark.parametrize(
    ("handler", "keys", "retriable"),
    [
        (None, {}, True),
        (None, LOGIN, True),
        (say_nothing, {}, True),
        (Broker(asks=True), LOGIN, False),
        (Broker(), LOGIN, False),
        (close, {"security_protocol": "SSL"}, False),
    ],
    ids=["refused", "refused before the login", "silent", "login", "no login here", "no TLS here"],
)
async def test_what_may_pass_if_no_broker_lets_a_client_in(
    handler: Handler | None,
    keys: dict[str, object],
    retriable: bool,  # noqa: FBT001
    closed_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who is not there may come. A login that is refused is refused again; so is one where nobody asks for it."""
    if handler is say_nothing:
        monkeypatch.setattr(clients, "_PROBE_S", 0.2)
    async with contextlib.AsyncExitStack() as stack:
        port = closed_port if handler is None else await stack.enter_async_context(server(handler))
        # Of several addresses one is enough.
        addresses = f"127.0.0.1:{closed_port},127.0.0.1:{port}"
        error = await error_of(client_of(bootstrap_servers=addresses, **keys), 0.4 if handler is say_nothing else 15.0)
    assert may_pass(error) is retriable
