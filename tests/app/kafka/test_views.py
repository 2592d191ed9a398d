"""Responses to a fetch, as aiokafka encodes them, decoded with views and without."""

from __future__ import annotations

import io
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest, FetchResponse_v4

from app.kafka.receiver import handed_over, viewed

LONG = 100_000


def response(*parts: bytes | None) -> bytes:
    """The bytes of a response with these records, one partition each."""
    partitions = [(number, 0, 7, 7, None, records) for number, records in enumerate(parts)]
    encoded: bytes = FetchResponse_v4(0, [("raw", partitions)]).encode()
    return encoded


def sent() -> tuple[Any, Any]:
    """A request, and what aiokafka sends for it to a broker that knows version 4."""
    request = FetchRequest(500, 1, 1_000_000, 0, [("raw", [(0, 0, 0, 1_000_000)])], [])
    return request, viewed(request.prepare({1: (4, 4)}), {})


def records_of(decoded: Any) -> list[Any]:
    """What stands there for each partition."""
    ((topic, partitions),) = decoded.topics
    assert topic == "raw"
    assert [each[:4] for each in partitions] == [(number, 0, 7, 7) for number in range(len(partitions))]
    return [each[-1] for each in partitions]


@pytest.mark.parametrize("handed", [True, False])
@pytest.mark.parametrize(
    ("parts", "views"),
    [
        ([b"x" * LONG], [True]),
        ([b"x" * LONG, b"", None, b"y" * 1_000], [True, False, False, False]),
        ([b"x" * LONG, b"y" * LONG], [False, False]),  # each would hold the other
        ([b"x" * 65_000], [False]),
    ],
)
def test_long_records_are_views(parts: list[bytes], views: list[bool], handed: bool) -> None:  # noqa: FBT001
    """Records that are most of a response are a view of it, all others are bytes of their own."""
    _, struct = sent()
    whole = response(*parts)
    data = io.BytesIO(handed_over(struct, memoryview(whole)) if handed else whole)
    assert (len(data.getvalue()) < len(whole)) == (handed and len(whole) > 4_096)
    found = records_of(struct.RESPONSE_TYPE.decode(data))
    assert found == parts
    assert [isinstance(each, memoryview) for each in found] == views
    for each in found:
        if isinstance(each, memoryview):
            assert bytes(each.obj) == whole


def test_other_requests_are_handed_over_whole() -> None:
    """As is a login, which has no request."""
    plain = FetchRequest(500, 1, 1_000_000, 0, [], []).prepare({1: (4, 4)})
    for request in (None, plain):
        assert handed_over(request, memoryview(b"x" * 10_000)) == b"x" * 10_000


def test_response_that_is_cut_off() -> None:
    """Fewer bytes than a length says are an error, as in aiokafka."""
    _, struct = sent()
    with pytest.raises(ValueError, match="underrun"):
        struct.RESPONSE_TYPE.decode(io.BytesIO(response(b"x" * LONG)[:-1]))
