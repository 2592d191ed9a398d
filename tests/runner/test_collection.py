"""What is collected, and what the garbage collector looks at while tests run."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from tests.runner.collection import pytest_ignore_collect

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("wanted", "ignored"),
    [
        ("unit", True),
        ("unit and not slow", True),
        ("", False),
        ("not unit or slow", False),
        ("unit or integration", False),
        ("unit and not slow or chaos", False),
    ],
)
def test_folder_without_unit_tests(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, wanted: str, *, ignored: bool
) -> None:
    """The folder of integration tests is passed over where only unit tests are wanted, and no other folder is."""
    monkeypatch.setattr(pytestconfig.option, "markexpr", wanted)
    assert bool(pytest_ignore_collect(TESTS / "integration", pytestconfig)) is ignored
    assert not pytest_ignore_collect(TESTS / "transforms", pytestconfig)


def test_garbage_is_collected_without_what_stays() -> None:
    """The collector runs, and does not look at what was there before the first test: many thousand objects."""
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
