"""Committed offsets that no open transaction can change: what is asked, and what the answers mean."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, NotCoordinatorError
from aiokafka.structs import OffsetAndMetadata

from app.kafka.stable_offsets import FetchStableOffsets


def answer(*partitions: tuple[int, int, str | None, int], error: int = 0) -> SimpleNamespace:
    """Of a coordinator: partition, offset, metadata and error of each."""
    rows: list[object] = [
        (partition, offset, -1, metadata, code, {}) for partition, offset, metadata, code in partitions
    ]
    return SimpleNamespace(error_code=error, topics=[("raw", rows, {})])


def test_commits_are_those_that_there_are() -> None:
    """A partition without a committed offset is left out; metadata that is null is none."""
    found = FetchStableOffsets.commits(answer((0, 7, "note", 0), (1, -1, "", 0), (2, 0, None, 0)))
    assert found == {
        TopicPartition("raw", 0): OffsetAndMetadata(7, "note"),
        TopicPartition("raw", 2): OffsetAndMetadata(0, ""),
    }


def test_group_that_is_not_known_has_no_commits() -> None:
    """Kafka has no such error here; kfake has it until a group has committed something."""
    assert FetchStableOffsets.commits(answer(error=69)) == {}


def test_commits_of_an_open_transaction_are_not_known() -> None:
    """Where one partition has to wait for a transaction, all are asked for again."""
    assert FetchStableOffsets.commits(answer((0, 7, "", 0), (1, -1, "", 88))) is None


@pytest.mark.parametrize(
    ("said", "error"),
    [(answer(error=16), NotCoordinatorError), (answer((0, -1, "", 30)), GroupAuthorizationFailedError)],
)
def test_commits_that_are_refused(said: SimpleNamespace, error: type[Exception]) -> None:
    """What the coordinator refuses is raised, of the group or of a partition."""
    with pytest.raises(error):
        FetchStableOffsets.commits(said)


def test_request_asks_for_stable_offsets() -> None:
    """The request is the first version that can ask for it, with the partitions by topic."""
    request = FetchStableOffsets("g", [TopicPartition("a", 0), TopicPartition("b", 2), TopicPartition("a", 1)])
    built = request.prepare({9: (1, 9)})
    assert built.API_VERSION == 7
    assert built.to_object()["require_stable"] is True
    assert [(each["topic"], each["partitions"]) for each in built.to_object()["topics"]] == [("a", [0, 1]), ("b", [2])]
