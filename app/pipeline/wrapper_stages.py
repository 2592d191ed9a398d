"""The stages of wrappers: they ask no store, but the copy of a long value takes time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transforms.record import Record, RecordLike
from transforms.wrapper import Unwrap, Wrap

__all__ = ["WrapperStage", "unwrap_stage", "wrap_stage"]

_COPIED_AT_ONCE_BYTES = 65_536  # so much is copied in less time than it takes to hand it to a thread


class WrapperStage:
    """Wraps or unwraps. A `Stage`.

    Args:
        name: as in `transforms`.
        wants: see `Stage.wants`.
        reserve_bytes: see `Stage.reserve_bytes`.
        transform: makes the record that takes the place of another.
    """

    def __init__(
        self,
        name: str,
        wants: Callable[[RecordLike], bool],
        reserve_bytes: Callable[[RecordLike], int],
        transform: Callable[[RecordLike], Record],
    ) -> None:
        self.name = name
        self.wants = wants
        self.moves = wants
        self.reserve_bytes = reserve_bytes
        self._transform = transform

    def blocks(self, record: RecordLike) -> bool:
        return record.value is not None and len(record.value) > _COPIED_AT_ONCE_BYTES

    def asks_store(self, record: RecordLike) -> bool:  # noqa: ARG002
        return False

    def apply(self, record: RecordLike, _source: RecordLike) -> Sequence[RecordLike]:
        return (self._transform(record),)


def unwrap_stage(unwrap: Unwrap) -> WrapperStage:
    """The stage that takes headers and value out of a wrapper."""
    return WrapperStage("unwrap", unwrap.wants, unwrap.reserve_bytes, unwrap.unwrap)


def wrap_stage(wrap: Wrap) -> WrapperStage:
    """The stage that puts headers and value into a wrapper; the copies of headers are not counted anywhere."""
    return WrapperStage("wrap", wrap.wants, lambda record: len(record.value or b""), wrap.wrap)
