"""`consume` with single records, without a broker."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from app.commands.consume import _Printer, _Run, json_line, text_json
from app.commands.folder import Folder
from app.kafka.source_batch import UnreadBatch
from transforms.errors import BatchTooLargeError, WideloadError
from transforms.record import Header


@dataclass(frozen=True, slots=True)
class Read:
    """A record from the topic."""

    value: bytes | None
    headers: tuple[Header, ...] = ()
    key: bytes | None = b"k"
    timestamp: int = 1
    topic: str = "orders"
    partition: int = 0
    offset: int = 7
    timestamp_type: int = 0


def printer() -> _Printer:
    return _Printer(as_json=True, values=False)


async def test_consume_names_the_file_that_cannot_be_written(tmp_path: Path) -> None:
    """If a file cannot be written, the command ends with the name of the file and the reason."""
    folder = Folder(str(tmp_path / "values"))
    shutil.rmtree(tmp_path / "values")
    with pytest.raises(WideloadError, match=r"^--output: orders-0-7 cannot be written: No such file or directory$"):
        await _Run(printer(), folder, None).take(Read(b"v"))


def test_values_are_for_the_user_alone(tmp_path: Path) -> None:
    """Whatever the umask says, nobody else may read what the rights of the topic protect."""
    before = os.umask(0)
    try:
        path = Folder(str(tmp_path / "values")).write(b"v", b"key", "orders-0-7")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_consume_tombstone_is_no_reference(capsys: pytest.CaptureFixture[str]) -> None:
    """A tombstone with the headers of a reference is still a tombstone."""
    flag = (("large-message", b"true"),)
    for value in (None, b"s3://payloads/orders/x"):
        await _Run(printer(), None, None).take(Read(value, flag))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["reference"] for line in lines] == [False, True]


async def test_consume_tells_of_records_that_are_not_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A batch that holds too much is a line with its place and the reason; no file has its bytes as a value."""
    run, names = _Run(printer(), Folder(str(tmp_path)), None), partial(os.listdir, tmp_path)
    error = BatchTooLargeError(5, 7, 100)
    await run.take(UnreadBatch("orders", 0, 7, 1, b"batch", error, 5, 3))
    await run.take(Read(b"v"))
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["partition"], first["offset"], first["error"]) == (0, 7, str(error))
    assert ("error" in second, run.totals.failed, names()) == (False, 3, ["k"])


def test_text_json() -> None:
    """UTF-8 is a string, other bytes are base64, null is null."""
    assert [text_json(data) for data in (b"a\xc3\xbc", b"\xff", None, b"")] == ["aü", {"base64": "/w=="}, None, ""]


def test_json_line_harms_no_terminal() -> None:
    """A line of JSON keeps its meaning and its letters; control characters and marks that reverse text are escaped."""
    value = ["\x1b[2J", "\x9b31m", "\x7f", "\u202egnp.exe", "\u2028", "\U000e0001", "ü 漢 \U0001f600", "a\nb"]
    line = json_line(value)
    assert json.loads(line) == value
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert "ü 漢 \U0001f600" in line
