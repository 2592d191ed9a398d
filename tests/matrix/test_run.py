"""A cell that cannot begin, and a file of results that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix import environment, result, run
from tests.matrix.cells import Cell
from tests.matrix.result import CellError, NotHereError


@pytest.mark.parametrize("kind", [CellError, NotHereError, OSError])
def test_errors_name_no_folder_of_this_machine(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    """The reason goes to a page of the documentation."""

    def made(_: object) -> environment.Python:
        raise kind(f"see {environment.ROOT}/build/x and {Path.home()}/.cache/y")

    monkeypatch.setattr(environment, "made", made)
    found = run.run(Cell("some"), "0")
    assert found.missing + found.error == "see build/x and ~/.cache/y"


def test_results_are_read_before_the_first_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What would keep no result is said before tests run for minutes."""
    broken = tmp_path / "tried.json"
    broken.write_text("<<<<<<< HEAD")
    monkeypatch.setattr(run, "read", lambda: result.read(broken))
    monkeypatch.setattr(run, "run", lambda *_: pytest.fail("a cell ran"))
    with pytest.raises(SystemExit, match=r"^2$"):
        run.main(["--cells", "kafka-2.8"])
    assert "error: tried.json has no results" in capsys.readouterr().err
