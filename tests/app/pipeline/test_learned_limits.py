"""What refusals tell of a topic's limit."""

from __future__ import annotations

from app.cluster.preflight import Plan
from app.kafka.batches.outbox import RecordRefusedError
from app.kafka.topics import Topic
from app.pipeline.learned_limits import LearnedLimits, LimitError


def plan_of(sink: int, dead: int = 9_000) -> Plan:
    """A plan with these limits."""
    return Plan("p", (), Topic("sink", 1, sink, "delete"), Topic("dead", 1, dead, "delete"))


def limits_of(plan: Plan) -> tuple[int, int]:
    """The limits of a plan."""
    assert plan.dead_letters is not None
    return plan.sink.max_message_bytes, plan.dead_letters.max_message_bytes


def test_limit_that_was_lowered_is_the_new_one() -> None:
    """Where the configuration explains the refusal, it alone counts."""
    learned_limits = LearnedLimits()
    learned_limits.learn(plan_of(5_000), LimitError(RecordRefusedError("sink", 0, 4_000)))
    assert limits_of(learned_limits.applied(plan_of(3_000))) == (3_000, 9_000)


def test_limit_that_does_not_explain_the_refusal_is_the_refused_size() -> None:
    """Else the record that was refused would be let through again, for ever; also where it was not lowered enough."""
    learned_limits = LearnedLimits()
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (5_000, 9_000)
    learned_limits.learn(plan_of(5_000), LimitError(RecordRefusedError("sink", 0, 4_000)))
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (3_999, 9_000)
    learned_limits.learn(plan_of(4_500), LimitError(RecordRefusedError("sink", 0, 4_400)))
    assert limits_of(learned_limits.applied(plan_of(4_500))) == (4_399, 9_000)
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (5_000, 9_000)
    learned_limits.learn(plan_of(1, 9_000), LimitError(RecordRefusedError("dead", 0, 8_000)))
    assert limits_of(learned_limits.applied(plan_of(1))) == (1, 7_999)


def test_limit_that_was_lowered_and_raised_again_holds() -> None:
    """A refusal that a lower limit has explained says nothing of the limit from before, once that is back."""
    learned_limits = LearnedLimits()
    learned_limits.learn(plan_of(5_000), LimitError(RecordRefusedError("sink", 0, 4_000)))
    assert limits_of(learned_limits.applied(plan_of(3_000))) == (3_000, 9_000)
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (5_000, 9_000)


def test_sizes_are_forgotten() -> None:
    """A limit that was lowered, and raised again before anyone has read it, leaves nothing behind."""
    learned_limits = LearnedLimits()
    learned_limits.learn(plan_of(5_000), LimitError(RecordRefusedError("sink", 0, 4_000)))
    learned_limits.sizes.clear()
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (5_000, 9_000)
