from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transforms.retention import FOREVER, ExpiryRule, Retention, duration_text

HOUR = 3_600_000
DAY = 24 * HOUR


def rule(days: int | None, **more: Any) -> ExpiryRule:
    """A rule of somebody else for all payloads, but for what is said."""
    fields = {"id": "theirs", "date": None, "whole": True, "tagged": False, "own": False, "scope": "all keys"}
    return ExpiryRule(days=days, **{**fields, **more})


def ours(days: int) -> ExpiryRule:
    return rule(days, id="ours", own=True)


def retention(milliseconds: int = 7 * DAY, policy: str = "delete", segment_ms: int = 0) -> Retention:
    return Retention("orders", milliseconds, policy, segment_ms)


@pytest.mark.parametrize(
    ("milliseconds", "days"),
    [
        (0, 1),
        (1, 1),
        (HOUR, 1),
        (DAY, 2),
        (20 * DAY, 23),  # 23 exactly
        (20 * DAY + 1, 24),
        (7 * DAY, 9),
        (30 * DAY, 35),
        (365 * DAY, 420),
    ],
)
def test_recommended_days(milliseconds: int, days: int) -> None:
    """The TTL is the retention and 15 %, rounded up to whole days, and one day at least."""
    assert retention(milliseconds).recommended_days == days


@given(st.integers(0, 10_000 * DAY))
def test_recommended_is_ok_whatever_the_retention(milliseconds: int) -> None:
    """What is recommended is judged to be right, and is set only once."""
    topic = retention(milliseconds)
    days = topic.recommended_days
    assert days is not None
    assert topic.judge([ours(days)]).state == "ok"
    assert topic.own_days([]) == topic.own_days([ours(days)]) == days
    assert days * DAY >= milliseconds * 1.1


@pytest.mark.parametrize(
    ("milliseconds", "days", "state"),
    [
        (10 * DAY, 10, "too-short"),
        (10 * DAY, 11, "ok"),  # 10 % exactly
        (10 * DAY + 1, 11, "too-short"),
        (10 * DAY, 12, "ok"),  # 20 %
        (10 * DAY, 13, "too-long"),
        (HOUR, 1, "ok"),
        (HOUR, 2, "too-long"),
        (0, 1, "ok"),
    ],
)
def test_verdict_at_each_boundary(milliseconds: int, days: int, state: str) -> None:
    """Between 10 and 20 % above the retention, in whole days, is right."""
    assert retention(milliseconds).judge([rule(days)]).state == state


@pytest.mark.parametrize(
    ("policy", "rules", "margin_s"),
    [
        ("delete", [rule(9)], 2 * DAY / 1000),
        ("delete", [rule(400), rule(3, whole=False)], -4 * DAY / 1000),
        ("delete", [rule(3, tagged=True), ours(9)], 2 * DAY / 1000),
        ("delete", [rule(None, date="2030-01-31")], -math.inf),
        ("delete", [], math.inf),
        ("compact", [], None),
        ("compact", [rule(400)], -math.inf),
    ],
)
def test_margin(policy: str, rules: Sequence[ExpiryRule], margin_s: float | None) -> None:
    """How much longer than seven days the payloads stay, by the earliest rule; rules for tags do not count."""
    assert retention(policy=policy).margin_s(rules) == margin_s


@pytest.mark.parametrize(
    ("rules", "state", "part"),
    [
        ([], "missing", "no rule deletes payloads, so they stay forever"),
        ([rule(9), rule(3)], "too-short", "rule 'theirs' (all keys) deletes payloads after 3 d"),
        ([rule(400), ours(9)], "ok", "Wideload's rule ours deletes payloads after 9 d"),
        ([rule(400)], "too-long", "later than needed"),
        ([rule(3, whole=False), ours(9)], "too-short", "deletes some payloads after 3 d"),
        ([rule(30, whole=False)], "missing", "no rule deletes all payloads, so"),
        ([rule(3, whole=False, tagged=True), ours(9)], "ok", "after 9 d"),
        ([rule(None, date="2030-01-31"), ours(9)], "too-short", "from 2030-01-31 on, whatever their age"),
    ],
)
def test_verdict_by_the_earliest_rule(rules: Sequence[ExpiryRule], state: str, part: str) -> None:
    """The earliest rule decides; one that leaves some payloads out can be too early, but is never enough."""
    for ordered in (rules, list(reversed(rules))):
        verdict = retention().judge(ordered)
        assert verdict.state == state
        assert part in verdict.message
        assert "topic orders keeps records for 7 d, so payloads should be kept for 9 d" in verdict.message
        assert verdict.wrong is verdict.warns is (state in {"missing", "too-short"})


