"""`wideload job`: the list of jobs, and a run."""

from __future__ import annotations

import ast
import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli import cli, main
from app.commands.job import JOBS

FOLDER = Path(__file__).resolve().parents[3] / "jobs"


def has_main(module: Path) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in ast.parse(module.read_text()).body)


def test_jobs_are_those_with_a_main() -> None:
    """Each module of jobs/ that has a `main` is a job, and no other."""
    assert sorted(JOBS) == sorted(module.stem for module in FOLDER.glob("*.py") if has_main(module))


def test_job_lists_them() -> None:
    """Without a name, the command lists the jobs, each with a sentence, and does not import Spark."""
    result = CliRunner().invoke(cli, ["job"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == list(JOBS)
    assert all(line.endswith(".") and len(line) < 110 for line in result.output.splitlines())


def test_job_unknown() -> None:
    """For a mistyped name the error names the nearest job, or all jobs."""
    result = CliRunner().invoke(cli, ["job", "sweeep"])
    assert (result.exit_code, "did you mean sweep?" in result.output) == (2, True)
    result = CliRunner().invoke(cli, ["job", "xyz", "--topic", "t"])
    assert (result.exit_code, f"there are {', '.join(JOBS)}" in result.output) == (2, True)


@pytest.mark.parametrize("name", JOBS)
def test_job_takes_its_own_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments after the name go to the job; help, errors and exit status are those of the job."""
    with pytest.raises(SystemExit) as ended:
        main(["job", name, "--help"])
    assert ended.value.code == 0
    assert f"usage: {name} " in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["job", name, "--nix"])
    assert ended.value.code == 2
    assert f"{name}: error: " in capsys.readouterr().err


def test_job_status_is_the_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    """An error of a job is one sentence, and its status is that of the command."""
    arguments = ["--bootstrap-servers", "127.0.0.1:1", "--source", "a", "--sink", "a", "--to", "plain"]
    with pytest.raises(SystemExit) as ended:
        main(["job", "backfill", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "backfill: --sink: found a, which is the source; give another topic\n"


def test_job_uses_the_jars_of_the_set_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fetched connector is used; jars of the user take precedence, and then nothing is fetched."""
    taken: list[list[str]] = []
    monkeypatch.setattr("jobs.sweep.main", lambda arguments, _: taken.append(arguments))
    monkeypatch.setenv("WIDELOAD_CACHE", str(tmp_path))
    monkeypatch.setenv("WIDELOAD_SPARK_JARS", "")
    assert CliRunner().invoke(cli, ["job", "sweep", "--json"]).exception is None
    monkeypatch.setattr("app.local.jars.missing", lambda: ("kafka",))
    monkeypatch.setattr("app.local.jars.ensure", lambda name: (tmp_path / f"{name}-a.jar", tmp_path / "b.jar"))
    assert CliRunner().invoke(cli, ["job", "sweep", "--jars", "mine"]).exception is None
    monkeypatch.setenv("WIDELOAD_SPARK_JARS", "theirs")
    assert CliRunner().invoke(cli, ["job", "sweep"]).exception is None
    assert taken == [["--json"], ["--jars", f"{tmp_path}/spark-a.jar,{tmp_path}/b.jar", "--jars", "mine"], []]


def test_job_without_spark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without PySpark, one sentence says what to install."""
    find = importlib.util.find_spec

    def found(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "pyspark" else find(name, package)

    monkeypatch.setattr("importlib.util.find_spec", found)
    with pytest.raises(SystemExit) as ended:
        main(["job", "sweep", "--help"])
    assert ended.value.code == 2
    said = "wideload: job: pyspark is not installed; run: pip install 'wideload[spark]'\n"
    assert capsys.readouterr().err == said
