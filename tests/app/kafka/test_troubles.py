"""The register of troubles: what is reported of what was noted, and when the log says so."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime

import pytest

from app.kafka.source_batch import ReadRecord
from app.kafka.troubles import (
    AT_STORE,
    GROUP,
    LEADERLESS,
    OF_CLUSTER,
    OF_STORE,
    REFUSED,
    SHORT,
    STORE,
    THROTTLED,
    UNANSWERED,
    UNREADABLE,
    WITHOUT_STORE,
    Kind,
    Troubles,
)
from tests.app.kafka.wired import Clock

RECORD = ReadRecord("raw", 3, 812, 0)


class Told(Troubles):
    """The troubles of pipeline p, by a clock that is set, and the lines of the log since the last look."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = Clock()
        self._caplog = caplog
        super().__init__("p", self.now)

    @property
    def lines(self) -> list[str]:
        said = [f"{line.levelname} {line.getMessage()}" for line in self._caplog.records]
        assert all(hasattr(line, "fields") for line in self._caplog.records if "waits: broker" in line.getMessage())
        self._caplog.clear()
        return said

    def of_cluster(self) -> str:
        return str(self.text(*OF_CLUSTER))


@pytest.fixture
def troubles(caplog: pytest.LogCaptureFixture) -> Told:
    caplog.set_level(logging.INFO)
    return Told(caplog)


def test_sentences_of_what_is_noted(troubles: Told) -> None:
    """In the order of their kinds, the oldest first, each with its time; a consequence only without its cause."""
    assert troubles.text(*OF_CLUSTER) is None
    troubles.note(LEADERLESS, "topic t, partition 1")
    troubles.now.now_s += 1
    troubles.note(LEADERLESS, "topic t, partition 0")
    text = troubles.of_cluster()
    assert text.startswith("topic t, partition 1 and 1 more without a leader since 20")
    troubles.note(UNANSWERED, "b:2")
    troubles.note(UNANSWERED, "b:1", since_s=troubles.now.now_s - 60)
    found = [each.partition(" since 20")[0] for each in troubles.of_cluster().split("; ")]
    assert found == [f"broker b:{number} does not answer" for number in (1, 2)]
    troubles.only[UNANSWERED] = lambda name: name == "b:2"
    assert troubles.of_cluster().startswith("broker b:2 does")
    troubles.end(UNANSWERED, "b:2")
    assert troubles.of_cluster() == text
    troubles.note_all(LEADERLESS, ["topic t, partition 0"])
    assert troubles.of_cluster().startswith("topic t, partition 0 without a leader")


def test_since_when_and_how_long(troubles: Told) -> None:
    """From an age on, since it was noted first, and as long as it is seen again; a wait for a quota is another one."""

    def age(kind: Kind) -> int | None:
        """How long a trouble lasts, by its text, in tens of seconds."""
        found = re.search(r"since (20[-0-9T:+]+)", str(troubles.text(kind)))
        ago = found and (datetime.now(UTC) - datetime.fromisoformat(found[1])).total_seconds()
        return None if ago is None else round(ago / 10)

    troubles.note(UNREADABLE, "place", "t", 0, "FENCED_LEADER_EPOCH", patience_s=10)
    troubles.note(UNANSWERED, "b:1")
    troubles.note(THROTTLED, "b:1", seen_s=troubles.now.now_s + 20)
    ages = []
    for seconds in (0, 10, 10, 39, 1):
        troubles.now.now_s += seconds
        ages.append([age(kind) for kind in (UNREADABLE, UNANSWERED, THROTTLED)])
    assert ages == [[None, 0, 0], [1, 1, 1], [2, 2, 2], [6, 6, None], [6, None, None]]
    for kind in (UNANSWERED, THROTTLED):
        troubles.note(kind, "b:1")
    assert [age(kind) for kind in (UNANSWERED, THROTTLED)] == [6, 0]
    with troubles.lasting(GROUP, "g", "rebalances", patience_s=10):
        assert troubles.text(GROUP) is None
        troubles.now.now_s += 10
        assert str(troubles.text(GROUP)).startswith("group g rebalances since 20")
    assert troubles.text(GROUP) is None


def test_what_outlives_a_flow(troubles: Told) -> None:
    """That brokers do not answer, or topics lack replicas; the rest is for the next flow to find out."""
    for kind in (*OF_STORE, *OF_CLUSTER):
        troubles.note(kind, "x", "x", "y", "z")
    troubles.end_flow()
    assert [kind for kind in (*OF_STORE, *OF_CLUSTER) if troubles.has(kind)] == [UNANSWERED, SHORT]


