"""The preflight of stores: one that fails, or that hangs, is told with its pipeline and a key."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from app.cluster import preflight
from app.cluster.preflight import check_stores
from app.config.parsing import parse
from app.config.settings import PipelineSettings
from stores.store import Check
from tests.kms_server import ARN, KmsServer, refusal
from transforms.errors import ConfigurationError, PayloadStoreError
from transforms.keyring import EncryptionSettings


class Checked(Check):
    """A user's store that answers a check as a test wants it."""

    error: Exception | None = None
    may_answer = threading.Event()
    closed = 0

    def publish(self, topic: str, data: bytes) -> str:
        return topic

    def download(self, full_path: str) -> bytes:
        return b""

    def check(self, *, writing: bool = True) -> None:
        assert writing
        self.may_answer.wait(30)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        Checked.closed += 1
        if self.error is not None:
            raise OSError("of a close")


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> PipelineSettings:
    """A pipeline with that store, which answers at once."""
    monkeypatch.setattr(preflight, "_STORE_GRACE_S", 0.0)
    monkeypatch.setattr(Checked, "error", None)
    monkeypatch.setattr(Checked, "closed", 0)
    Checked.may_answer.set()
    table = {
        "topics": ["raw"],
        "output.topic": "orders",
        "transforms": ["offload"],
        "large.message.payload.store.class": "tests.app.cluster.test_preflight:Checked",
        "large.message.store.timeout.ms": 1_000,
    }
    return parse({"bootstrap.servers": "b:1", "pipeline": {"p": table}}, {}).pipelines[0]


def test_store_that_works(pipeline: PipelineSettings) -> None:
    """Nothing is said of it; it is closed."""
    asyncio.run(check_stores([pipeline]))
    assert Checked.closed == 1


def test_store_that_fails(pipeline: PipelineSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is told with the pipeline and the key of the store; it is closed, whatever comes of that."""
    monkeypatch.setattr(Checked, "error", PayloadStoreError("no such bucket"))
    with pytest.raises(
        ConfigurationError, match=r"\[pipeline\.p\] large\.message\..*: the store cannot be used: no such b"
    ):
        asyncio.run(check_stores([pipeline]))
    assert Checked.closed == 1


def test_time_out_of_the_store_itself(pipeline: PipelineSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as what the store raised, and not as our own time-out."""
    monkeypatch.setattr(Checked, "error", TimeoutError("of a socket"))
    with pytest.raises(ConfigurationError, match=r"Checked\.check raised TimeoutError: of a socket"):
        asyncio.run(check_stores([pipeline]))


def test_store_that_hangs(pipeline: PipelineSettings) -> None:
    """It is refused after its time-out; its late answer harms nobody."""
    Checked.may_answer.clear()
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match="the store did not answer within 1,000 ms"):
        asyncio.run(check_stores([pipeline]))
    assert time.monotonic() - began < 10
    Checked.may_answer.set()
    for thread in threading.enumerate():
        if thread.name == "check-p":
            assert thread.daemon
            thread.join(10)


def test_key_that_cannot_be_had(pipeline: PipelineSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer asks AWS KMS for a key before it reads a record, and is told of a refusal; a reader asks nothing."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    pipeline = replace(pipeline, store_timeout_ms=60_000)
    with KmsServer() as kms:
        writer = replace(pipeline, encryption=EncryptionSettings.of(kms.config()))
        asyncio.run(check_stores([writer]))
        assert kms.calls == [("GenerateDataKey", ARN)]
        kms.trouble = lambda _: refusal("AccessDeniedException", "not yours")
        said = (
            f"payloads cannot be encrypted: GenerateDataKey of key {ARN} failed: AccessDeniedException .* it needs kms:"
        )
        with pytest.raises(ConfigurationError, match=said) as raised:
            asyncio.run(check_stores([writer]))
        assert (raised.value.pipeline, raised.value.key) == ("p", "large.message.encryption.kms.key.id")
        reading = EncryptionSettings.of(kms.config() | {"large.message.encryption.type": "none"})
        asyncio.run(check_stores([replace(pipeline, encryption=reading)]))
        assert len(kms.calls) == 2
