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


def limit_error(topic: str, size: int) -> LimitError:
    """The refusal of a record of that size."""
    return LimitError(RecordRefusedError(topic, 0, size))


def test_limit_that_does_not_explain_the_refusal_is_the_refused_size() -> None:
    """Else the record that was refused would be let through again, for ever; also where it was not lowered enough."""
    learned_limits = LearnedLimits()
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (5_000, 9_000)
    learned_limits.learn(plan_of(5_000), limit_error("sink", 4_000))
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (3_999, 9_000)
    learned_limits.learn(plan_of(4_500), limit_error("sink", 4_400))
    assert limits_of(learned_limits.applied(plan_of(4_500))) == (4_399, 9_000)
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (5_000, 9_000)
    learned_limits.learn(plan_of(1, 9_000), limit_error("dead", 8_000))
    assert limits_of(learned_limits.applied(plan_of(1))) == (1, 7_999)


def test_limit_that_was_lowered_is_the_new_one() -> None:
    """Where the configuration explains the refusal, it alone counts; once the limit from before is back, that does."""
    learned_limits = LearnedLimits()
    learned_limits.learn(plan_of(5_000), limit_error("sink", 4_000))
    for limit in (3_000, 5_000):
        assert limits_of(learned_limits.applied(plan_of(limit))) == (limit, 9_000)
    learned_limits.learn(plan_of(5_000), limit_error("sink", 4_000))
    learned_limits.sizes.clear()
    assert limits_of(learned_limits.applied(plan_of(5_000))) == (5_000, 9_000)