def test_topics_that_accept_no_records(troubles: Told) -> None:
    """What the cluster says counts more than what brokers answer."""
    troubles.note(REFUSED, "orders")
    told = "topic orders accepts no records: brokers answer that fewer replicas are in sync than min.insync.replicas"
    assert str(troubles.text(SHORT, REFUSED)).startswith(told)
    troubles.note(SHORT, "orders", "topic orders lacks replicas")
    assert str(troubles.text(SHORT, REFUSED)).startswith("topic orders lacks replicas (since 20")


def test_lines_of_a_cluster_that_fails(troubles: Told) -> None:
    """A line when it begins, each five minutes, and when it is over; each counts as a change of state."""
    troubles.note(SHORT, "t", "broker b does not answer")
    for seconds in (0, 1, 298, 1, 1):
        troubles.now.now_s += seconds
        troubles.look()
    waits = "WARNING pipeline p waits: broker b does not answer (since 20"
    assert [line.startswith(waits) for line in troubles.lines] == [True, True]
    troubles.end(SHORT, "t")
    for _ in range(2):
        troubles.look()
    assert troubles.lines == ["INFO pipeline p: brokers and group answer again, after 0:05:01"]
    troubles.refresh = lambda: troubles.note(SHORT, "t", "broker b does not answer")
    troubles.look()
    troubles.forget()
    troubles.look()
    assert len(troubles.lines) == 1, "that somebody answers is not known"


def test_lines_of_a_store_that_fails_now_and_then(troubles: Told) -> None:
    """It gets one line in its time, which counts the failures that had none; one that stays down is told again."""
    for _ in range(4):
        troubles.now.now_s += 0.25
        troubles.store_fails(STORE, "trial", "no", "down", RECORD)
        troubles.store_answers(STORE, "trial")
        troubles.look()
    assert troubles.lines == [
        "WARNING pipeline p: topic raw, partition 3, offset 812 waits: down",
        "INFO pipeline p: the store answers again, after 0.0 s",
    ]
    troubles.store_fails(STORE, "trial", "no", "down", RECORD)
    assert troubles.text(*OF_STORE) == "no"
    troubles.now.now_s += 30
    with troubles.lasting(AT_STORE, RECORD), troubles.lasting(AT_STORE, None):
        troubles.look()
    (line,) = troubles.lines
    assert line.startswith("WARNING pipeline p: the store fails since 20")
    assert line.endswith(
        ", 4 times since the last line; 2 records wait for it, the first is topic raw, partition 3, offset 812: down"
    )
    troubles.end(STORE, "trial")
    troubles.now.now_s += 30
    troubles.look()
    assert troubles.lines == []
    troubles.store_fails(STORE, "trial", "no", "down")
    assert troubles.lines == ["WARNING pipeline p: down"]


def test_an_outage_lasts_until_nothing_fails(troubles: Told) -> None:
    """The reason of a record that waits is reported rather than that others go on without the store."""
    troubles.store_fails(WITHOUT_STORE, None, "away", "large values go as chunks: away")
    troubles.store_fails(STORE, "trial", "down", "down", RECORD)
    assert troubles.text(*OF_STORE) == "down"
    troubles.store_answers(STORE, "trial")
    assert troubles.text(*OF_STORE) == "away"
    assert len(troubles.lines) == 1
    troubles.store_answers(WITHOUT_STORE, None)
    assert troubles.lines == ["INFO pipeline p: the store answers again, after 0.0 s"]


def test_joining_says_until_when(troubles: Told) -> None:
    """Until it takes long it is only said that it joins; then for whom it waits, and until when by which key."""
    assert troubles.awaited is None
    troubles.note(UNANSWERED, "b:1")
    with troubles.joining("g", 45, 300):
        troubles.now.now_s += 2.9
        assert str(troubles.awaited).endswith("; joins group g")
        troubles.now.now_s += 0.1
        for _ in range(2):
            troubles.look()
        away, waits = str(troubles.awaited).split("; ")
        assert away.startswith("broker b:1 does not answer since 20")
    times = r"waits since (\S+) for other members of group g: for one that was killed until (\S+) at the latest "
    names = r"\(consumer.session.timeout.ms\), for one that finishes its records until (\S+) \(consumer.max.poll"
    found = re.match(times + names, waits)
    assert found is not None
    began, killed, at_work = (datetime.fromisoformat(each) for each in found.groups())
    assert abs((killed - began).total_seconds() - 48) <= 1, "the time of the test stands while its clock is set"
    assert (at_work - killed).total_seconds() == 255
    assert troubles.lines[1:] == [f"INFO pipeline p {away}; {waits}"]
    assert troubles.awaited is None
