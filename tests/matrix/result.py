"""What a cell of the matrix has found, the file that keeps it; docs/tried_page.py shows it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "docs" / "tried.json"
"""What docs/tried.md is made of."""

_WORDS = 200


class CellError(Exception):
    """A cell that failed before its tests began; the message says why."""


class NotHereError(Exception):
    """A cell that this machine cannot have; the message says why."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a cell has found.

    Attributes:
        cell: its name.
        date: of the run, as in ISO 8601.
        versions: what ran, by name.
        passed: how many tests passed.
        failed: the tests that failed, with the first line of the reason each.
        skipped: how many tests were skipped, by the reason.
        missing: why the cell could not be had on this machine; else empty.
        error: why it failed before its tests began; else empty.
        set_up_s: how long it took to make its environment and to start its broker.
        seconds: how long its tests took.
    """

    cell: str
    date: str
    versions: Mapping[str, str] = field(default_factory=dict)
    passed: int = 0
    failed: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    missing: str = ""
    error: str = ""
    set_up_s: float = 0.0
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Whether a test passed and none failed, or the cell could not be had."""
        return bool(self.missing) or (self.passed > 0 and not (self.error or self.failed))


def counted(report: str) -> tuple[int, list[str], Counter[str]]:
    """What passed, failed and was skipped in a run of pytest, from its report in the form of JUnit; as in `Result`."""
    passed, failed, skipped = 0, [], Counter[str]()
    for case in ET.fromstring(report).iter("testcase"):  # noqa: S314  # pytest has written it
        broken = next((each for each in case if each.tag in {"failure", "error"}), None)
        left_out = case.find("skipped")
        if broken is not None:
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}".removeprefix("::")
            failed.append(f"{name}: {_line(broken.get('message', ''))}")
        elif left_out is not None:
            skipped[_line(left_out.get("message", ""))] += 1
        else:
            passed += 1
    return passed, failed, skipped


def _line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:_WORDS]


def read(file: Path = FILE) -> list[Result]:
    """The results that are kept, in the order of their cells; none if there is no file.

    Raises:
        ValueError: the file has something else; the message is for the user.
    """
    if not file.exists():
        return []
    try:
        return [Result(**each) for each in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as exc:
        raise ValueError(f"{file.name} has no results ({exc}); restore it, or remove it") from exc


def merged(kept: Iterable[Result], new: Iterable[Result], order: Sequence[str]) -> list[Result]:
    """The newest result of each cell. A cell that could not be had takes the place of no run."""
    found = {each.cell: each for each in kept}
    for each in new:
        if not each.missing or each.cell not in found or found[each.cell].missing:
            found[each.cell] = each
    return [found[name] for name in order if name in found]


def write(results: Iterable[Result], file: Path = FILE) -> None:
    """Keeps the results; a file that cannot be written, as on a full disk, keeps the former ones."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n", encoding="utf-8")
    new.replace(file)
