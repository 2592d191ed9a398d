"""What a flow waits for while it joins its group."""

from __future__ import annotations

from app.pipeline.joining import awaited
from tests.app.reports import pipeline_settings


def test_joining_says_until_when() -> None:
    """Until it takes long it is only said that it joins; then for whom it waits, and until when by which key."""
    keys = {"consumer.session.timeout.ms": 45_000, "consumer.max.poll.interval.ms": 300_000}
    settings = pipeline_settings("p", **keys)
    assert awaited(settings, 1_000.0, 2.9) == "joins group wideload-p"
    assert awaited(settings, 1_000.0, 3.0) == (
        "waits since 1970-01-01T00:16:40+00:00 for other members of group wideload-p: for one that was killed until "
        "1970-01-01T00:17:25+00:00 at the latest (consumer.session.timeout.ms), for one that finishes its records "
        "until 1970-01-01T00:21:40+00:00 (consumer.max.poll.interval.ms)"
    )
