"""Whether a producer that an application embeds may be made idempotent, which keeps its records in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_KEY = "enable.idempotence"
_MOST_IN_FLIGHT = 5
_TOPIC = "default.topic.config"


def _few(text: str) -> bool:
    return not text.isdecimal() or int(text) <= _MOST_IN_FLIGHT


# The properties that aiokafka and librdkafka need to be idempotent, with librdkafka's other names.
_NEEDS: Mapping[str, Callable[[str], bool]] = {
    "acks": {"all", "-1"}.__contains__,
    "request.required.acks": {"all", "-1"}.__contains__,
    "max.in.flight": _few,
    "max.in.flight.requests.per.connection": _few,
    "message.send.max.retries": "0".__ne__,
    "queuing.strategy": "fifo".__eq__,
    "retries": "0".__ne__,
}


def idempotent(config: Mapping[str, object]) -> dict[str, object]:
    """The configuration of a producer, with `enable.idempotence` as its default.

    It is not set where another property contradicts it: that is the application's choice, and its client would refuse
    both.
    """
    topic: Any = config.get(_TOPIC)
    for given in (config, topic if isinstance(topic, Mapping) else {}):
        for name, fits in _NEEDS.items():
            if given.get(name) is not None and not fits(str(given[name])):
                return dict(config)
    return {_KEY: True, **config}
