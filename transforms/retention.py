"""How long payloads must be kept, depending on the retention of their topic.

Source: KIP-1159, "Considerations" (a TTL should exceed the topic's retention by 10 to 20 %; payloads of a topic that is
only compacted have no TTL). `compact,delete` deletes by age as `delete` does. `retention.bytes` only makes Kafka delete
earlier, so it does not require a longer TTL.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

FOREVER = -1  # in `retention.ms`

LONGEST_HOLD_S = 1_200.0
"""How long the worker holds the reference to a payload that it has stored, behind a record that waits for the store.

A sweep deletes a payload without a reference after its minimum age, which is at least an hour. Payloads whose reference
was held for longer than this are therefore stored again.
"""

_DAY_MS = 86_400_000
_PERCENT, _LEAST_PERCENT, _MOST_PERCENT = 115, 110, 120
_MOST_DAYS = 2**31 - 1  # of an S3 rule; a longer retention counts as unlimited

State = Literal["ok", "missing", "too-short", "too-long", "forbidden", "no-ttl"]
"""The result of a check of a store's expiry rules.

`ok`: payloads are kept a little longer than records. `missing`: no rule deletes them. `too-short`: payloads are deleted
before their records, or less than 10 % after. `too-long`: they are kept for more than 120 % of the retention and longer
than recommended, which only costs storage. `forbidden`: records are kept forever, but a rule deletes payloads.
`no-ttl`: both are kept forever.
"""

_WARNED: frozenset[State] = frozenset({"missing", "too-short", "forbidden", "no-ttl"})
_WRONG: frozenset[State] = _WARNED - {"no-ttl"}


@dataclass(frozen=True, slots=True)
class ExpiryRule:
    """A rule by which a store deletes payloads on its own.

    Attributes:
        id: the rule's name in the store.
        days: the age at which payloads are deleted; None if `date` is set.
        date: the day, as `2030-01-31`, from which on payloads of any age are deleted; None if `days` is set.
        whole: whether it is for every payload of the topic, not only for some sizes, names or tags.
        tagged: whether it is only for payloads with a tag. The project sets no tags.
        own: whether `Lifecycle.set_expiry` of the store sets this rule.
        scope: the objects that it is for, in words.
    """

    id: str
    days: int | None
    date: str | None
    whole: bool
    tagged: bool
    own: bool
    scope: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check of a topic and the rules for its payloads.

    Attributes:
        state: in a word.
        message: in a sentence.
    """

    state: State
    message: str

    @property
    def warns(self) -> bool:
        """Whether to warn the user at start."""
        return self.state in _WARNED

    @property
    def wrong(self) -> bool:
        """Whether something must be corrected."""
        return self.state in _WRONG


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a topic keeps its records.

    Attributes:
        topic: its name.
        retention_ms: its `retention.ms`; -1 for unlimited.
        cleanup_policy: its `cleanup.policy`.
        segment_ms: its `segment.ms`. A record may stay so much longer, since whole segments are deleted.
    """

    topic: str
    retention_ms: int
    cleanup_policy: str
    segment_ms: int = 0

    @property
    def forever(self) -> str | None:
        """Why records are never deleted for their age; None if they are."""
        policies = [policy.strip() for policy in self.cleanup_policy.split(",")]
        if "delete" not in policies:
            how = "compacted without delete" if "compact" in policies else "not cleaned up at all"
            return f"is {how} (cleanup.policy={self.cleanup_policy})"
        if self.retention_ms < 0 or _days(self.retention_ms, _MOST_PERCENT) > _MOST_DAYS:
            return f"keeps records forever (retention.ms={self.retention_ms})"
        return None

    @property
    def recommended_days(self) -> int | None:
        """The TTL in whole days, as in stores; None if there must be none.

        The longer of 115 % of `retention.ms`, and `retention.ms` + `segment.ms` + 1 day: a record may stay in a segment
        for that long.
        """
        if self.forever:
            return None
        longest = _days(self.retention_ms + self.segment_ms, 100) + 1 if self.segment_ms else 0
        return max(_days(self.retention_ms, _PERCENT), longest)

    def judge(self, rules: Iterable[ExpiryRule]) -> Verdict:
        """Checks the rules that may delete the topic's payloads. The earliest decides.

        Rules for tagged payloads do not count, as the project sets no tags; `notes` names them.
        """
        ordered = sorted((rule for rule in rules if not rule.tagged), key=_age)
        if self.forever:
            return self._judge_forever(ordered)
        wanted = (
            f"topic {self.topic} keeps records for {duration_text(self.retention_ms)}, "
            f"so payloads should be kept for {self.recommended_days} d"
        )
        for rule in ordered:
            if self._is_early(rule):
                return Verdict("too-short", f"{_named(rule)} {_deletes(rule)}; {wanted}")
        earliest = next((rule for rule in ordered if rule.whole), None)
        if earliest is None:
            which = "all payloads" if ordered else "payloads"
            return Verdict("missing", f"no rule deletes {which}, so they stay forever; {wanted}")
        if _age(earliest) > max(_days(self.retention_ms, _MOST_PERCENT), self.recommended_days or 0):
            return Verdict("too-long", f"{_named(earliest)} {_deletes(earliest)}, later than needed; {wanted}")
        return Verdict("ok", f"{_named(earliest)} {_deletes(earliest)}; {wanted}")

    def _judge_forever(self, rules: Sequence[ExpiryRule]) -> Verdict:
        reason = f"topic {self.topic} {self.forever}, so a TTL must not be used"
        if rules:
            return Verdict("forbidden", f"{reason}, but {_named(rules[0])} {_deletes(rules[0])}; remove it")
        return Verdict("no-ttl", f"{reason}: payloads stay until a sweep deletes those without a record")

    def own_days(self, rules: Iterable[ExpiryRule]) -> int | None:
        """The age for Wideload's own rule, in addition to the other rules; None for no own rule.

        An existing one is never made shorter: another cluster's worker may have set it for the same topic and prefix,
        and the longest retention counts.
        """
        if self.forever:
            return None
        rules = list(rules)
        own = next((rule for rule in rules if rule.own and rule.whole), None)
        state = self.judge(rules if own is None else [own]).state
        if state == "ok" or (own is not None and state == "too-long"):
            kept = None if own is None else own.days
            if own is None or self.outlived([own]) is None:
                return kept
        return self.recommended_days

    def notes(self, rules: Iterable[ExpiryRule]) -> Sequence[str]:
        """Notes in addition to the verdict: rules for tagged payloads, and records kept longer than `retention.ms`."""
        rules = list(rules)
        tagged = [
            f"{_named(rule)} {_deletes(rule)}, if they have this tag; Wideload sets none"
            for rule in rules
            if rule.tagged and (self.forever or self._is_early(rule))
        ]
        outlived = self.outlived(rules)
        return tagged if outlived is None else [*tagged, outlived]

    def outlived(self, rules: Iterable[ExpiryRule]) -> str | None:
        """That records may stay longer than payloads, since Kafka deletes whole segments; None if they do not.

        Also None where the verdict says enough.
        """
        rules = list(rules)
        stay_ms = self.retention_ms + self.segment_ms
        early = any(_age(rule) * _DAY_MS < stay_ms for rule in rules if not rule.tagged)
        if not early or self.judge(rules).state not in ("ok", "too-long"):
            return None
        return (
            f"records of topic {self.topic} may stay for up to {duration_text(stay_ms)}: Kafka deletes whole segments, "
            f"and segment.ms is {duration_text(self.segment_ms)}; readers that start at the earliest offset may find "
            f"references without a payload; keep payloads for {self.recommended_days} d, or lower segment.ms to a day"
        )

    def margin_s(self, rules: Iterable[ExpiryRule]) -> float | None:
        """How much longer than `retention_ms` payloads stay, in seconds, by the earliest rule that counts for `judge`.

        Minus infinity if a rule deletes payloads whose records stay forever, or payloads of any age; infinity if none
        deletes payloads; None if neither is deleted for its age.
        """
        earliest = min((_age(rule) for rule in rules if not rule.tagged), default=None)
        if self.forever:
            return None if earliest is None else -math.inf
        if earliest is None:
            return math.inf
        return -math.inf if earliest < 0 else (earliest * _DAY_MS - self.retention_ms) / 1000

    def _is_early(self, rule: ExpiryRule) -> bool:
        return _age(rule) * _DAY_MS * 100 < self.retention_ms * _LEAST_PERCENT


def _days(retention_ms: int, percent: int) -> int:
    return max(1, -(-retention_ms * percent // (100 * _DAY_MS)))


def _age(rule: ExpiryRule) -> int:
    """In days; a rule with a date deletes payloads of any age."""
    return -1 if rule.days is None else rule.days


def _named(rule: ExpiryRule) -> str:
    return f"Wideload's rule {rule.id}" if rule.own else f"rule {rule.id!r} ({rule.scope})"


def _deletes(rule: ExpiryRule) -> str:
    what = "deletes payloads" if rule.whole else "deletes some payloads"
    return f"{what} from {rule.date} on, whatever their age" if rule.days is None else f"{what} after {rule.days} d"


def duration_text(duration_ms: int) -> str:
    """A readable duration, in its two largest units: `7 d`, `1 d 12 h`, `90 s`, `forever`."""
    if duration_ms < 0:
        return "forever"
    parts = []
    rest = duration_ms
    for unit, length in (("d", _DAY_MS), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2]) or "0 ms"
