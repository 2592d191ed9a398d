"""`make release-check`: builds the distributions into `dist/`, and tries what a user gets from them.

    python -m package.release_check [--tag v0.1.0] [--repository URL] [--without-demo]

1. The version, the changelog, the tag and the repository's address agree.
2. The sdist is built from the clone, and the wheel from the sdist.
3. `twine check --strict` accepts both, and their long description has no relative link.
4. Each is installed into an empty environment, in which the README's program prints what its comments show, `wideload
   --version` prints the version, and `wideload demo` ends with identical payloads.

The versions of dependencies are those of `requirements-dev.lock`; `make matrix` tries the newest and the lowest ones.
"""

from __future__ import annotations

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
_TOOLS = ("build==1.6.1", "twine==7.0.0")
_EXTRAS = "worker,s3,spark"  # `wideload demo` runs a Spark job
_PIP = ("--quiet", "--disable-pip-version-check", "--no-input")
_PRINTED = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)
_RELATIVE = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s]+)\)")


class ReleaseError(Exception):
    """The release is not ready; the message has the reason."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all checks. 0 if the release is ready, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m package.release_check", description=__doc__)
    parser.add_argument("--tag", help="the tag of the release, v and the version")
    parser.add_argument("--repository", help="the address of the repository that publishes")
    parser.add_argument("--without-demo", action="store_true", help="leave out `wideload demo`, which needs Java")
    options = parser.parse_args(arguments)
    try:
        version = agreed_version(ROOT, options.tag, options.repository)
        with tempfile.TemporaryDirectory(prefix="wideload-release-") as temporary:
            for distribution in build(Path(temporary)):
                print(f"{distribution.name}: long description", flush=True)
                check_links(long_description(distribution))
                try_installed(distribution, version, Path(temporary), demo=not options.without_demo)
    except ReleaseError as exc:
        print(f"not ready: {exc}", file=sys.stderr)
        return 1
    print(f"ready: wideload {version}, in {DIST.relative_to(ROOT)}/")
    return 0


def agreed_version(root: Path, tag: str | None, repository: str | None) -> str:
    """The version of the project.

    Raises:
        ReleaseError: the changelog, the tag or the repository's address does not agree with `pyproject.toml`.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version, address = str(project["version"]), str(project["urls"]["Repository"])
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(?!Unreleased)([^]]+)\](?: - (\d{4}-\d\d-\d\d))?$", changelog, re.MULTILINE)
    if newest is None or newest[1] != version or newest[2] is None:
        found = newest[0] if newest else "no version"
        raise ReleaseError(f"CHANGELOG.md begins with {found!r}, expected '## [{version}] - YYYY-MM-DD'")
    if tag is not None and tag != f"v{version}":
        raise ReleaseError(f"the tag is {tag}, expected v{version}, the version in pyproject.toml")
    if repository is not None and repository != address:
        raise ReleaseError(f"project.urls.Repository in pyproject.toml is {address}, expected {repository}")
    return version


def build(temporary: Path) -> list[Path]:
    """Builds sdist and wheel into `dist/`; twine checks both."""
    tools = environment(temporary / "tools")
    run([tools / "pip", "install", *_PIP, *_TOOLS])
    shutil.rmtree(DIST, ignore_errors=True)
    run([tools / "python", "-m", "build", "--outdir", DIST, ROOT])
    found = sorted(DIST.iterdir())
    if [path.suffix for path in found] != [".whl", ".gz"]:
        raise ReleaseError(f"built {', '.join(path.name for path in found)}, expected one wheel and one sdist")
    run([tools / "twine", "check", "--strict", *found])
    return found


def long_description(distribution: Path) -> str:
    """The long description in the metadata of a distribution."""
    if distribution.suffix == ".whl":
        with zipfile.ZipFile(distribution) as wheel:
            (name,) = [each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")]
            metadata = wheel.read(name)
    else:
        with tarfile.open(distribution) as sdist:
            file = sdist.extractfile(f"{distribution.name.removesuffix('.tar.gz')}/PKG-INFO")
            metadata = file.read() if file else b""
    return str(email.message_from_bytes(metadata).get_payload(decode=True).decode())  # type: ignore[union-attr]


def check_links(description: str) -> None:
    """Raises ReleaseError if a link leads to a file that an index does not have."""
    if relative := _RELATIVE.findall(description):
        raise ReleaseError(f"the long description has relative links: {', '.join(relative)}")
    if "](https://" not in description:
        raise ReleaseError("the long description has no links: is it the README?")


def try_installed(distribution: Path, version: str, temporary: Path, *, demo: bool) -> None:
    """Installs a distribution into an empty environment and uses it from there."""
    name = distribution.suffix.strip(".")
    scripts = environment(temporary / name)
    directory = temporary / f"{name}-directory"
    directory.mkdir()
    constraints = temporary / "constraints.txt"
    constraints.write_text(pins((ROOT / "requirements-dev.lock").read_text(encoding="utf-8")), encoding="utf-8")
    run([scripts / "pip", "install", *_PIP, "-c", constraints, f"{distribution}[{_EXTRAS}]"])
    program = (ROOT / "README.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    printed = run([scripts / "python", "-c", program], directory, show=False)
    for line, shown in zip(printed.splitlines(), _PRINTED.findall(program), strict=True):
        if not re.fullmatch(".*".join(map(re.escape, shown.split("…"))), line):
            raise ReleaseError(f"the README's program prints {line}, and its comment shows {shown}")
    if version not in (found := run([scripts / "wideload", "--version"], directory, show=False)):
        raise ReleaseError(f"wideload --version prints {found.strip()}, expected {version}")
    if demo:
        run([scripts / "wideload", "demo"], directory)


def pins(lock: str) -> str:
    """The pinned versions of a lock file, without hashes and extras, as a file of constraints."""
    found = re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?(==[^\\\n]+)", lock, re.MULTILINE)
    return "".join(f"{name}{version.rstrip()}\n" for name, version in found)


def environment(path: Path) -> Path:
    """A new virtual environment; returns the directory of its scripts."""
    run([sys.executable, "-m", "venv", path])
    return path / "bin"


def run(command: Sequence[str | Path], directory: Path = ROOT, *, show: bool = True) -> str:
    """Runs a command without the variables that lead Python to the clone. Returns what it prints, unless shown."""
    words = [str(word) for word in command]
    print("+", Path(words[0]).name, *("…" if "\n" in word else word for word in words[1:]), flush=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    output = None if show else subprocess.PIPE
    done = subprocess.run(words, cwd=directory, env=environ, stdout=output, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{Path(words[0]).name} ended with status {done.returncode}")
    return done.stdout or ""


if __name__ == "__main__":
    sys.exit(main())
