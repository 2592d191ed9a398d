"""Messages that were begun more often than ended: what a commit notes of them."""

from __future__ import annotations

from transforms.chunk import Chunk
from transforms.torn import REMEMBERED, TornMessages

ONE, OTHER = Chunk("one", 0, 2, 10), Chunk("other", 0, 2, 10)


def test_as_often_as_there_are_writers() -> None:
    """A commit notes the id for each of them, and for each that has ended behind it: a restart reads that end again."""
    torn = TornMessages()
    assert (torn.has(ONE), torn.ids(9)) == (False, ())
    torn.tear(ONE, 3)
    torn.tear(ONE, 5, 2)
    assert [len(torn.ids(offset)) for offset in (3, 4)] == [0, 3], "behind the first chunk it is found again"
    (id_,) = set(torn.ids(4))
    assert (len(id_), torn.has(ONE), torn.has(OTHER)) == (22, True, False)
    torn.mend(ONE, 6)
    torn.mend(OTHER, 6)
    assert [len(torn.ids(offset)) for offset in (6, 7)] == [3, 2]
    assert TornMessages(torn.ids(7)).ids(0) == (id_, id_)
    torn.mend(ONE, 8)
    torn.mend(ONE, 8)
    torn.mend(ONE, 8)
    assert (torn.ids(8), torn.has(ONE)) == ((id_, id_), True)
    assert (torn.ids(9), torn.has(ONE)) == ((), False)


def test_the_newest_are_remembered_and_noted() -> None:
    """A thousand of them, of which a commit has room for 32."""
    torn = TornMessages()
    for number in range(REMEMBERED):
        torn.tear(Chunk(str(number), 0, 2, 10), number)
    assert torn.has(Chunk("0", 0, 2, 10))
    noted = torn.ids(REMEMBERED)
    torn.tear(ONE, REMEMBERED)
    assert [torn.has(Chunk(str(number), 0, 2, 10)) for number in (0, 1)] == [False, True]
    assert (len(noted), torn.ids(REMEMBERED + 1)[:-1]) == (32, noted[1:])
