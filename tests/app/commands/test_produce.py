"""`produce` without a broker: messages that cannot be read, and arguments that are not UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.commands import produce
from app.commands.produce import _headers, _records
from app.commands.source import Refill, Source
from app.kafka.sender import SendError, Sent
from app.kafka.topics import Topic
from transforms.errors import ConfigurationError


@pytest.mark.parametrize("size", [1, None])
async def test_error_names_what_cannot_be_read(size: int | None) -> None:
    """If a file cannot be read, here or on a thread, the error names it, and nothing is sent for it."""

    def read(_: int) -> bytes:
        raise OSError(5, "Input/output error")

    with pytest.raises(SendError, match=r"^photo\.jpg: it cannot be read: Input/output error$"):
        await anext(_records(iter([Source("photo.jpg", None, size, read)]), (), 10))


@pytest.mark.parametrize("how", [["--lines"], []])
def test_a_key_may_be_any_bytes(how: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of -k is what the shell gave, UTF-8 or not: of each line, and of each file."""
    file = tmp_path / "file"
    file.write_bytes(b"line\n")
    keys: list[bytes | None] = []

    async def find_topic(*_: object) -> Topic:
        return Topic("orders", 1, 1_000_000, "delete", shortage="topic orders, partition 0 accepts no records")

    async def send(_: object, __: object, sources: Iterator[Source | Refill], *___: object) -> Sent:
        for source in sources:
            if isinstance(source, Refill):
                source.read()
            else:
                keys.append(source.key)
        return Sent()

    monkeypatch.setattr(produce, "find_topic", find_topic)
    monkeypatch.setattr(produce, "_produce", send)
    arguments = ["orders", str(file), *how, "-k", "caf\udce9", "-b", "localhost:1"]
    done = CliRunner().invoke(produce.command, arguments, catch_exceptions=False, standalone_mode=False)
    assert keys == [b"caf\xe9"]
    assert done.stderr.splitlines()[0] == "wideload: warning: topic orders, partition 0 accepts no records"


def test_a_name_of_a_header_is_utf8() -> None:
    """Its value may be any bytes; a name that is not UTF-8 is told as a mistake in the option."""
    assert _headers(["é=caf\udce9"]) == (("é", b"caf\xe9"),)
    with pytest.raises(ConfigurationError, match=r"--header: found the name 'caf\\udce9', which is not UTF-8"):
        _headers(["caf\udce9=1"])
