"""What is done with a record that is written: the table of plans, and what holds of all of them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import records
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import Chunking
from transforms.errors import ChunkError
from transforms.outgoing import Plan, plan
from transforms.record import Record

OVER = 50  # bytes over the limit of each record in the table


def policies() -> st.SearchStrategy[dict[str, Any]]:
    """What a writer may be able to do."""
    sizes = st.none() | st.integers(0, 400)
    return st.fixed_dictionaries(
        {"threshold_bytes": sizes | st.just(math.inf), "message_bytes": sizes, "compresses": st.booleans()}
    )


@pytest.mark.parametrize(
    ("size", "threshold", "message", "compresses", "within", "over"),
    [
        (500, None, None, False, Plan.WHOLE, Plan.REFUSED),
        (500, 500, None, False, Plan.WHOLE, Plan.OFFLOAD),
        (501, 500, None, False, Plan.OFFLOAD, Plan.OFFLOAD),
        (501, math.inf, None, False, Plan.WHOLE, Plan.OFFLOAD),
        (500, None, 500, False, Plan.WHOLE, Plan.CHUNKS),
        (501, None, 500, False, Plan.WHOLE, Plan.REFUSED),
        (500, 500, 500, False, Plan.WHOLE, Plan.OFFLOAD),
        (500, None, None, True, Plan.WHOLE, Plan.COMPRESSED),
        (501, None, 500, True, Plan.WHOLE, Plan.COMPRESSED),
        (500, 500, None, True, Plan.WHOLE, Plan.COMPRESSED),
        (501, 500, None, True, Plan.OFFLOAD, Plan.OFFLOAD),
        (0, math.inf, 500, False, Plan.WHOLE, Plan.REFUSED),
        (0, 0, 500, True, Plan.WHOLE, Plan.COMPRESSED),
    ],
)
def test_table(
    size: int,
    threshold: float | None,
    message: int | None,
    compresses: bool,  # noqa: FBT001
    within: Plan,
    over: Plan,
) -> None:
    """Each row, for a record of just the limit and for one that is over it."""
    record = Record(b"k" * 100, b"v" * size, (("größe", None),))
    planned = partial(plan, record, threshold_bytes=threshold, message_bytes=message, compresses=compresses)
    limit = batch_of_one_bytes(record)
    assert planned(limit) is planned(None) is within
    assert planned(limit - OVER) is planned(limit - 1) is over
    assert (planned(9, measure=lambda _: 9), planned(9, measure=lambda _: 10)) == (within, over)


@given(records(), st.integers(0, 400), policies())
def test_any_plan(record: Record, limit: int, policy: dict[str, Any]) -> None:
    """What goes whole fits; what is stored or split has a value, and a writer who can; nothing is planned for ever."""
    planned, size = plan(record, limit, **policy), batch_of_one_bytes(record)
    if planned is Plan.WHOLE:
        assert size <= limit
    elif planned is Plan.COMPRESSED:
        assert size > limit
        assert plan(record, limit, **{**policy, "compresses": False}) not in {Plan.WHOLE, Plan.COMPRESSED}
    elif planned is Plan.OFFLOAD:
        assert record.value
        assert policy["threshold_bytes"] is not None
        assert plan(record, limit, **{**policy, "threshold_bytes": None}) is not Plan.OFFLOAD
    else:
        assert size > limit
        assert not policy["compresses"]
        assert (planned is Plan.CHUNKS) is (0 < len(record.value or b"") <= (policy["message_bytes"] or 0))


@given(records(), st.integers(250, 400))
def test_chunks_need_no_plan(record: Record, limit: int) -> None:
    """What is split goes in records that are all within the limit, or cannot be split at all."""
    if plan(record, limit, message_bytes=10_000) is Plan.CHUNKS:
        try:
            pieces = list(Chunking(limit).split(record, "u"))
        except ChunkError:
            return
        assert {plan(piece, limit) for piece in pieces} == {Plan.WHOLE}
