"""What references ask of a store, and how much of it one call of a consumer may do."""

from __future__ import annotations

import json

import pytest

from app.chunks.allowance import Allowance
from app.serializers import ComposableDeserializer, LargeMessageDeserializer, config
from app.serializers.demand import Demand
from tests.app.serializers.conftest import Config

VALUE = [("large-message", b"true"), ("large-message.size", b"70")]
KEY = [("large-message-key", b"true"), ("large-message-key.size", b"5")]


class Clock:
    """Seconds, as the test has them."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ([10, 20, 70], [True, True, True]),
        ([10, 20, 71, 70], [True, True, False, True]),
        ([500, 1], [True, False]),
        ([500, 0], [True, False]),
        ([0, 100, 0, 1], [True, True, True, False]),
    ],
)
def test_a_call_takes_so_many_bytes(sizes: list[int], taken: list[bool]) -> None:
    """The first download is taken however large it is; then all together are no more than the bound."""
    allowance = Allowance(100, 10, 1_000)
    assert [allowance.takes(size) for size in sizes] == taken


@pytest.mark.parametrize(("elapsed_s", "taken"), [(0.0, True), (4.9, True), (5.1, False)])
def test_a_call_takes_so_much_time(elapsed_s: float, taken: bool) -> None:  # noqa: FBT001
    """A download that might end after the interval is not begun; the first one is, as it fits by the configuration."""
    clock = Clock()
    allowance = Allowance(100, 5_000, 10_000, clock)
    clock.now += elapsed_s
    assert allowance.takes(1)
    assert allowance.takes(1) is taken


def test_a_record_asks_for_what_its_headers_say(config_of: Config) -> None:
    """Bytes of key and value together; None where the store is not called, a null among that."""
    given = config_of(
        **{
            "key.deserializer": LargeMessageDeserializer,
            "value.deserializer": ComposableDeserializer([LargeMessageDeserializer, json.loads], config_of()),
        }
    )
    demand = Demand(config.consumer(given, []))
    assert demand.store_timeout_ms == 120_000
    assert demand.restored_bytes(b"k", b"v", []) is None
    assert demand.restored_bytes(b"k", b"v", [("own", b"1")]) is None
    assert demand.restored_bytes(b"k", b"v", VALUE) == 70
    assert demand.restored_bytes(b"k", b"v", [*KEY, *VALUE]) == 75
    assert demand.restored_bytes(b"k", None, [*KEY, *VALUE]) == 5
    assert demand.restored_bytes(b"k", None, VALUE) is None
    assert demand.restored_bytes(b"k", b"v", [VALUE[0], ("large-message.size", b"wrong")]) == 0
    without = Demand(config.consumer({"value.deserializer": json.loads}, []))
    assert without.restored_bytes(b"k", b"v", VALUE) is None
    assert without.store_timeout_ms == 0
