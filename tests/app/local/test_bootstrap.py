"""The set-up, for real but small: a checkout of its own, a lock of one local package, no network."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from app.local.installation import Installation, SetupError, Step, reason

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a space in its path, and a wheel beside it."""
    folder = tmp_path_factory.mktemp("a checkout")
    for part in ("app", "transforms"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    lock(folder, "tiny", wheel(folder, "tiny"))
    wheel(folder, "other")
    return folder


def wheel(folder: Path, name: str) -> str:
    """Makes a wheel and returns its digest."""
    path = folder / "wheels" / f"{name}-1.0-py3-none-any.whl"
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def installation(checkout: Path) -> Installation:
    return Installation(checkout, offline(checkout))


def offline(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": (checkout / "wheels").as_uri()}


def lock(checkout: Path, name: str, digest: str) -> None:
    (checkout / "requirements-dev.lock").write_text(f"{name}==1.0 \\\n    --hash=sha256:{digest}\n")


def due(installation: Installation) -> list[str]:
    return [step.title for step in installation.due("demo") if not step.title.startswith("Jars")]


def perform(installation: Installation, title: str) -> None:
    (step,) = (step for step in installation.due("demo") if step.title == title)
    installation.perform(step, lambda _: None)


def test_steps_are_done_once(installation: Installation, checkout: Path) -> None:
    """Each step is due until it was done, and again only when what it depends on has changed."""
    assert due(installation) == ["Virtual environment", "Java", "Python packages", "Wideload itself"]
    for title in ("Virtual environment", "Java", "Python packages"):
        perform(installation, title)
    assert due(installation) == ["Wideload itself"]
    assert list(checkout.glob(".venv/lib/*/site-packages/tiny.py"))
    with (checkout / "requirements-dev.lock").open("a") as file:
        file.write("# changed\n")
    assert due(installation) == ["Python packages", "Wideload itself"]
    perform(installation, "Python packages")
    ask = "import sys, os; sys.path.insert(0, '.'); from pathlib import Path; "
    ask += "from app.local.installation import Installation; "
    ask += "print([step.title for step in Installation(Path.cwd(), os.environ).due('demo')][0])"
    command = [str(checkout / ".venv" / "bin" / "python"), "-I", "-S", "-c", ask]
    assert subprocess.check_output(command, cwd=checkout, text=True) == "Wideload itself\n"
    moved = checkout.rename(checkout.with_name("moved"))
    try:
        assert due(Installation(moved, os.environ))[0] == "Virtual environment"
    finally:
        moved.rename(checkout)


def test_step_that_was_interrupted_is_done_again(installation: Installation) -> None:
    """A step that did not come to its end leaves no stamp, so it is still due."""
    before = due(installation)

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    step = Step(before[-1], "key", interrupted)
    with pytest.raises(KeyboardInterrupt):
        installation.perform(step, lambda _: None)
    assert due(installation) == before


def test_package_that_is_not_the_locked_one(installation: Installation, checkout: Path) -> None:
    """A package with other bytes than the lock says is refused, by name."""
    lock(checkout, "other", "0" * 64)
    with pytest.raises(SetupError, match=r"is not the one that the lock file names"):
        perform(installation, "Python packages")
    assert "Python packages" in due(installation)


def test_package_that_is_nowhere(checkout: Path) -> None:
    """Where no index has a package, the message says what to look at."""
    lock(checkout, "absent", "0" * 64)
    installation = Installation(checkout, {**offline(checkout), "PIP_FIND_LINKS": str(checkout / "app")})
    with pytest.raises(SetupError, match=r"package index does not answer.*PIP_INDEX_URL"):
        perform(installation, "Python packages")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["ERROR: Could not install: [Errno 28] No space left on device"], "the disk is full"),
        (["Error: ensurepip is not available"], "-venv)"),
        (
            ["WARNING: Retrying after NewConnectionError('x')", "ERROR: No matching distribution"],
            "(NewConnectionError)",
        ),
        (["go: dial tcp: lookup proxy: i/o timeout"], "GOPROXY"),
        (
            ["ERROR: bad thing at https://me:secret@index/x"],
            "bad thing at https://***@index/x. All that was said is in l",
        ),
        ([], "it said nothing"),
    ],
)
def test_reason_says_what_to_do(lines: list[str], said: str) -> None:
    """What a program printed becomes a sentence, without its secrets."""
    assert said in reason(lines, Path("l"))
    assert "secret" not in reason(lines, Path("l"))


def test_bootstrap_is_parsed_by_old_python() -> None:
    """Python 3.6 reads the file, so that it can say that it is too old."""
    source = (ROOT / "app" / "local" / "bootstrap.py").read_text()
    assert ast.parse(source, feature_version=(3, 6)).body


@pytest.mark.parametrize(
    ("version", "problem"),
    [((3, 8, 18), "3.8.18 .* is too old"), ((3, 10, 99), "3.10.99 .* is too old"), ((3, 14, 0), "newer")],
)
def test_bootstrap_refuses_python(version: tuple[int, int, int], problem: str) -> None:
    """A Python that does not do gets one sentence, with what to install."""
    pretend = f"import runpy, sys; sys.version_info = {version}; "
    pretend += "runpy.run_path('app/local/bootstrap.py', run_name='__main__')"
    environ = {key: value for key, value in os.environ.items() if key != "PYTHON"}
    done = subprocess.run(
        [sys.executable, "-c", pretend], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert re.fullmatch(rf"Set-up: Python .*{problem}.* Install Python 3\.11, .*\n", done.stderr)


def make(checkout: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments],
        cwd=checkout,
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def test_make_without_java(checkout: Path) -> None:
    """`make demo` without Java is one sentence and no traceback."""
    done = make(checkout, "demo", f"PYTHON={sys.executable}", JAVA_HOME=str(checkout / "none"))
    assert done.returncode == 2
    assert done.stderr.startswith("Set-up: JAVA_HOME is ")
    assert "Traceback" not in done.stderr + done.stdout


def test_make_python_not_there(checkout: Path) -> None:
    """A Python that the user names and that is not there is named."""
    done = make(checkout, "test", "PYTHON=/no/python")
    assert done.stderr.startswith("Set-up: /no/python was not found.")


def test_make_help_lists_targets(checkout: Path) -> None:
    """`make` alone lists what there is to do, and does nothing else."""
    done = make(checkout)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"make demo", "make test", "make bench"} <= set(re.findall(r"make [a-z]+", done.stdout))
