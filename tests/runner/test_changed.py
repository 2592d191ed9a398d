"""Which tests depend on a change: by imports, by names in texts, and in a real repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runner.changed import dependents, differing

SOURCES = {
    "app/__init__.py": "",
    "app/cli.py": "from app import lanes; load(f'app.parts.{name}')",
    "app/parts/__init__.py": "",
    "app/parts/one.py": "",
    "app/lanes.py": "from transforms.record import Record",
    "app/job.py": "import os",
    "transforms/__init__.py": "",
    "transforms/record.py": "",
    "tests/conftest.py": "from app.lanes import Lane",
    "tests/part/conftest.py": "",
    "tests/part/test_lanes.py": "from app.lanes import Lane",
    "tests/part/test_job.py": "import app.job",
    "tests/test_gone.py": "import app.gone",
    "tests/test_command.py": "COMMAND = ['-m', 'app.cli']",
    "tests/test_page.py": "PAGE = ROOT / 'docs' / 'page.md'",
    "tests/test_folder.py": "VECTORS = (ROOT / 'vectors').iterdir()",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("transforms/record.py", ["part/test_lanes", "test_command"]),
        ("app/cli.py", ["test_command"]),
        ("app/job.py", ["part/test_job"]),
        ("app/parts/one.py", ["test_command"]),
        ("tests/part/test_job.py", ["part/test_job"]),
        ("tests/part/conftest.py", ["part/test_job", "part/test_lanes"]),
        ("app/gone.py", ["test_gone"]),
        ("docs/page.md", ["test_page"]),
        ("docs/other.md", ["test_page"]),
        ("tests/vectors/chunks.json", ["test_folder"]),
        ("app/__init__.py", ["part/test_job", "part/test_lanes", "test_command", "test_gone"]),
        (
            "pyproject.toml",
            ["part/test_job", "part/test_lanes", "test_command", "test_folder", "test_gone", "test_page"],
        ),
    ],
)
def test_dependents(changed: str, expected: list[str]) -> None:
    """A change reaches the tests that import it, run it by its name, or read it."""
    found = dependents([changed], SOURCES)
    tests = {path for path in found if Path(path).name.startswith("test_")}
    assert sorted(tests) == [f"tests/{name}.py" for name in expected]


@pytest.fixture
def own_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """A git that knows of no other repository, as a hook would tell it, and of no settings of the user."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.mark.usefixtures("own_git")
def test_differing(tmp_path: Path) -> None:
    """What is committed on the branch, what is renamed, and what is new: all differ; what main got since does not."""

    def git(*arguments: str) -> None:
        author = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
        subprocess.run(["git", *author, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text(name)
        git("add", ".")
        git("commit", "-m", name)

    git("init", "-b", "main")
    commit("first")
    git("switch", "-c", "branch")
    commit("committed ü")
    git("switch", "main")
    commit("later on main")
    git("switch", "branch")
    git("mv", "first", "renamed")
    (tmp_path / "committed ü").write_text("changed")
    (tmp_path / "new").touch()
    assert differing(tmp_path, "main") == {"committed ü", "first", "renamed", "new"}
    with pytest.raises(ValueError, match="no common commit of HEAD and 'nowhere'"):
        differing(tmp_path, "nowhere")


def test_unknown_reference_is_told() -> None:
    """A reference that git does not know ends the command with 1 and one line."""
    command = [sys.executable, "-m", "tests.runner.changed", "no-such-reference"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no common commit of HEAD and 'no-such-reference'" in done.stderr
    assert "Traceback" not in done.stderr


def test_half_edited_module_is_found() -> None:
    """A module that cannot be parsed is no obstacle: pytest says what is wrong with it."""
    sources = {**SOURCES, "app/lanes.py": "def half("}
    assert "tests/part/test_lanes.py" in dependents(["app/lanes.py"], sources)
