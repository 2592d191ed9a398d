"""What goes wrong, and when: drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

__all__ = ["Weather"]

# Retriable errors that brokers give, by request. Those with True come though the request was processed.
_ERRORS: dict[int, tuple[tuple[int, bool], ...]] = {
    0: ((6, False), (7, True), (7, False), (19, False), (20, True), (56, False), (3, False), (9, False)),
    1: ((6, False), (3, False), (9, False), (56, False), (76, False)),
    2: ((6, False), (3, False), (56, False)),
    8: ((14, False), (15, False), (16, False), (7, True)),
    9: ((14, False), (15, False), (16, False)),
    10: ((15, False), (14, False)),
    11: ((14, False), (15, False), (16, False)),
    12: ((15, False), (16, False)),  # while it loads, a coordinator says that all is well
    13: ((14, False), (15, False), (16, False)),
    14: ((14, False), (15, False), (16, False)),
    22: ((14, False), (15, False), (16, False), (51, False)),
    23: ((6, False), (3, False)),
    24: ((14, False), (15, False), (16, False), (51, False), (51, True)),
    25: ((14, False), (15, False), (16, False), (51, False), (51, True)),
    26: ((14, False), (15, False), (16, False), (51, False)),
    28: ((14, False), (15, False), (16, False), (3, False), (14, True)),
}
_KINDS = ("lost", "unanswered", "slow", "error", "error", "silent", "stale")


class Weather:
    """Draws what becomes of each request while the storm lasts.

    Args:
        chance: of the seed.
        rate: of the requests something happens to, from 0 to 1.
        happens: called with each fault; says whether it is to happen.

    Attributes:
        calm: whether nothing goes wrong any more.
    """

    def __init__(self, chance: Random, rate: float, happens: Callable[[str], bool]) -> None:
        self.calm = False
        self._chance = chance
        self._rate = rate
        self._happens = happens
        self._kinds = [each for each in _KINDS if chance.random() < 0.6] or ["error"]
        # A fault of each request says little; one that comes again and again for a single API goes deep.
        self._only = {chance.choice([*_ERRORS])} if chance.random() < 0.3 else None

    def fate(self, node: int, request: Any) -> Any:
        """What becomes of a request, or of a connection (None for the request).

        Returns:
            None for nothing; `silent`, `lost`, `unanswered`, `stale`; seconds that it is late; or an error code, and
            whether the request is processed.
        """
        if self.calm or self._chance.random() >= self._rate:
            return None
        key = -1 if request is None else request.API_KEY
        if self._only is not None and key not in self._only:
            return None
        kind = self._chance.choice(self._kinds)
        found = self._drawn(kind, key)
        if found is None or not self._happens(f"broker {node}, {_name(request)}: {_words(found)}"):
            return None
        return found

    def _drawn(self, kind: str, key: int) -> Any:
        if kind == "silent" and self._chance.random() < 0.7:
            kind = "slow"  # silence takes long
        if key < 0:
            return "lost" if kind != "silent" else "silent"
        if kind == "slow":
            return self._chance.choice((0.05, 0.3, 1.0, 4.0)) * self._chance.random()
        if kind == "error":
            errors = _ERRORS.get(key)
            return None if errors is None else self._chance.choice(errors)
        return kind


def _name(request: Any) -> str:
    if request is None:
        return "connect"
    return type(request).__name__.removesuffix(f"_v{request.API_VERSION}")


def _words(fate: Any) -> str:
    if isinstance(fate, float):
        return f"answered {fate:.3f} s late"
    if isinstance(fate, tuple):
        return f"error {fate[0]}" + (", though it was processed" if fate[1] else "")
    return {
        "silent": "no answer",
        "lost": "the connection breaks, the request is lost",
        "unanswered": "processed, and the connection breaks",
        "stale": "processed, and no answer",
    }[str(fate)]
