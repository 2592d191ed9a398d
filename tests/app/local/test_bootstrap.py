"""The set-up in a small checkout: a lock with one local package, no network."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.local.bootstrap import reason

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
BOOTSTRAP = ROOT / "app" / "local" / "bootstrap.py"
STEPS = [
    "Virtual environment",
    "Java",
    "Python's build tools",
    "Python packages",
    "Wideload itself",
    "Jars of Kafka and Spark",
    "First start of the broker",
]

# In place of setuptools, which would have to come from an index.
BACKEND = """
import zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{folder}/itself-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("itself-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: itself\\nVersion: 1.0\\n")
        archive.writestr("itself-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        archive.writestr("itself-1.0.dist-info/RECORD", "")
    return "itself-1.0-py3-none-any.whl"
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with a space in its path, without jars, and with local wheels."""
    folder = tmp_path_factory.mktemp("a checkout")
    for part in ("app", "transforms"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "app" / "local" / "jars.lock").write_text("")
    (folder / "pyproject.toml").write_text('[build-system]\nrequires = ["tiny"]\nbuild-backend = "tiny"\n')
    wheel(folder, "other")
    lock(folder, "tiny", wheel(folder, "tiny", BACKEND))
    return folder


def wheel(folder: Path, name: str, source: str = "") -> str:
    """Makes a wheel and returns its digest."""
    path = folder / "wheels" / f"{name}-1.0-py3-none-any.whl"
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", source)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lock(checkout: Path, name: str, digest: str) -> None:
    (checkout / "requirements-dev.lock").write_text(f"{name}==1.0 \\\n    --hash=sha256:{digest}\n")


def make(checkout: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments],
        cwd=checkout,
        env={
            "PATH": os.environ["PATH"],
            "PYTHON": sys.executable,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": (checkout / "wheels").as_uri(),
            "WIDELOAD_CACHE": str(checkout / "cache"),
            **environ,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def steps(checkout: Path) -> list[str]:
    """The steps of a successful set-up; each prints one line with its time."""
    done = make(checkout, "setup-demo")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.partition(" ... ") for line in done.stdout.splitlines()]
    assert all(re.fullmatch(r"\d+\.\d s", time) for _, _, time in lines)
    return [title for title, _, _ in lines]


@pytest.fixture
def moved(checkout: Path) -> Path:
    """A checkout whose set-up was done in another place: no step of it counts, and its environment is useless."""
    shutil.rmtree(checkout / ".venv", ignore_errors=True)
    before = checkout.rename(checkout.with_name("before"))
    try:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", before / ".venv"], check=True)
        (stamps,) = set(re.findall(r"\.venv/\.setup/\d+", make(before, "-n", "setup-demo").stdout))
        (before / stamps).mkdir(parents=True)
        assert make(before, "-t", "setup-demo").returncode == 0
        assert "bootstrap.py" not in make(before, "-n", "setup-demo").stdout
    finally:
        before.rename(checkout)
    lock(checkout, "tiny", wheel(checkout, "tiny", BACKEND))
    return checkout


def test_step_that_another_make_does_meanwhile(tmp_path: Path) -> None:
    """What was done after the shell of the recipe had started is not done again, however late Python starts."""
    for before, again in (('echo done > "$1"; "$2" -c pass; ', False), ("", True)):
        recipe = before + '"$2" -IS "$3" "$1" Title touch again; :'
        subprocess.run(["sh", "-c", recipe, "sh", "stamp", sys.executable, BOOTSTRAP], cwd=tmp_path, check=True)
        assert (tmp_path / "again").exists() is again


def test_step_that_was_interrupted_is_done_again(tmp_path: Path) -> None:
    """An interrupted step leaves no stamp, and says what the next call does."""
    command = [sys.executable, str(BOOTSTRAP), "stamp", "Title", "sh", "-c", "kill -INT $PPID; sleep 9"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "Set-up: interrupted; the next call repeats this step.\n")
    assert not (tmp_path / "stamp").exists()


def test_steps_are_done_once(moved: Path) -> None:
    """Each step runs once, in order, also of two calls at once or in another place; again after a change alone."""
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda _: steps(moved), range(2)))
    assert sorted(done[0] + done[1]) == sorted(STEPS)
    assert all(each == sorted(each, key=STEPS.index) for each in done)
    assert list(moved.glob(".venv/lib/*/site-packages/tiny.py"))
    assert steps(moved) == []
    (moved / "pyproject.toml").touch()
    assert steps(moved) == ["Wideload itself"]
    (moved / "app" / "local" / "jars.lock").touch()
    assert steps(moved) == STEPS[5:]
    (moved / "requirements-dev.lock").touch()
    assert steps(moved) == STEPS[2:]


def test_package_that_is_not_the_locked_one(checkout: Path) -> None:
    """A package with a wrong hash is refused by name."""
    lock(checkout, "other", "0" * 64)
    done = make(checkout, "setup-demo")
    assert done.returncode == 2
    message = "Set-up: Python packages: other==1.0 is not the package that the lock file names, and was not installed."
    assert done.stderr.startswith(message)
    assert "The full log is build/setup.log.\nmake: ***" in done.stderr
    assert "DO NOT MATCH THE HASHES" in (checkout / "build" / "setup.log").read_text()


def test_s3_servers_are_left_out_without_go(checkout: Path, tmp_path: Path) -> None:
    """Without Go the set-up goes on, and says so each time; servers that are in the cache are not built again."""
    lock(checkout, "tiny", wheel(checkout, "tiny", BACKEND))
    for name in ("awk", "cksum", "cut", "env", "grep", "java", "make", "rm", "sh"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    environ = {"PATH": str(tmp_path), "WIDELOAD_CACHE": str(tmp_path / "cache")}
    for target, times in (("setup-test", 1), ("setup-test", 1), ("setup", 0)):
        assert make(checkout, target, **environ).stdout.count("are skipped: Go is not installed.") == times
    (tmp_path / "cache" / "bin").mkdir(parents=True)
    (tmp_path / "cache" / "bin" / "versitygw").touch()
    assert make(checkout, "setup-test", **environ).stdout == ""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["ERROR: Could not install: [Errno 28] No space left on device"], "the disk is full"),
        (["Error: ensurepip is not available"], "-venv)"),
        (
            ["WARNING: Retrying after NewConnectionError('x')", "ERROR: No matching distribution"],
            "(NewConnectionError)",
        ),
        (["ERROR: No matching distribution found for absent==1.0"], "(No matching distribution found for absent==1.0)"),
        (["go: dial tcp: lookup proxy: i/o timeout"], "index does not answer (dial tcp). Check the connection"),
        (
            ["ERROR: bad thing at https://me:secret@index/x"],
            "bad thing at https://***@index/x. The full log is build/setup.log.",
        ),
        ([], "it printed nothing"),
    ],
)
def test_reason_says_what_to_do(lines: list[str], said: str) -> None:
    """The output of a program becomes one sentence, without secrets."""
    assert said in reason(["pip"], lines)
    assert "secret" not in reason(["pip"], lines)


def test_bootstrap_is_parsed_by_old_python() -> None:
    """Python 3.6 reads the file, so that it can say that it is too old."""
    assert ast.parse(BOOTSTRAP.read_text(), feature_version=(3, 6)).body


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ((3, 10, 99), r"Set-up: Python 3\.10\.99 .* is too old .* Install Python 3\.11 to .*\n"),
        ((3, 11, 0), ""),
        ((3, 15, 0), ""),
    ],
)
def test_bootstrap_wants_a_python(version: tuple[int, int, int], told: str, tmp_path: Path) -> None:
    """One that is too old gets a sentence, with what to install; there is no newest one: a package says so itself."""
    pretend = f"import runpy, sys; sys.version_info = {version}; "
    pretend += f"runpy.run_path({str(BOOTSTRAP)!r}, run_name='__main__')"
    command = [sys.executable, "-c", pretend, "stamp", "Nothing", "true"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == bool(told)
    assert re.fullmatch(told, done.stderr)


@pytest.mark.parametrize(
    ("arguments", "environ", "status", "told"),
    [
        (["demo"], {"JAVA_HOME": "/no/java"}, 2, "Set-up: Java: JAVA_HOME is /no/java, but "),
        (["test"], {"PYTHON": "/no/python"}, 2, "Set-up: /no/python was not found."),
        ([], {}, 0, ""),
    ],
)
def test_make_says_what_is_missing(
    checkout: Path, arguments: list[str], environ: dict[str, str], status: int, told: str
) -> None:
    """One sentence and no traceback names what is not there; without a target `make` lists them, and does nothing."""
    done = make(checkout, *arguments, **environ)
    assert done.returncode == status
    assert done.stderr.startswith(told)
    assert "Traceback" not in done.stderr + done.stdout
    assert ({"make demo", "make test"} <= set(re.findall(r"make [a-z]+", done.stdout))) is not bool(status)