@pytest.mark.parametrize(
    ("milliseconds", "policy", "reason"),
    [
        (7 * DAY, "compact", "is compacted without delete (cleanup.policy=compact)"),
        (7 * DAY, "", "is not cleaned up at all (cleanup.policy=)"),
        (FOREVER, "delete", "keeps records forever (retention.ms=-1)"),
        (FOREVER, "compact,delete", "keeps records forever (retention.ms=-1)"),
        (2**63 - 1, "delete", "keeps records forever"),
    ],
)
def test_verdict_where_records_stay(milliseconds: int, policy: str, reason: str) -> None:
    """Where records stay forever a TTL must not be used: that is a warning, and with any rule something is wrong."""
    topic = retention(milliseconds, policy)
    assert topic.recommended_days is None
    kept, lost = topic.judge([rule(3, tagged=True, whole=False)]), topic.judge([rule(9), ours(8)])
    assert (kept.state, kept.warns, kept.wrong) == ("no-ttl", True, False)
    assert (lost.state, lost.warns, lost.wrong) == ("forbidden", True, True)
    assert "Wideload's rule ours deletes payloads after 8 d; remove it" in lost.message
    for message in (kept.message, lost.message):
        assert f"topic orders {reason}" in message
        assert "a TTL must not be used" in message


@pytest.mark.parametrize("policy", ["compact,delete", "delete,compact", "compact, delete"])
def test_compaction_with_delete_is_as_delete(policy: str) -> None:
    """A topic that is compacted and deleted from has the TTL of one that is only deleted from."""
    assert retention(policy=policy).recommended_days == 9
    assert retention(policy=policy).judge([ours(9)]).state == "ok"


@pytest.mark.parametrize(
    ("rules", "days"),
    [
        ([], 9),
        ([ours(3)], 9),
        ([ours(8)], 8),
        ([ours(9)], 9),
        ([ours(400)], 400),  # perhaps another cluster's
        ([rule(9)], None),  # somebody else's will do
        ([rule(400)], 9),
        ([rule(3)], 9),
        ([rule(3), ours(9)], 9),
    ],
)
def test_own_rule(rules: Sequence[ExpiryRule], days: int | None) -> None:
    """Our own rule is set where it is needed, made longer where it is too short, and never made shorter."""
    assert retention().own_days(rules) == days


def test_own_rule_must_go_where_records_stay() -> None:
    """Where there must be no TTL, there is no rule of ours."""
    assert retention(policy="compact").own_days([ours(9)]) is None


def test_notes_name_rules_for_tags_and_long_segments() -> None:
    """What the verdict leaves out is said: rules for tagged payloads only, and records that outlive their time."""
    tagged = rule(3, whole=False, tagged=True, scope="tag a=b")
    (note,) = retention().notes([tagged, ours(9)])
    assert note == "rule 'theirs' (tag a=b) deletes some payloads after 3 d, if they have this tag; Wideload sets none"
    (note,) = retention(segment_ms=7 * DAY).notes([ours(9)])
    assert note.startswith("records of topic orders may stay for up to 14 d: Kafka deletes whole segments")
    assert retention(segment_ms=2 * DAY).notes([ours(9)]) == []
    assert retention(segment_ms=7 * DAY).notes([ours(3)]) == []  # the verdict says enough
    assert retention(policy="compact", segment_ms=7 * DAY).notes([]) == []


def test_segments_count_for_the_age() -> None:
    """A record may stay for `segment.ms` longer: payloads stay for a day more, and Wideload's rule is made longer."""
    days = {0: 9, DAY: 9, 2 * DAY: 10, 7 * DAY: 15}
    assert {each: retention(segment_ms=each).recommended_days for each in days} == days
    week = retention(segment_ms=7 * DAY)
    assert week.judge([ours(15)]).state == "ok"
    assert week.judge([ours(16)]).state == "too-long"
    assert week.own_days([ours(9)]) == 15
    assert week.own_days([ours(15)]) == 15
    assert "keep payloads for 15 d" in (week.outlived([ours(9)]) or "")
    assert week.outlived([ours(14)]) is None


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-1, "forever"),
        (0, "0 ms"),
        (7 * DAY, "7 d"),
        (36 * HOUR, "1 d 12 h"),
        (90_000, "1 min 30 s"),
        (DAY + HOUR + 60_000, "1 d 1 h"),
        (3_650 * DAY, "3,650 d"),
    ],
)
def test_duration_text(milliseconds: int, text: str) -> None:
    """Two units at most, and words where there is no end."""
    assert duration_text(milliseconds) == text
