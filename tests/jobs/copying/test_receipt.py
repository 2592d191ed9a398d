"""What a transaction says of its range: text that anybody with the right may have written."""

from __future__ import annotations

import json

import pytest

from jobs.copying.forms import Tally
from jobs.copying.receipt import Receipt
from transforms.identifiers import check

pytestmark = pytest.mark.unit

_MOST = 2**63 - 1


def test_receipt_is_read_again() -> None:
    """It is what it was, and short enough for the brokers with the greatest numbers."""
    tally = Tally({"plain": [_MOST, _MOST], "chunk": [_MOST, _MOST], "tombstone": [0, 0]}, *([_MOST] * 7))
    for receipt in (Receipt("id", 0, 0), Receipt("f" * 32, 1, _MOST, tally, (2**31, _MOST), (_MOST, 2**32))):
        assert Receipt.read(receipt.text()) == receipt
        check("offset-metadata", receipt.text())


def test_anything_else_is_no_receipt() -> None:
    """Whatever else stands there, the range counts as not written."""
    whole = json.loads(Receipt("id", 0, 5, Tally({"plain": [1, 2]}), (0, 5), (4, 9)).text())
    no_count: list[object] = [1.5, -1, True, None, [1], "5"]
    no_pair: list[object] = [5, [], [1], [1, -2], [1, "2"], [1, 2, 3], {"a": 1}, "ab"]
    wrong: dict[str, list[object]] = {
        "checkpoint": [5, None, ["id"]],
        "start": no_count,
        "next": no_count,
        "end": no_pair,
        "mark": no_pair,
        "tally": [None, 5, [], {}, *({"forms": each} for each in no_pair), *({"forms": {"plain": p}} for p in no_pair)],
    }
    wrong["tally"] += [{"forms": {}, "records": each} for each in no_count]
    wrong["tally"] += [{"forms": {"new": [1, 2]}}, {"forms": {}, "more": 1}]
    for name, values in wrong.items():
        for value in values:
            assert Receipt.read(json.dumps({**whole, name: value})) is None, (name, value)
        assert Receipt.read(json.dumps({each: whole[each] for each in whole if each != name})) is None
    for text in ("", "null", "[]", "5", "{", "[" * 100_000, '"a"', "NaN", "9" * 5_000):
        assert Receipt.read(text) is None


def test_is_ahead() -> None:
    """It speaks for its own checkpoint, and says what that need not do again."""
    receipt = Receipt("id", 5, 9)
    assert [receipt.is_ahead("id", offset) for offset in (4, 5, 8, 9)] == [True, True, True, False]
    assert not receipt.is_ahead("other", 5)
