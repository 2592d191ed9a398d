"""docs/security.md names the tests that hold its promises; each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_each_promise_has_its_tests() -> None:
    """A test that was moved takes its name in the page with it."""
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    named = set(re.findall(r"`(tests/[\w/.]+)`", page))
    assert len(named) > 10
    assert [each for each in sorted(named) if not (ROOT / each).exists()] == []
