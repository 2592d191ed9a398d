"""What is done with a record that is written: the table of plans, and what holds of all of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import records
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import Chunking
from transforms.errors import ChunkError
from transforms.outgoing import Plan, Policy, plan
from transforms.record import Record

OVER = 50  # bytes over the limit of each record in the table
STORES, SPLITS, COMPRESSES = Policy(500), Policy(message_bytes=500), Policy(compresses=True)


def policies() -> st.SearchStrategy[Policy]:
    """Any policy of a writer whose records go as they are planned."""
    sizes = st.none() | st.integers(0, 400)
    return st.builds(Policy, sizes | st.just(math.inf), sizes, st.booleans())


@pytest.mark.parametrize(
    ("size", "policy", "within", "over"),
    [
        (500, Policy(), Plan.WHOLE, Plan.REFUSED),
        (500, STORES, Plan.WHOLE, Plan.OFFLOAD),
        (501, STORES, Plan.OFFLOAD, Plan.OFFLOAD),
        (501, Policy(math.inf), Plan.WHOLE, Plan.OFFLOAD),
        (500, SPLITS, Plan.WHOLE, Plan.CHUNKS),
        (501, SPLITS, Plan.WHOLE, Plan.REFUSED),
        (500, replace(STORES, message_bytes=500), Plan.WHOLE, Plan.OFFLOAD),
        (500, COMPRESSES, Plan.WHOLE, Plan.COMPRESSED),
        (501, replace(COMPRESSES, message_bytes=500), Plan.WHOLE, Plan.COMPRESSED),
        (500, replace(COMPRESSES, threshold_bytes=500), Plan.WHOLE, Plan.COMPRESSED),
        (501, replace(COMPRESSES, threshold_bytes=500), Plan.OFFLOAD, Plan.OFFLOAD),
        (0, Policy(math.inf, 500), Plan.WHOLE, Plan.REFUSED),
        (0, Policy(0, 500, compresses=True), Plan.WHOLE, Plan.COMPRESSED),
    ],
)
def test_table(size: int, policy: Policy, within: Plan, over: Plan) -> None:
    """Each row, for a record of just the limit and for one that is over it."""
    record = Record(b"k" * 100, b"v" * size, (("größe", None),))
    limit = batch_of_one_bytes(record)
    assert plan(record, limit, policy) is plan(record, None, policy) is within
    assert plan(record, limit - OVER, policy) is plan(record, limit - 1, policy) is over
    measured = replace(policy, measure=lambda _: 1_000)
    assert (plan(record, 1_000, measured), plan(record, 999, measured)) == (within, over)


@given(records(), st.integers(0, 400), policies())
def test_any_plan(record: Record, limit: int, policy: Policy) -> None:
    """What goes whole fits; what is stored or split has a value, and a writer who can; nothing is planned for ever."""
    planned, size = plan(record, limit, policy), batch_of_one_bytes(record)
    if planned is Plan.WHOLE:
        assert size <= limit
    elif planned is Plan.COMPRESSED:
        assert size > limit
        assert plan(record, limit, replace(policy, compresses=False)) not in {Plan.WHOLE, Plan.COMPRESSED}
    elif planned is Plan.OFFLOAD:
        assert record.value
        assert policy.threshold_bytes is not None
        assert plan(record, limit, replace(policy, threshold_bytes=None)) is not Plan.OFFLOAD
    else:
        assert size > limit
        assert not policy.compresses
        splits = policy.message_bytes is not None and 0 < len(record.value or b"") <= policy.message_bytes
        assert (planned is Plan.CHUNKS) is splits


@given(records(), st.integers(250, 400))
def test_chunks_need_no_plan(record: Record, limit: int) -> None:
    """What is split goes in records that are all within the limit, or cannot be split at all."""
    if plan(record, limit, Policy(message_bytes=10_000)) is Plan.CHUNKS:
        try:
            pieces = list(Chunking(limit).split(record, "u"))
        except ChunkError:
            return
        assert {plan(piece, limit, Policy()) for piece in pieces} == {Plan.WHOLE}
