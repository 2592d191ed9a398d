"""The table of docs/tried.md that is made of docs/tried.json, which `make matrix` writes; `make docs` puts it in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.matrix.result import Result, read

PAGE = Path(__file__).with_name("tried.md")

_BEGIN, _END = "<!-- matrix -->\n", "<!-- /matrix -->"


def page(text: str) -> str:
    """The page, with the table of the results that are kept between its marks."""
    before, _, behind = text.partition(_BEGIN)
    return f"{before}{_BEGIN}{table(read())}{_END}{behind.partition(_END)[2]}"


def table(results: Iterable[Result]) -> str:
    """The table, and under it the reasons: why tests failed or were skipped, and why a cell was not run."""
    rows, reasons = [], []
    for each in results:
        ran = ", ".join(f"{name} {version}" for name, version in each.versions.items()) or "nothing"
        counts = (each.passed, len(each.failed), sum(each.skipped.values()))
        shown = " | ".join(f"{count:,}" for count in counts) if each.versions else " |  | "
        rows.append(f"| `{each.cell}` | {_escaped(ran)} | {shown} | {each.date} |\n")
        reasons += [f"- `{each.cell}`, {why}\n" for why in _reasons(each)]
    head = "| cell | what ran | passed | failed | skipped | on |\n| --- | --- | ---: | ---: | ---: | --- |\n"
    return head + "".join(rows) + ("\n" + "".join(reasons) if reasons else "")


def _reasons(result: Result) -> Iterator[str]:
    if result.missing or result.error:
        yield f"not run: {_escaped(result.missing)}" if result.missing else f"failed: {_escaped(result.error)}"
    for test in result.failed:
        yield f"failed: {_escaped(test)}"
    for reason, count in result.skipped.items():
        yield f"skipped, {count:,}: {_escaped(reason)}"


def _escaped(text: str) -> str:
    """One line that shows the text as it is, in a table too."""
    plain = " ".join(text.split())
    return "".join(f"\\{each}" if each in r"\|<>*_`[]" else each for each in plain)
