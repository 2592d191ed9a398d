"""What is fuzzed: parsers of bytes that anybody may have written, and what each of them promises of any bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.vectors.wrapper import wrapper_cases
from transforms.errors import MalformedWrapperError
from transforms.record import Record
from transforms.wrapper import MessageWrapper, Unwrap, Wrap

__all__ = ["PARSERS", "Parser"]


@dataclass(frozen=True, slots=True)
class Parser:
    """One parser.

    Attributes:
        name: what `--parser` takes.
        seeds: bytes to begin with, sound ones and others.
        examine: parses the bytes; True where they are taken, False where the documented error is raised. Any other
            exception, an `AssertionError` among them, is a defect.
    """

    name: str
    seeds: Sequence[bytes]
    examine: Callable[[bytes], bool]


def _wrapper(data: bytes) -> bool:
    """A wrapper is written again to the byte, by way of a record too; `check` agrees."""
    try:
        found = MessageWrapper.parse(data)
    except MalformedWrapperError:
        assert not MessageWrapper.check(data)
        return False
    assert MessageWrapper.check(data)
    assert found.serialize() == data
    record = Record(None, data)
    assert Wrap().wrap(Unwrap().unwrap(record)) == record
    return True


PARSERS: Sequence[Parser] = (Parser("wrapper", [case.bytes for case in wrapper_cases()], _wrapper),)
