"""The program on the first screen of the README: it runs without a broker, and prints what its comments show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRINTED = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)


def first_program(page: str) -> str:
    """The first block of Python of a page."""
    _, _, rest = (ROOT / page).read_text(encoding="utf-8").partition("```python\n")
    return rest.partition("```")[0]


@pytest.mark.parametrize("page", ["README.md", "docs/serializers.md"])
def test_first_program_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    """The block runs as printed, in an empty directory; `…` in a comment is any text."""
    program = first_program(page)
    shown = PRINTED.findall(program)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert len(printed) == len(shown) >= 3
    for line, comment in zip(printed, shown, strict=True):
        assert re.fullmatch(".*".join(map(re.escape, comment.split("…"))), line), f"{line}\nis not\n{comment}"
    assert any(path.is_file() for path in tmp_path.joinpath("payloads").rglob("*"))
