"""`inspect` with single records, without a broker."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.commands.inspect import _Inspection, _Printer, _Settings
from app.kafka.source_batch import ReadRecord, UnreadBatch
from transforms.errors import BatchTooLargeError


@pytest.mark.parametrize("as_json", [False, True])
async def test_inspect_tells_of_records_that_are_not_read(capsys: pytest.CaptureFixture[str], *, as_json: bool) -> None:
    """A batch that holds too much is a line with its place and the reason; it is bad, and the rest is counted."""
    error = BatchTooLargeError(5, 7, 100)
    with ThreadPoolExecutor(1) as executor:
        inspection = _Inspection(_Printer(as_json=as_json, only_bad=True), _Settings(), executor)
        batch = UnreadBatch("orders", 0, 7, 1, b"batch", error, 5, 3)
        await inspection.take([batch, ReadRecord("orders", 0, 8, 1, b"k", b"value", ())])
    totals = inspection.totals
    assert (totals.unread, totals.records, totals.value_bytes, totals.bad) == (3, 1, 5, 3)
    _Printer(as_json=as_json, only_bad=True).total("orders", totals)
    out = capsys.readouterr().out
    assert str(error) in out
    if as_json:
        line, summary = (json.loads(each) for each in out.splitlines())
        assert line == {"partition": 0, "offset": 5, "last_offset": 7, "unread": str(error)}
        assert summary["summary"]["unread"] == 3
    else:
        assert "orders: 3 records that cannot be read because they are too large or malformed" in out
