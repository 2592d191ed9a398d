"""Workers in a group: static members with one id, a group of the newer protocol, a member that is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.topics import Sent, end_offsets, read_all, send
from tests.integration.way import Way, digests, expected, first_occurrences
from tests.integration.worker_process import WorkerProcess, until

ONCE = {"processing.guarantee": "exactly_once"}


def numbered(begin: int, end: int, partitions: int = 2) -> list[Sent]:
    """Small records, so many for each partition."""
    return [(at, b"%d" % number, b"v", [], 1) for number in range(begin, end) for at in range(partitions)]


@pytest.mark.parametrize("more", [{}, ONCE], ids=["at_least_once", "exactly_once"])
def test_workers_with_one_instance_id(make_way: Callable[..., Way], more: dict[str, object]) -> None:
    """The first of two workers with one `consumer.group.instance.id` says so and stops; the second one works."""
    way = make_way(partitions=2)
    static = {"consumer.group.instance.id": "pod-0", **more}
    first, second = (WorkerProcess(way.folder, way.settings(), way.offload(**static)) for _ in range(2))
    with first:
        first.wait_ready()
        send(way.broker, way.raw, numbered(0, 50))
        until(lambda: sum(end_offsets(way.broker, way.orders).values()) >= 100, "records flow")
        with second:
            assert first.wait() == 1
            second.wait_ready()
            send(way.broker, way.raw, numbered(50, 100))
            records = expected(numbered(0, 100))
            until(lambda: complete(way, records), "each record has arrived, in order")
            assert second.get("/pipelines")[1][0]["restarts"] == 0
            assert second.terminate() == 0
    log = first.log.read_text()
    assert (
        f"another worker has joined group {way.group('offload')} with consumer.group.instance.id = 'pod-0', and this "
        "one is out of it: give each worker a consumer.group.instance.id of its own, or none" in log
    )
    assert "Traceback" not in log
    assert "begins again" not in log


def complete(way: Way, records: dict[int, list[tuple[bytes | None, str]]]) -> bool:
    """Whether each record has come out of the first pipeline, in order."""
    return first_occurrences(digests(read_all(way.broker, way.orders, "read_committed"))) == records
