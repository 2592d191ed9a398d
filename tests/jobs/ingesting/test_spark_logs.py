"""The text of Spark's list of the files in a Parquet output, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest

from jobs.ingesting.spark_logs import DamagedError, check_list, names_files

ENTRY = {"path": "file:/o/part-0.parquet", "size": 9, "isDir": False, "modificationTime": 5, "action": "add"}


@dataclass(frozen=True, slots=True)
class Folder:
    """Files of one folder, by name."""

    texts: Mapping[str, str]

    def names(self, _: str) -> list[str]:
        return [*self.texts, ".0.crc"]

    def lines(self, path: str) -> Iterator[str]:
        yield from self.texts[path.rpartition("/")[2]].splitlines()


def listed(*entries: Mapping[str, object]) -> str:
    return "\n".join(["v1", *map(json.dumps, entries)])


ONE = listed(ENTRY)


@pytest.mark.parametrize(
    "texts",
    [
        {},
        {"0": listed()},
        {"0": ONE, "1": listed({**ENTRY, "action": "delete"})},
        {"9.compact": ONE, "10": ONE},
        {"7": "what is older than a list of all is not read", "9.compact": ONE, "10": ONE},
        {"9.compact": "", "19.compact": ONE},
    ],
)
def test_list_that_readers_can_use(texts: Mapping[str, str]) -> None:
    """Every batch behind the last one with all files is there, and each line is an entry."""
    check_list(cast("Any", Folder(texts)), "o/log")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"1": ONE}, "o/log/0 is missing"),
        ({"0": ONE, "2": ONE}, "o/log/1 is missing"),
        ({"9.compact": ONE, "11": ONE}, "o/log/10 is missing"),
        ({"0": ""}, "o/log/0 is damaged"),
        ({"0": "v2"}, "o/log/0 is damaged"),
        ({"9.compact": f"{ONE}\n"[:-9]}, "o/log/9.compact is damaged"),
        ({"0": f"{ONE}\n\n{json.dumps(ENTRY)}"}, "o/log/0 is damaged"),
        *(
            ({"0": listed({**ENTRY, name: value})}, "o/log/0 is damaged")
            for name, value in (("path", None), ("size", "9"), ("size", True), ("action", "other"))
        ),
        ({"0": listed({"path": "p"})}, "o/log/0 is damaged"),
        ({"0": "v1\n[]"}, "o/log/0 is damaged"),
        ({"0": "v1\n" + "[" * 100_000}, "o/log/0 is damaged"),
    ],
)
def test_list_that_no_reader_can_use(texts: Mapping[str, str], said: str) -> None:
    """A batch that is missing, and whatever is not Spark's, is named by its file."""
    with pytest.raises(DamagedError, match=said):
        check_list(cast("Any", Folder(texts)), "o/log")


def test_names_files() -> None:
    """A list of batches without rows names none."""
    assert not names_files(cast("Any", Folder({"0": listed(), "1": listed()})), "o/log")
    assert names_files(cast("Any", Folder({"0": ONE, "1": listed()})), "o/log")
