"""Requests of our own: which version goes to which broker."""

from __future__ import annotations

import pytest
from aiokafka.errors import IncompatibleBrokerVersion

from app.kafka import queries
from app.kafka.queries import DescribeGroups, ListGroups, Query

QUERIES = [
    each
    for each in vars(queries).values()
    if isinstance(each, type) and issubclass(each, Query) and hasattr(each, "VERSION")
]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [((0, 5), 5), ((0, 9), 5), ((0, 4), 1), ((1, 1), 1), ((5, 5), 5)],
)
def test_newest_version_that_both_know(versions: tuple[int, int], expected: int) -> None:
    """A broker gets the newest version that it has and that is known here."""
    chosen = ListGroups().prepare({16: versions})
    assert expected == chosen.API_VERSION


@pytest.mark.parametrize("versions", [{}, {16: (0, 0)}, {16: (6, 7)}, {15: (0, 9)}])
def test_no_version_that_both_know(versions: dict[int, tuple[int, int]]) -> None:
    """Where there is none, that is said, and nothing is sent."""
    with pytest.raises(IncompatibleBrokerVersion, match="too old or too new for ListGroups"):
        ListGroups().prepare(versions)


def test_fields_of_the_version() -> None:
    """An old version has no field that came later."""
    assert DescribeGroups(["g"]).prepare({15: (0, 4)}).encode() == b"\x00\x00\x00\x01\x00\x01g\x00"
    assert DescribeGroups(["g"], "consumer").prepare({69: (0, 1)}).encode() == b"\x02\x02g\x00\x00"


@pytest.mark.parametrize("query", QUERIES, ids=lambda each: each.__name__)
def test_versions_are_in_order(query: type[Query]) -> None:
    """The version for older brokers is one of the same request."""
    if query.FORMER is not None:
        assert query.FORMER.API_KEY == query.VERSION.API_KEY
        assert query.FORMER.API_VERSION < query.VERSION.API_VERSION
