"""When an application hears of a value in chunks."""

from __future__ import annotations

import pytest

from app.serializers.delivery import Delivery

ERROR = ValueError("refused")


@pytest.mark.parametrize(
    ("steps", "heard"),
    [
        ("b b close 0 1", [(None, 1)]),
        ("b b 1 0 close", [(None, 1)]),
        ("b 0 b 1 close", [(None, 1)]),
        ("b b 0 close", []),
        ("b b 0 1", []),
        ("b b x close 0", [(ERROR, None)]),
        ("b x", [(ERROR, None)]),
        ("b b b 0 x x close", [(ERROR, None)]),
        ("b -1001 close", [(None, -1001)]),
        ("close", []),
    ],
)
def test_heard_once(steps: str, heard: list[tuple[object, object]]) -> None:
    """Of the last offset when all are there and no more come, or of the first error immediately."""
    found: list[tuple[object, object]] = []
    delivery = Delivery(lambda error, result: found.append((error, result)))
    for step in steps.split():
        if step == "b":
            delivery.begin()
        elif step == "close":
            delivery.close()
        elif step == "x":
            delivery.end(ERROR, None, -1)
        else:
            delivery.end(None, int(step), int(step))
    assert found == heard
    assert delivery.failed is ("x" in steps)
