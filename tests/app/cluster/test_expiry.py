from __future__ import annotations

import dataclasses
import logging
import math
import threading
from collections.abc import Iterator, Mapping, Sequence

import pytest

from app.cluster.expiry import survey, warnings_within
from app.cluster.expiry_watch import ExpiryWatch
from app.cluster.preflight import Plan
from app.config.parsing import parse
from app.config.settings import ClientSettings, PipelineSettings
from app.kafka.topics import Topic
from stores.registry import open_store
from stores.store import ExpiryRule, Lifecycle
from transforms.errors import PayloadStoreError

DAY = 86_400_000
ORDERS = Topic("orders", 1, 1_000_000, "delete", 7 * DAY)
RAW = Topic("raw", 1, 1_000_000, "delete", 7 * DAY)
CLIENT = ClientSettings("b:1")
PLAN = Plan("p", (RAW,), ORDERS, None)


class Expiring(Lifecycle):
    """A user's store with rules, which answers when it may."""

    days: Mapping[str, int] = {}
    whole = True
    error: Exception | None = None
    may_answer = threading.Event()

    def publish(self, topic: str, data: bytes) -> str:
        return topic

    def download(self, full_path: str) -> bytes:
        return b""

    def expiry_rules(self, topic: str) -> Sequence[ExpiryRule]:
        self.may_answer.wait()
        if self.error is not None:
            raise self.error
        days = type(self).days.get(topic)
        return [] if days is None else [ExpiryRule("mine", days, None, self.whole, tagged=False, own=True, scope="")]

    def set_expiry(self, topic: str, days: int | None) -> bool:
        type(self).days = {} if days is None else {topic: days}
        return True


@pytest.fixture(autouse=True)
def answering() -> Iterator[None]:
    """The store has no rules, answers at once, and lets nobody wait behind the test."""
    Expiring.days, Expiring.whole, Expiring.error = {}, True, None
    Expiring.may_answer.set()
    yield
    Expiring.may_answer.set()


@pytest.fixture
def pipeline() -> PipelineSettings:
    """A pipeline with that store."""
    table = {
        "topics": ["raw"],
        "output.topic": "orders",
        "transforms": ["offload"],
        "large.message.payload.store.class": "tests.app.cluster.test_expiry:Expiring",
    }
    return parse({"bootstrap.servers": "b:1", "pipeline": {"p": table}}, {}).pipelines[0]


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def settled() -> None:
    """Waits for the threads that ask."""
    for thread in threading.enumerate():
        if thread.name.startswith("lifecycle-"):
            thread.join(10)


def test_a_users_store_may_have_rules(pipeline: PipelineSettings) -> None:
    """A user's own class with the capability is asked, and set, as S3 is."""
    (before,) = survey(pipeline, {"orders": ORDERS})
    assert (before.state, before.wrong, before.changed) == ("missing", True, None)
    (after,) = survey(pipeline, {"orders": ORDERS}, apply=True)
    assert (after.state, after.wrong, after.changed) == ("ok", False, "Wideload's rule is set to 9 d")


def test_own_rule_that_somebody_changed_goes_too(pipeline: PipelineSettings) -> None:
    """Where records stay, our rule is removed whatever has been made of it."""
    Expiring.days = {"orders": 9}
    Expiring.whole = False
    (before,) = survey(pipeline, {"orders": dataclasses.replace(ORDERS, cleanup_policy="compact")})
    assert before.state == "forbidden"
    assert before.message.endswith("; `wideload store lifecycle --apply` removes Wideload's rule")
    (after,) = survey(pipeline, {"orders": dataclasses.replace(ORDERS, cleanup_policy="compact")}, apply=True)
    assert (after.state, after.wrong, after.changed) == ("no-ttl", False, "Wideload's rule is removed")


def test_warning_is_one_line(pipeline: PipelineSettings, caplog: pytest.LogCaptureFixture) -> None:
    """What is to be warned of is a line with the pipeline's name, once; where all is well there is none."""
    store = open_store(pipeline.store)
    margins: list[Mapping[str, float]] = []
    watch = ExpiryWatch(CLIENT, pipeline, margins.append)
    watch.look(PLAN, store)
    settled()
    watch.look(PLAN, store)
    settled()
    (line,) = lines(caplog, logging.WARNING)
    assert line.startswith("pipeline p: no rule deletes payloads")
    caplog.clear()
    Expiring.days = {"orders": 9}
    watch.look(PLAN, store)
    settled()
    assert lines(caplog, logging.WARNING) == []
    assert margins == [{"orders": math.inf}, {"orders": math.inf}, {"orders": 2 * DAY / 1000}]


@pytest.mark.parametrize("error", [PayloadStoreError("not allowed"), RuntimeError("a defect")])
def test_store_that_cannot_be_asked_gives_no_warning(
    pipeline: PipelineSettings, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the store fails, the log says so at DEBUG, and nothing else happens."""
    Expiring.error = error
    with caplog.at_level(logging.DEBUG, "wideload.cluster.expiry"):
        assert warnings_within(pipeline, PLAN) == []
    assert lines(caplog, logging.WARNING) == []
    (line,) = lines(caplog, logging.DEBUG)
    assert str(error) in line


def test_store_that_hangs_holds_up_nobody(pipeline: PipelineSettings) -> None:
    """A store that never answers delays neither the worker nor, beyond its time, the check."""
    Expiring.may_answer.clear()
    ExpiryWatch(CLIENT, pipeline, lambda _: None).look(PLAN, open_store(pipeline.store))
    assert warnings_within(pipeline, PLAN, seconds=0.05) == []
    assert not Expiring.may_answer.is_set()
    waiting = [thread for thread in threading.enumerate() if thread.name == "lifecycle-p"]
    assert len(waiting) == 2
    assert all(thread.daemon for thread in waiting)  # or the process could not end
    Expiring.may_answer.set()
    settled()


def test_a_compacted_topic_is_warned_of_whatever_the_store_says(pipeline: PipelineSettings) -> None:
    """That payloads of a compacted topic must have no TTL is said also where the store cannot tell its rules."""
    Expiring.error = PayloadStoreError("rules are not implemented")
    compacted = dataclasses.replace(ORDERS, cleanup_policy="compact")
    for topic, said in ((compacted, True), (ORDERS, False)):
        (row,) = survey(pipeline, {"orders": topic})
        assert row.state == "unknown"
        assert row.message.startswith("rules are not implemented")
        assert ("so a TTL must not be used" in row.message) is said
