"""`wideload job`: the list of jobs, and a run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
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
    assert (result.exit_code, f"the jobs are {', '.join(JOBS)}" in result.output) == (2, True)


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
    assert f"{name}: there is no option --nix; --help" in capsys.readouterr().err


def test_job_status_is_the_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    """An error of a job is one sentence, and its status is that of the command."""
    arguments = ["--bootstrap-servers", "127.0.0.1:1", "--source", "a", "--sink", "a", "--to", "plain"]
    with pytest.raises(SystemExit) as ended:
        main(["job", "backfill", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "backfill: --sink: found a, which is the source; use another topic\n"


def test_job_uses_the_jars_of_the_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The connector has the bytes of the lock, and is fetched if it is not there; jars of the user take precedence."""
    taken: list[list[str]] = []

    def ensure(name: str, say: Callable[[str], None]) -> tuple[Path, ...]:
        say(f"fetching {name}")
        return tmp_path / f"{name}-a.jar", tmp_path / "b.jar"

    monkeypatch.setattr("jobs.sweep.main", taken.append)
    monkeypatch.setattr("app.local.jars.ensure", ensure)
    monkeypatch.setenv("WIDELOAD_SPARK_JARS", "")
    result = CliRunner().invoke(cli, ["job", "sweep", "--json"])
    assert (result.exception, result.stdout, result.stderr) == (None, "", "fetching spark\n")
    for mine in (["--jars", "mine"], ["--jars=mine"], ["--help"]):
        assert CliRunner().invoke(cli, ["job", "sweep", *mine]).output == ""
    monkeypatch.setenv("WIDELOAD_SPARK_JARS", "theirs")
    assert CliRunner().invoke(cli, ["job", "sweep"]).output == ""
    locked = ["--jars", f"{tmp_path}/spark-a.jar,{tmp_path}/b.jar", "--json"]
    assert taken == [locked, ["--jars", "mine"], ["--jars=mine"], ["--help"], []]


def test_job_jars_prints_the_files_of_the_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For programs of the user: one line for --jars, and what is fetched meanwhile on stderr."""

    def ensure(name: str, say: Callable[[str], None]) -> tuple[Path, ...]:
        say(f"fetching {name}")
        return tmp_path / "a.jar", tmp_path / "b.jar"

    monkeypatch.setattr("app.local.jars.ensure", ensure)
    result = CliRunner().invoke(cli, ["job", "jars"])
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/a.jar,{tmp_path}/b.jar\n")
    assert result.stderr == "fetching spark\n"
    result = CliRunner().invoke(cli, ["job", "jars", "--all"])
    assert (result.exit_code, "jars takes no options" in result.output) == (2, True)


def test_job_whose_jars_cannot_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No registry: one sentence, and Spark is not left to look for others."""
    settings = tmp_path / "ivy.xml"
    settings.write_text("<ivysettings/>")
    monkeypatch.setenv("WIDELOAD_CACHE", str(tmp_path))
    monkeypatch.setenv("WIDELOAD_SPARK_JARS", "")
    monkeypatch.setenv("WIDELOAD_IVY_SETTINGS", str(settings))
    monkeypatch.setattr("jobs.sweep.main", lambda *_: pytest.fail("it has begun"))
    with pytest.raises(SystemExit) as ended:
        main(["job", "sweep"])
    assert ended.value.code in (1, 2)


@pytest.mark.parametrize("missing", ["pyspark", "py4j"])
def test_job_without_spark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str) -> None:
    """Without PySpark, or with a client of Spark Connect, which lacks Py4J, one sentence says what to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as ended:
        main(["job", "sweep", "--help"])
    assert ended.value.code == 2
    said = f"wideload: job: {missing} is not installed; run: pip install 'wideload[spark]'\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("command", [("job", "sweep", "--help"), ("job", "jars"), ("demo",)])
def test_job_with_another_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    """With a Spark that the jobs do not run on, one sentence says so; no jar is fetched and no Java is started."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.4.4.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(SystemExit) as ended:
        main([*command])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("wideload: spark: version 3.4.4 was found; supported are 3.5 to 4.3: run pip install ")
    assert said.count("\n") == 1
