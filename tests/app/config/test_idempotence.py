"""When a producer of an application is made idempotent."""

from __future__ import annotations

import pytest

from app.config.idempotence import idempotent


@pytest.mark.parametrize(
    ("given", "forbidden"),
    [
        ({}, False),
        ({"acks": "all", "retries": 3, "max.in.flight": "many", "queuing.strategy": "fifo"}, False),
        ({"acks": None, "max.in.flight.requests.per.connection": 1, "message.send.max.retries": None}, False),
        ({"default.topic.config": {"acks": "-1"}, "max.in.flight": 5}, False),
        ({"enable.idempotence": False}, True),
        ({"enable.idempotence": "true", "acks": 1}, True),  # the client's own error says what does not fit
        ({"acks": 1}, True),
        ({"acks": "0"}, True),
        ({"request.required.acks": "1"}, True),
        ({"retries": 0}, True),
        ({"message.send.max.retries": "0"}, True),
        ({"max.in.flight": 6}, True),
        ({"max.in.flight.requests.per.connection": "1000000"}, True),
        ({"queuing.strategy": "lifo"}, True),
        ({"default.topic.config": {"request.required.acks": 1}}, True),
    ],
)
def test_it_is_the_default(given: dict[str, object], forbidden: bool) -> None:  # noqa: FBT001
    """Where no property of the application forbids it: clients refuse a configuration that has both."""
    assert idempotent(given) == (given if forbidden else {"enable.idempotence": True, **given})
