"""When a producer of an application is made idempotent."""

from __future__ import annotations

import pytest

from app.config.idempotence import idempotent


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"acks": "all", "retries": 3, "max.in.flight": "many", "queuing.strategy": "fifo"},
        {"acks": None, "max.in.flight.requests.per.connection": 1, "message.send.max.retries": None},
        {"default.topic.config": {"acks": "-1"}, "max.in.flight": 5},
    ],
)
def test_it_is_the_default(given: dict[str, object]) -> None:
    """Where no property forbids it."""
    assert idempotent(given) == {"enable.idempotence": True, **given}


@pytest.mark.parametrize(
    "given",
    [
        {"enable.idempotence": False},
        {"enable.idempotence": "true", "acks": 1},  # the client's own error says what does not fit
        {"acks": 1},
        {"acks": "0"},
        {"request.required.acks": "1"},
        {"retries": 0},
        {"message.send.max.retries": "0"},
        {"max.in.flight": 6},
        {"max.in.flight.requests.per.connection": "1000000"},
        {"queuing.strategy": "lifo"},
        {"default.topic.config": {"request.required.acks": 1}},
    ],
)
def test_a_property_of_the_application_wins(given: dict[str, object]) -> None:
    """Clients refuse a configuration that has both."""
    assert idempotent(given) == given
