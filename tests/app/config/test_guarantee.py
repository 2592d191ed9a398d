"""What a pipeline guarantees: the keys that say it, and what they do not go together with."""

from __future__ import annotations

import pytest

from app.config.guarantee import Guarantee
from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS, SECURITY_KEYS
from app.config.settings import PIPELINE_KEYS, WORKER_KEYS
from tests.app.configurations import HEAD, ORDERS, only_pipeline, refusal_of

ONCE = ORDERS + 'processing.guarantee = "exactly_once"\n'


def test_exactly_once_reads_what_is_committed() -> None:
    """With nothing but the guarantee, what other transactions have aborted is not read, and times are Streams'."""
    pipeline = only_pipeline(HEAD + ONCE)
    assert pipeline.guarantee == Guarantee(
        name="exactly_once", boundary="poll", interval_ms=100, size=16_777_216, timeout_ms=60_000
    )
    assert pipeline.consumer["consumer.isolation.level"] == "read_committed"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('consumer.isolation.level = "read_uncommitted"', "[pipeline.orders] consumer.isolation.level: found"),
        ("transaction.boundary.interval.ms = 60000", "less than producer.transaction.timeout.ms, which is 60,000"),
        ('processing.guarantee = "exactly_once_v2"', "allowed"),
        ('transaction.boundary.type = "connector"', "allowed"),
    ],
)
def test_what_cannot_be_once_is_refused(line: str, told: str) -> None:
    """Reading what may be taken back, and transactions that brokers would abort, are refused with a sentence."""
    own = ORDERS if "guarantee" in line else ONCE
    assert told in refusal_of(HEAD + own + line)


@pytest.mark.parametrize(
    "line", ['consumer.isolation.level = "read_uncommitted"', "transaction.boundary.interval.ms = 60000"]
)
def test_at_least_once_does_not_care(line: str) -> None:
    """Without transactions their keys refuse nothing."""
    assert only_pipeline(HEAD + ORDERS + line).guarantee.name == "at_least_once"


def test_no_key_is_the_beginning_of_another() -> None:
    """TOML reads the dots of a key as tables: a key that has a value cannot have further keys below it.

    One has to be quoted for that.
    """
    names = {key.name for key in (*WORKER_KEYS, *PIPELINE_KEYS, *CONSUMER_KEYS, *PRODUCER_KEYS, *SECURITY_KEYS)}
    found = [(a, b) for a in names for b in names if b.startswith(f"{a}.")]
    assert found == [("large.message.root", "large.message.root.topics")]
