"""The state of a reference: one for each, the first that is wrong, with its reason."""

from __future__ import annotations

import pytest

from transforms.compression import Codec
from transforms.found_references import FoundReference
from transforms.reference_state import Answer, Lifetimes, state

DAY_US = 86_400_000_000
WEEK = Lifetimes(None, 7 * DAY_US)


def there(stored: int) -> Answer:
    return Answer("there", stored, 0)


def refers(size: int | None, codec: Codec | None = None, *, sealed: bool = False) -> FoundReference:
    return FoundReference("value", "wideload", "r/a", size, None, codec, "aes-256-gcm" if sealed else None)


@pytest.mark.parametrize(
    ("reference", "answer", "expected", "detail"),
    [
        (refers(3), there(3), "ok", None),
        (refers(None), there(3), "ok", None),
        (refers(4), there(3), "size", "the store has 3 bytes, the reference says 4"),
        (refers(4, "zstd"), there(3), "ok", None),
        (refers(4, "zstd"), there(5), "size", "the store has 5 bytes, the reference says 4"),
        (
            refers(2_000, "zstd"),
            there(5),
            "size",
            "2000 bytes exceed large.message.max.bytes of the readers, which is 1999",
        ),
        (refers(4, sealed=True), there(20), "ok", None),
        (refers(400, "zstd", sealed=True), there(99), "ok", None),
        (refers(1_999, sealed=True), there(2_015), "ok", None),
        (refers(4, sealed=True), there(4), "size", "the store has 4 bytes, the reference says 20"),
        (refers(4), Answer("missing", detail="none"), "missing", "none"),
        (refers(4), Answer("refused", detail="outside"), "refused", "outside"),
        (refers(4), Answer("unknown", detail="down"), "unknown", "down"),
        (FoundReference("value", error="why"), Answer("unknown"), "malformed", "why"),
        (refers(3)._replace(error="unsigned"), there(3), "refused", "unsigned"),
    ],
)
def test_states(reference: FoundReference, answer: Answer, expected: str, detail: str | None) -> None:
    """What record and store say; encryption adds a tag of 16 bytes."""
    assert state(reference, answer, None, WEEK, 1_999) == (expected, detail)


def test_what_is_read_goes_before_sizes() -> None:
    """A payload that was read and is another one has the state of that; one that is gone was not read."""
    assert state(refers(4), there(3), ("checksum", "another"), WEEK, 9) == ("checksum", "another")
    assert state(refers(4), Answer("missing", detail="none"), None, WEEK, 9) == ("missing", "none")


@pytest.mark.parametrize(
    ("expires", "until", "expected"),
    [(7, 7, "ok"), (6, 7, "expiring"), (5, None, "expiring"), (None, None, "ok"), (None, 7, "ok")],
)
def test_payloads_that_go_before_their_records(expires: int | None, until: int | None, expected: str) -> None:
    """A rule that deletes the payload when Kafka may delete the record is early enough."""
    expires_us, until_us = (None if day is None else day * DAY_US for day in (expires, until))
    times = Lifetimes(expires_us, until_us, "rule b")
    assert state(refers(3), there(3), None, times, 9) == (expected, "rule b" if expected == "expiring" else None)
