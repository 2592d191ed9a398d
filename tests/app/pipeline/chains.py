"""The work of a chain on one record, as the pipeline does it."""

from __future__ import annotations

from app.pipeline.chain import Chain, Result, Work
from transforms.record import RecordLike

__all__ = ["apply", "begun"]


def begun(chain: Chain, record: RecordLike, codec: int = 0) -> Work:
    """The work that a chain has begun on a record that does not pass."""
    work = chain.begin(record, codec)
    assert work is not None
    return work


def apply(chain: Chain, record: RecordLike, codec: int = 0, *, offloading: bool = True) -> Result:
    """All the work of a chain on a record, step by step; a record that passes stays as it is."""
    work = chain.begin(record, codec)
    if work is None:
        return (record,), ()
    if work.blocks and not work.asks_store:
        work = chain.advance(work)
    return chain.finish(work, offloading=offloading)
