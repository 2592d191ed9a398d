"""The coordinator of transactions, as `TransactionCoordinator` of Kafka 4.0 is: what is not open is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING, CONCURRENT = 47, 48, 49, 51


@dataclass(slots=True, eq=False)
class _Transaction:
    id: str
    producer_id: int
    epoch: int
    timeout_s: float
    state: str = "Empty"
    places: dict[tuple[str, int], None] = field(default_factory=dict)
    groups: dict[str, None] = field(default_factory=dict)
    timer: Any = None
    after: str = ""


class Transactions:
    def __init__(
        self,
        later: Callable[..., Any],
        delay_s: Callable[[], float],
        mark: Callable[[tuple[str, int], int, int, bool], bool],
        end_offsets: Callable[[str, int, bool], None],
    ) -> None:
        self._later, self._delay_s, self._mark, self._end_offsets = later, delay_s, mark, end_offsets
        self._of: dict[str, _Transaction] = {}
        self._next_id = 1000
        # Called with the id of each transaction that has been committed, with all its marks
        self.ended: Callable[[str], None] = lambda _: None

    def begin_producer(self, transactional_id: str | None, timeout_ms: int) -> tuple[int, int, int]:
        if transactional_id is None:
            self._next_id += 1
            return 0, self._next_id, 0
        found = self._of.get(transactional_id)
        if found is None:
            self._next_id += 1
            self._of[transactional_id] = _Transaction(transactional_id, self._next_id, 0, timeout_ms / 1000)
            return 0, self._next_id, 0
        if found.state.startswith("Prepare"):
            return CONCURRENT, -1, -1
        if found.state == "Ongoing":
            found.epoch += 1
            self._end(found, commit=False)
            return CONCURRENT, -1, -1
        found.epoch += 1
        found.timeout_s = timeout_ms / 1000
        found.state = "Empty"
        return 0, found.producer_id, found.epoch

    def _checked(self, request: Any) -> tuple[_Transaction | None, int]:
        found = self._of.get(request.transactional_id)
        if found is None or found.producer_id != request.producer_id:
            return None, INVALID_MAPPING
        if found.epoch != request.producer_epoch:
            return None, INVALID_EPOCH
        return found, 0

    def add(self, request: Any, places: Any, groups: Any) -> int:
        """AddPartitionsToTxn and AddOffsetsToTxn."""
        found, code = self._checked(request)
        if found is None:
            return code
        if found.state.startswith("Prepare"):
            return CONCURRENT
        if found.state != "Ongoing":
            found.state = "Ongoing"
            found.places.clear()
            found.groups.clear()
            found.timer = self._later(found.timeout_s, self._time_out, found)
        found.places.update(dict.fromkeys(places))
        found.groups.update(dict.fromkeys(groups))
        return 0

    def time_out_all(self) -> None:
        """Aborts all that are open, and fences their producers, as if their time was over."""
        for found in self._of.values():
            self._time_out(found)

    def _time_out(self, found: _Transaction) -> None:
        if found.state == "Ongoing":
            found.epoch += 1
            self._end(found, commit=False)

    def end(self, request: Any) -> int:
        found, code = self._checked(request)
        if found is None:
            return code
        commit = bool(request.transaction_result)
        if found.state == "Ongoing":
            self._end(found, commit=commit)
            return 0
        if found.state.startswith("Prepare"):
            return CONCURRENT if found.after == ("CompleteCommit" if commit else "CompleteAbort") else INVALID_STATE
        if found.state == ("CompleteCommit" if commit else "CompleteAbort"):
            return 0
        return INVALID_STATE

    def _end(self, found: _Transaction, *, commit: bool) -> None:
        found.timer.cancel()
        found.state = "PrepareCommit" if commit else "PrepareAbort"
        found.after = "CompleteCommit" if commit else "CompleteAbort"
        left: list[Any] = [*found.places, *found.groups]
        epoch = found.epoch

        def mark(target: Any) -> None:
            if isinstance(target, str):
                self._end_offsets(target, found.producer_id, commit)
            elif not self._mark(target, found.producer_id, epoch, commit):
                self._later(0.1, mark, target)
                return
            left.remove(target)
            if not left:
                found.state = found.after
                if commit:
                    self.ended(found.id)

        for each in [*left]:
            self._later(self._delay_s(), mark, each)
        if not left:
            found.state = found.after

    def allows(self, transactional_id: str, producer_id: int, epoch: int, target: Any) -> int:
        """Whether a partition, or a group, is part of the open transaction of a producer: 0, or the code."""
        found = self._of.get(transactional_id)
        if found is None or found.producer_id != producer_id:
            return INVALID_MAPPING
        if found.epoch != epoch:
            return INVALID_EPOCH
        if found.state != "Ongoing":
            return INVALID_STATE
        return 0 if target in found.places or target in found.groups else INVALID_STATE

    @property
    def open(self) -> list[str]:
        return [each.id for each in self._of.values() if each.state == "Ongoing" or each.state.startswith("Prepare")]
