"""Keys of AWS KMS, on a stand-in that speaks its protocol, through boto3."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from stores.encryption import keyring_of
from stores.kms import KmsKeyring
from stores.memory import MemoryStore
from stores.payload import download, publish
from stores.registry import STORE_CLASS, open_store
from tests.kms_server import ARN, OTHER_ARN, KmsServer, refusal
from tests.stores.scripted_server import Request, Wire, scripted_server
from transforms.errors import ConfigurationError, EncryptionError, PayloadStoreAccessError, PayloadStoreError
from transforms.inflate import Inflate
from transforms.keyring import EncryptionSettings, Keyring, LocalKeyring
from transforms.offload import Offload
from transforms.reference import Reference

PREVIOUS = "large.message.encryption.kms.previous.key.ids"
REUSE: str = "large.message.encryption.kms.data.key.reuse"
VALUE = b"hello world"
KEY = base64.b64encode(b"k" * 32).decode()


@pytest.fixture
def kms(monkeypatch: pytest.MonkeyPatch) -> Iterator[KmsServer]:
    """The server, and credentials for boto3."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with KmsServer() as server:
        yield server
    MemoryStore.clear()


def ring(config: Mapping[str, object]) -> Keyring:
    found = keyring_of(config)
    assert found is not None
    return found


STORE = {STORE_CLASS: "memory", "memory.name": "kms"}


def write(keyring: Keyring) -> Reference:
    return publish(open_store(STORE), "orders", Offload().payload(VALUE), by_digest=True, keyring=keyring)


def read(keyring: Keyring, reference: Reference) -> bytes:
    return download(open_store(STORE), reference, Inflate(), keyring)


def test_payload_comes_back(kms: KmsServer) -> None:
    """One call for a payload that is written, one for a payload that is read; the record has the ARN of the key."""
    reference = write(ring(kms.config()))
    parsed, _ = Reference.read(reference.value(), reference.headers())
    assert parsed == reference
    assert parsed.encryption is not None
    assert parsed.encryption.key_id == ARN
    reader = ring(kms.config())
    assert [read(reader, parsed) for _ in range(3)] == [VALUE] * 3
    assert kms.calls == [("GenerateDataKey", ARN), ("Decrypt", ARN)]
    assert kms.contexts == [{"wideload": "large-message"}] * 2  # as the documentation says, for policies


def test_calls_are_shared_where_that_is_configured(kms: KmsServer) -> None:
    """Each payload has a data key of its own; with a reuse of 3, three of them share a call, for 5 minutes at most."""
    now = [0.0]
    settings = EncryptionSettings.of(kms.config() | {REUSE: 3})
    assert settings is not None
    assert settings.kms is not None
    keyring = KmsKeyring(LocalKeyring(settings), settings.kms, 60_000, clock=lambda: now[0])
    references = [write(keyring) for _ in range(7)]
    assert len(kms.calls) == 3
    assert len({each.encryption.data_key for each in references if each.encryption is not None}) == 7
    now[0] = 301.0
    references.append(write(keyring))
    assert len(kms.calls) == 4
    reader = ring(kms.config())
    assert [read(reader, each) for each in references] == [VALUE] * 8
    assert [name for name, _ in kms.calls[4:]] == ["Decrypt"] * 4


def test_rotation(kms: KmsServer) -> None:
    """Payloads of previous keys are read, of KMS as of the configuration; those of any other key are refused."""
    local = {"large.message.encryption.key.id": "one", "large.message.encryption.key.secret": "1f" * 32}
    old, first = write(ring(kms.config())), write(ring(local | {"large.message.encryption.type": "aes-256-gcm"}))
    previous = {PREVIOUS: [ARN], "large.message.encryption.previous.keys": ["one:" + "1f" * 32]}
    keyring = ring(kms.config(OTHER_ARN) | previous)
    assert [read(keyring, each) for each in (old, first, write(keyring))] == [VALUE] * 3
    kms.calls.clear()
    with pytest.raises(EncryptionError, match=f"encrypted with key {ARN}, known here are: {OTHER_ARN}"):
        read(ring(kms.config(OTHER_ARN)), old)
    with pytest.raises(EncryptionError, match="known here are: one"):
        read(ring(local), old)
    assert kms.calls == []  # a record cannot make a reader use a key that is not its own


def test_what_kms_does_not_open_is_of_the_record(kms: KmsServer) -> None:
    """A token of another key, a changed one or none is an error of the record, and the service is as it should be."""
    reference, other = write(ring(kms.config())), write(ring(kms.config(OTHER_ARN)))
    assert reference.encryption is not None
    assert other.encryption is not None
    encryption = reference.encryption
    changed = encryption.data_key[:-1] + bytes([encryption.data_key[-1] ^ 1])
    for data_key in (changed, encryption.data_key[:80], other.encryption.data_key):
        forged = replace(reference, encryption=replace(encryption, data_key=data_key))
        with pytest.raises(EncryptionError):
            read(ring(kms.config()), forged)
    moved = replace(reference, path=other.path)
    with pytest.raises(EncryptionError, match="cannot decrypt its data key"):
        read(ring(kms.config()), moved)


