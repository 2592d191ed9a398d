"""The journal finds what a soak is there to find."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.soak.journal import Journal, Verdict

VALUES: list[bytes | None] = [b"a", b"", None, b"ddd"]


def judged(received: Sequence[tuple[int, bytes | None]]) -> tuple[Verdict, list[tuple[int, int]]]:
    """Four messages are sent to partition 1, and these come; what is missing of them."""
    journal = Journal(2)
    assert [journal.sent(1, value) for value in VALUES] == [0, 1, 2, 3]
    for number, value in received:
        journal.received(1, number, value)
    return journal.verdict(), journal.missing()


WHOLE = list(enumerate(VALUES))


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (WHOLE, Verdict(4, 4, 4, 0, 0, 0, 0, 0)),
        ([], Verdict(4, 0, 0, 4, 0, 0, 0, 0)),
        (WHOLE[:2] + WHOLE[3:], Verdict(4, 3, 4, 1, 0, 0, 0, 0)),
        (WHOLE[:2] + WHOLE, Verdict(4, 4, 4, 0, 2, 0, 0, 0)),
        ([WHOLE[0], WHOLE[2], WHOLE[1], WHOLE[3]], Verdict(4, 4, 4, 0, 0, 1, 0, 0)),
        ([(0, b"A"), *WHOLE[1:]], Verdict(4, 4, 4, 0, 0, 0, 1, 0)),
        ([(0, b"a"), (1, None), *WHOLE[2:]], Verdict(4, 4, 4, 0, 0, 0, 1, 0)),
        ([*WHOLE, (4, b"x")], Verdict(4, 4, 4, 0, 0, 0, 0, 1)),
    ],
)
def test_journal_judges(received: Sequence[tuple[int, bytes | None]], expected: Verdict) -> None:
    """Losses, copies, what is out of order, what was changed, and what nobody sent, are each counted; losses named."""
    missing = [(1, number) for number in sorted({0, 1, 2, 3} - {number for number, _ in received})]
    assert judged(received) == (expected, missing)
