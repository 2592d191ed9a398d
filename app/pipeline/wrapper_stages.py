"""The stages that take wrappers off and put them on. They ask no store, but the copy of a long value takes time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transforms.record import RecordLike
from transforms.wrapper import Unwrap, Wrap

__all__ = ["UnwrapStage", "WrapStage"]

_COPIED_AT_ONCE_BYTES = 65_536  # so much is copied in less time than it takes to hand it to a thread


class UnwrapStage:
    """Takes headers and value out of a wrapper. See `app.pipeline.stages.Stage`."""

    name = "unwrap"

    def __init__(self, unwrap: Unwrap) -> None:
        self.wants: Callable[[RecordLike], bool] = unwrap.wants
        self.moves: Callable[[RecordLike], bool] = unwrap.wants
        self._unwrap = unwrap

    def blocks(self, record: RecordLike) -> bool:
        """See `Stage.blocks`."""
        return _is_long(record)

    def asks_store(self, record: RecordLike) -> bool:  # noqa: ARG002
        """See `Stage.asks_store`."""
        return False

    def reserve_bytes(self, record: RecordLike) -> int:
        """See `Unwrap.reserve_bytes`."""
        return self._unwrap.reserve_bytes(record)

    def apply(self, record: RecordLike, _source: RecordLike) -> Sequence[RecordLike]:
        """See `Stage.apply`."""
        return (self._unwrap.unwrap(record),)


class WrapStage:
    """Puts headers and value into a wrapper; otherwise as `UnwrapStage`."""

    name = "wrap"

    def __init__(self, wrap: Wrap) -> None:
        self.wants: Callable[[RecordLike], bool] = wrap.wants
        self.moves: Callable[[RecordLike], bool] = wrap.wants
        self._wrap = wrap

    def blocks(self, record: RecordLike) -> bool:
        """See `Stage.blocks`."""
        return _is_long(record)

    def asks_store(self, record: RecordLike) -> bool:  # noqa: ARG002
        """See `Stage.asks_store`."""
        return False

    def reserve_bytes(self, record: RecordLike) -> int:
        """A second copy of the value; headers are not counted anywhere."""
        return len(record.value or b"")

    def apply(self, record: RecordLike, _source: RecordLike) -> Sequence[RecordLike]:
        """See `Stage.apply`."""
        return (self._wrap.wrap(record),)


def _is_long(record: RecordLike) -> bool:
    return record.value is not None and len(record.value) > _COPIED_AT_ONCE_BYTES