@pytest.mark.parametrize(
    ("code", "status", "kind", "retriable"),
    [
        ("ThrottlingException", 400, PayloadStoreError, True),
        ("", 429, PayloadStoreError, True),
        ("KMSInternalException", 500, PayloadStoreError, True),
        ("DependencyTimeoutException", 503, PayloadStoreError, True),
        ("AccessDeniedException", 400, PayloadStoreAccessError, False),
        ("DisabledException", 400, PayloadStoreAccessError, False),
        ("KMSInvalidStateException", 400, PayloadStoreAccessError, False),
    ],
)
def test_errors_are_told_apart(
    kms: KmsServer, code: str, status: int, kind: type[PayloadStoreError], *, retriable: bool
) -> None:
    """What may pass is tried again, as with a store that is away; what somebody must set right is not."""
    reference = write(ring(kms.config()))
    kms.trouble = lambda _: refusal(code, "said so", status)
    keyring = ring(kms.config())
    for call in (lambda: write(keyring), lambda: read(keyring, reference)):
        with pytest.raises(PayloadStoreError, match=f"of key {ARN} failed: {code or 'no code'} ") as raised:
            call()
        assert type(raised.value) is kind
        assert raised.value.retriable == retriable
    kms.trouble = lambda _: None
    assert read(keyring, reference) == VALUE


def test_nothing_is_stored_without_a_key(kms: KmsServer) -> None:
    """If KMS fails, no payload is left behind in the store."""
    kms.trouble = lambda _: refusal("ThrottlingException", "")
    store = open_store({**STORE, "memory.name": "empty"})
    assert isinstance(store, MemoryStore)
    with pytest.raises(PayloadStoreError):
        publish(store, "orders", Offload().payload(VALUE), by_digest=True, keyring=ring(kms.config()))
    assert list(store.list()) == []


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"Plaintext": "AAAA", "CiphertextBlob": "AAAA"},
        {"Plaintext": KEY},
        {"Plaintext": KEY, "CiphertextBlob": ""},
        {"Plaintext": KEY, "CiphertextBlob": "A"},
        {"Plaintext": 5, "CiphertextBlob": "AAAA"},
        {"Plaintext": {"a": "b"}, "CiphertextBlob": "AAAA"},
        [KEY],
        "AAAA",
        None,
    ],
)
def test_answers_that_are_no_keys(kms: KmsServer, answer: Any) -> None:
    """An answer that lacks a part, or is another program's, gives no key; it may pass, as that of a proxy does."""
    kms.trouble = lambda _: (200, answer)
    with pytest.raises(
        PayloadStoreError, match=f"of key {ARN} failed: received a response (that is not from|of) AWS KMS"
    ) as raised:
        write(ring(kms.config()))
    assert raised.value.retriable
    assert raised.value.key == "large.message.encryption.kms.endpoint"


def test_an_answer_that_nests_without_end_is_no_key(kms: KmsServer) -> None:
    """Nor does it leave as an error of Python's own."""
    body = b"[" * 200_000

    def script(_: Request, wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        return True

    with scripted_server(script) as server, pytest.raises(PayloadStoreError, match="not from AWS KMS") as raised:
        write(ring({**kms.config(), "large.message.encryption.kms.endpoint": server.endpoint}))
    assert raised.value.retriable


def test_no_key_stands_in_the_log(kms: KmsServer, caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG, botocore logs the bodies of answers; those with a key are left out."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="botocore")  # our own commands set it to INFO in this process
    reference = write(ring(kms.config()))
    assert read(ring(kms.config()), reference) == VALUE
    assert kms.plaintexts
    assert "Making request for OperationModel" in caplog.text
    assert not any(text in caplog.text for text in kms.plaintexts)


def test_no_other_endpoint_than_the_configured_one(kms: KmsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_ENDPOINT_URL, which many set for an S3 server, is not that of the keys, which would come in the clear."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", kms.endpoint)
    config = kms.config() | {"large.message.store.timeout.ms": 1_000}
    del config["large.message.encryption.kms.endpoint"]
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # AWS itself is not asked
    with pytest.raises(PayloadStoreError, match=r"127\.0\.0\.1:9"):
        write(ring(config))
    assert kms.calls == []


def test_slow_answer_has_an_end(kms: KmsServer) -> None:
    """A server that sends a byte now and then holds no thread for longer than a quarter of the time of a store call."""
    kms.pause_s = 0.05
    begun = time.monotonic()
    with pytest.raises(PayloadStoreError, match="did not finish in the time") as raised:
        write(ring(kms.config() | {"large.message.store.timeout.ms": 4_000}))
    assert raised.value.retriable
    assert time.monotonic() - begun < 5.0


def test_a_service_that_is_away_may_come_back(kms: KmsServer) -> None:
    """No connection is an error that may pass, and comes within a part of the time of a store call."""
    config = kms.config() | {"large.message.store.timeout.ms": 1_000}
    config["large.message.encryption.kms.endpoint"] = "http://127.0.0.1:9"
    with pytest.raises(PayloadStoreError) as raised:
        write(ring(config))
    assert raised.value.retriable
    assert raised.value.key == "large.message.encryption.kms.endpoint"


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://kms.example.com",
        "kms.example.com",
        "https://user:secret@host",
        "ftp://x",
        "https://kms.example.com:99999",
        "https://kms..example.com",
    ],
)
def test_endpoint_is_encrypted(endpoint: str) -> None:
    """Answers hold keys in the clear, so they come over TLS; the message shows no password."""
    with pytest.raises(ConfigurationError, match="allowed is https://") as raised:
        keyring_of(
            {
                "large.message.encryption.kms.key.id": ARN,
                "large.message.encryption.kms.endpoint": endpoint,
            }
        )
    assert "secret" not in str(raised.value)


def test_many_threads(kms: KmsServer) -> None:
    """The threads of a pipeline may use one keyring at a time, from its first call on."""
    keyring = ring(kms.config() | {REUSE: 5})
    with ThreadPoolExecutor(8) as pool:
        references = list(pool.map(lambda _: write(keyring), range(24)))
        found = list(pool.map(lambda each: read(keyring, each), references))
    assert found == [VALUE] * 24
