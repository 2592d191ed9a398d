"""How much one call of a consumer downloads."""

from __future__ import annotations

import pytest

from app.chunks.allowance import Allowance


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ([10, 20, 70], [True, True, True]),
        ([10, 20, 71, 70], [True, True, False, True]),
        ([500, 1], [True, False]),
        ([500, 0], [True, False]),
        ([0, 100, 0, 1], [True, True, True, False]),
    ],
)
def test_a_call_takes_so_many_bytes(sizes: list[int], taken: list[bool]) -> None:
    """The first download is taken however large it is; then all together are no more than the bound."""
    allowance = Allowance(100, 10, 1_000)
    assert [allowance.takes(size) for size in sizes] == taken


@pytest.mark.parametrize(("elapsed_s", "taken"), [(0.0, True), (4.9, True), (5.1, False)])
def test_a_call_takes_so_much_time(elapsed_s: float, taken: bool) -> None:  # noqa: FBT001
    """A download that might end after the interval is not begun; the first one is, as it fits by the configuration."""
    now_s = 100.0
    allowance = Allowance(100, 5_000, 10_000, lambda: now_s)
    now_s += elapsed_s
    assert [allowance.takes(1), allowance.takes(1)] == [True, taken]
