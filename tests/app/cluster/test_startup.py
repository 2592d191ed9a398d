"""The start of a worker: what it waits for, and what ends it at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import GroupCoordinatorNotAvailableError

from app.cluster import coordinator, preflight, startup
from app.cluster.coordinator import check_transactional_ids
from app.cluster.preflight import Plan, check_stores
from app.cluster.startup import check_patiently
from app.cluster.topic_creation import create_topic
from app.config.findings import Findings
from app.config.parsing import parse
from app.config.settings import Settings
from app.kafka.clients import ClusterError
from stores.store import Check
from tests.app.kafka.scripted_broker import LOGIN, Broker, server
from transforms.errors import ConfigurationError, PayloadStoreError

_REFUSED_TOPIC, _BAD_REPLICATION_FACTOR, _TIMED_OUT = 29, 38, 7
LONG_MS = 60_000


class Failing(Check):
    """A user's store that fails its checks until it has failed with each of `errors`."""

    errors: tuple[PayloadStoreError, ...] = ()
    answers = threading.Event()
    ended = threading.Event()

    def publish(self, topic: str, data: bytes) -> str:
        return topic

    def download(self, full_path: str) -> bytes:
        return b""

    def check(self, *, writing: bool = True) -> None:
        assert writing
        ended = Failing.ended
        try:
            assert Failing.answers.wait(LONG_MS)
            if Failing.errors:
                first, *rest = Failing.errors
                Failing.errors = tuple(rest)
                raise first
        finally:
            ended.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asks again at once, and gives up a coordinator at once; the store answers."""
    monkeypatch.setattr(Failing, "answers", threading.Event())
    monkeypatch.setattr(Failing, "ended", threading.Event())
    Failing.answers.set()
    monkeypatch.setattr(startup, "_PAUSE_S", 0.01)
    monkeypatch.setattr(coordinator, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(coordinator, "_PAUSE_S", 0.0)


def settings_of(wait_ms: int, **keys: object) -> Settings:
    """A configuration that waits so long."""
    table = {
        "topics": ["raw"],
        "output.topic": "orders",
        "transforms": ["offload"],
        "large.message.payload.store.class": f"{__name__}:Failing",
    }
    top = {name.replace("_", "."): value for name, value in keys.items()}
    return parse({"bootstrap.servers": "b:1", **top, "startup.wait.ms": wait_ms, "pipeline": {"p": table}}, {})


async def nothing(_: Settings) -> None:
    """There is no control topic."""


async def started(settings: Settings, read: Callable[[Settings], Awaitable[None]] = nothing) -> list[str]:
    """Starts; what was told of what it waits for."""
    told: list[str] = []
    assert await check_patiently(settings, Findings(), told.append, read) == ([], None)
    return told


def checks(monkeypatch: pytest.MonkeyPatch, check: Callable[[Settings], Awaitable[None]]) -> None:
    """Lets the preflight be this check alone."""

    async def checked(settings: Settings, findings: Findings) -> list[Plan]:
        with findings.noted():
            await check(settings)
        findings.check()
        return []

    monkeypatch.setattr(startup, "check", checked)


def once(monkeypatch: pytest.MonkeyPatch, check: Callable[[], Awaitable[object]]) -> None:
    """Lets the preflight be this check, which must fail, and then none."""

    async def failing(_: Settings) -> None:
        checks(monkeypatch, nothing)
        await check()
        pytest.fail("it did not fail")

    checks(monkeypatch, failing)


# --- brokers that do not let a worker in -----------------------------------------------------------------------------


async def test_password_that_is_wrong_is_tried_once() -> None:
    """A try in each second would lock the user out; so the start ends at once, however long it may wait."""
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "u"}
    broker, told = Broker(asks=True), list[str]()
    async with server(broker) as port:
        settings = settings_of(LONG_MS, bootstrap_servers=f"127.0.0.1:{port}", sasl_password="p", **login)
        began_s = time.monotonic()
        with pytest.raises(ConfigurationError, match=r"do not accept sasl\.username and sasl\.password"):
            await check_patiently(settings, Findings(), told.append, nothing)
    assert time.monotonic() - began_s < LONG_MS / 2000
    assert told == []
    # aiokafka's own try, and the one that finds out why it has failed: for the pipeline alone.
    assert broker.asked.count(LOGIN) == 2


# --- stores ----------------------------------------------------------------------------------------------------------


async def test_store_that_fails_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is checked again until it works, and told once."""
    checks(monkeypatch, lambda settings: check_stores(settings.pipelines))
    may_pass = PayloadStoreError("answers 503", retriable=True)
    monkeypatch.setattr(Failing, "errors", (may_pass, may_pass))
    (told,) = await started(settings_of(LONG_MS))
    assert "(startup.wait.ms): [pipeline.p] large.message.payload.store.class: " in told
    assert told.endswith("the store cannot be used: answers 503")


