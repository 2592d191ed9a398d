"""Whose letters are in a dead-letter topic that several pipelines share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from app.config.settings import PipelineSettings
from app.deadletters.owner import Owner, SharedReaders
from app.deadletters.reader import FoundLetter, LetterReader, LetterSummary
from transforms.letter import Letter
from transforms.record import Record

OWNER = Owner("a", ("raw", "more"), frozenset({"b"}))


@pytest.mark.parametrize(
    ("context", "own"),
    [
        ({"connector.name": "a", "topic": "raw"}, True),
        ({"connector.name": "a", "topic": "of-before"}, True),
        ({"connector.name": "b", "topic": "raw"}, False),
        ({"connector.name": "a-before", "topic": "more"}, True),
        ({"connector.name": "of-another-file", "topic": "other"}, False),
        ({"topic": "raw"}, True),
        ({"topic": "other"}, False),
        ({}, True),
    ],
)
def test_owner(context: dict[str, str], *, own: bool) -> None:
    """A letter names its pipeline; if no pipeline has the name, the topic decides; without both it may be anybody's."""
    assert OWNER.owns(context) is own


@dataclass
class Reads:
    """What an owner asks of the settings of a pipeline."""

    name: str
    topics: tuple[str, ...]


@pytest.mark.parametrize(
    ("context", "whose"),
    [
        ({"connector.name": "a", "topic": "raw"}, ["owns", "leaves", "leaves"]),
        ({"connector.name": "c", "topic": "raw"}, ["leaves", "leaves", "owns"]),
        ({"connector.name": "before", "topic": "more"}, ["leaves", "owns", "leaves"]),
        ({"topic": "more"}, ["leaves", "owns", "leaves"]),
        ({"topic": "raw"}, ["tells", "leaves", "leaves"]),
        ({"connector.name": "of-another-file", "topic": "other"}, ["tells", "leaves", "leaves"]),
        ({}, ["tells", "leaves", "leaves"]),
    ],
)
def test_letter_has_one_owner_of_all(context: dict[str, str], whose: list[str]) -> None:
    """Of pipelines that are replayed one after another one at most owns a letter; what nobody owns the first tells."""
    pipelines = [Reads("a", ("raw",)), Reads("b", ("more",)), Reads("c", ("raw",))]
    owners = Owner.one_after_another(cast("list[PipelineSettings]", pipelines))
    found = ["owns" if each.owns(context) else "leaves" if each.leaves(context) else "tells" for each in owners]
    assert found == whose


class Reader:
    """A reader of one store, which can read the letters of some pipelines."""

    def __init__(self, max_bytes: int, *readable: str) -> None:
        self.max_bytes = max_bytes
        self._readable = readable

    def summarize(self, found: FoundLetter) -> LetterSummary:
        key = (found.record.key or b"").decode()
        if key in self._readable:
            return LetterSummary(Letter(Record(None, None), {}), f"by {self.max_bytes}", 1)
        return LetterSummary(None, "store", None, f"not by {self.max_bytes}")


@pytest.mark.parametrize(
    ("name", "key", "form", "error"),
    [
        ("a", "both", "by 1", None),
        ("b", "both", "by 2", None),
        (None, "both", "by 1", None),
        ("b", "a", "by 1", None),
        ("b", "nobody", "store", "not by 2"),
        ("other", "nobody", "store", "not by 1"),
    ],
)
def test_letter_is_opened_by_its_pipeline(name: str | None, key: str, form: str, error: str | None) -> None:
    """And with another one if that cannot, as a pipeline may have another name by now."""
    readers = {"a": Reader(1, "both", "a"), "b": Reader(2, "both")}
    shared = SharedReaders(cast("dict[str, LetterReader]", readers))
    headers = () if name is None else (("__connect.errors.connector.name", name.encode()),)
    summary = shared.summarize(FoundLetter(0, (1,), Record(key.encode(), None, headers), 0))
    assert (summary.form, summary.error) == (form, error)
