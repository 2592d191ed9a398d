"""Requests of our own: which version goes to which broker."""

from __future__ import annotations

import pytest
from aiokafka.errors import IncompatibleBrokerVersion

from app.kafka import queries
from app.kafka.queries import DescribeGroups, ListGroups, Query


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        *(({16: each}, number) for each, number in (((0, 5), 5), ((0, 9), 5), ((0, 4), 1), ((1, 1), 1), ((5, 5), 5))),
        *((each, None) for each in ({}, {16: (0, 0)}, {16: (6, 7)}, {15: (0, 9)})),
    ],
)
def test_newest_version_that_both_know(versions: dict[int, tuple[int, int]], expected: int | None) -> None:
    """A broker gets the newest version that it has and that is known here; where there is none, that is said."""
    if expected is not None:
        assert expected == ListGroups().prepare(versions).API_VERSION
        return
    with pytest.raises(IncompatibleBrokerVersion, match="too old or too new for ListGroups"):
        ListGroups().prepare(versions)


def test_fields_of_the_version() -> None:
    """An old version has no field that came later; the one for older brokers is one of the same request."""
    assert DescribeGroups(["g"]).prepare({15: (0, 4)}).encode() == b"\x00\x00\x00\x01\x00\x01g\x00"
    assert DescribeGroups(["g"], "consumer").prepare({69: (0, 1)}).encode() == b"\x02\x02g\x00\x00"
    for each in vars(queries).values():
        former = isinstance(each, type) and issubclass(each, Query) and each.FORMER
        if former:
            assert former.API_KEY == each.VERSION.API_KEY
            assert former.API_VERSION < each.VERSION.API_VERSION