async def test_store_that_hangs_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one that does not answer at all."""
    settings = settings_of(LONG_MS)
    monkeypatch.setattr(preflight, "_STORE_GRACE_S", -settings.pipelines[0].store_timeout_ms / 1000)  # no time at all
    Failing.answers.clear()
    once(monkeypatch, lambda: check_stores(settings.pipelines))
    (told,) = await started(settings)
    Failing.answers.set()
    assert Failing.ended.wait(LONG_MS / 1000)  # else its thread would take the error of the next test
    assert "the store did not answer within" in told


async def test_store_that_refuses_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody must act first."""
    checks(monkeypatch, lambda settings: check_stores(settings.pipelines))
    monkeypatch.setattr(Failing, "errors", (PayloadStoreError("no such bucket"),))
    with pytest.raises(ConfigurationError, match="no such bucket"):
        await started(settings_of(LONG_MS))


# --- a cluster that is partly up -------------------------------------------------------------------------------------


async def test_coordinator_that_is_not_there_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few brokers are there to make the topic of the transactions."""

    async def refuse(*_: object) -> None:
        raise GroupCoordinatorNotAvailableError

    connection: Any = SimpleNamespace(find_coordinator=refuse)
    once(monkeypatch, lambda: check_transactional_ids(connection, ["p:raw:0"], 60_000, "processing.guarantee"))
    (told,) = await started(settings_of(LONG_MS))
    assert "have had no transaction coordinator" in told


def creating(code: int) -> Callable[[], Awaitable[bool]]:
    """A topic is to be made, and the brokers answer with this error."""

    async def answer(_: object) -> Any:
        return SimpleNamespace(topic_errors=[("orders", code, "no reason")])

    connection: Any = SimpleNamespace(create_topics=answer)
    return lambda: create_topic(connection, "output.topic", "orders", 1, 3)


@pytest.mark.parametrize("code", [_BAD_REPLICATION_FACTOR, _TIMED_OUT])
async def test_brokers_for_a_topic_are_waited_for(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few are there for its replication factor, or the controllers do not agree yet."""
    once(monkeypatch, creating(code))
    (told,) = await started(settings_of(LONG_MS))
    assert told.endswith("output.topic: topic orders cannot be created: no reason")


async def test_controller_that_cannot_be_reached_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiokafka ends with a time-out of Python's own."""

    async def answer(_: object) -> None:
        raise TimeoutError

    connection: Any = SimpleNamespace(create_topics=answer)
    once(monkeypatch, lambda: create_topic(connection, "output.topic", "orders", 1, 3))
    (told,) = await started(settings_of(LONG_MS))
    assert told.endswith("topic orders cannot be created: TimeoutError")


async def test_right_that_is_missing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is any other refusal of a topic."""
    once(monkeypatch, creating(_REFUSED_TOPIC))
    with pytest.raises(ConfigurationError, match="topic orders cannot be created"):
        await started(settings_of(LONG_MS))


# --- the control topic -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait_ms", [LONG_MS, 0])
async def test_control_topic_is_waited_for(wait_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read once all else is well; where it cannot be read yet, all is looked at again, if the start may wait."""
    looked: list[str] = []

    async def look(_: Settings) -> None:
        looked.append("check")

    async def read(_: Settings) -> None:
        looked.append("read")
        if len(looked) < 4:
            raise ClusterError("control.topic cannot be read", retriable=True)

    checks(monkeypatch, look)
    if wait_ms:
        (told,) = await started(settings_of(wait_ms), read)
        assert told.endswith("(startup.wait.ms): control.topic cannot be read")
        assert looked == ["check", "read", "check", "read"]
    else:
        with pytest.raises(ClusterError):
            await started(settings_of(wait_ms), read)
        assert looked == ["check", "read"]
