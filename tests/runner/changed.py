"""Which test files depend on what differs from the main branch: `python -m tests.runner.changed [REF]` prints them.

A test file depends on what it imports, directly or through others, and on each module and file that one of those names
in a text: "app.cli" as the module of a command, "pipeline.md" as a page to compare with. It depends on the conftest.py
files above it, but not on what they import: the fixtures of the suite use nearly everything. What is compared are the
files of the work tree with the commit at which this branch left REF, by default `origin/main`, or `main` where there is
none.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("app", "transforms", "stores", "jobs", "wideload", "package", "tests", "benchmarks", "docs")
_MAINS = ("origin/main", "main")
# All tests depend on these.
_EVERYTHING = ("pyproject.toml", "requirements-dev.lock", "app/local/jars.lock")


def differing(root: Path, reference: str) -> set[str]:
    """The files of the work tree, with new ones, that differ from the commit at which this branch left `reference`.

    Raises:
        ValueError: git knows no such reference.
    """
    try:
        base = _git(root, "merge-base", "HEAD", reference).strip()
    except subprocess.CalledProcessError as exc:
        raise ValueError(f"git finds no common commit of HEAD and {reference!r}: {exc.stderr.strip()}") from exc
    differ = _git(root, "diff", "--name-only", "--no-renames", "-z", base)
    new = _git(root, "ls-files", "-o", "--exclude-standard", "-z")
    return {name for name in (differ + new).split("\0") if name}


def dependents(changed: Iterable[str], sources: Mapping[str, str]) -> set[str]:
    """The paths of `sources`, modules with their texts, that depend on one of the changed files."""
    changed = set(changed)
    if not changed.isdisjoint(_EVERYTHING):
        return set(sources)
    # A module that is no longer there is still imported by its name.
    modules = {_module(path): path for path in (*sources, *changed) if path.endswith(".py")}
    # A data file is named by its own name, or by the folder that is read.
    names = {name for path in changed if path not in sources for name in Path(path).parts[-2:]}
    found = set(changed)
    needs: dict[str, set[str]] = {}
    for path, source in sources.items():
        texts, imports = _read(source)
        texts.discard("wideload")  # mostly the name of the command, or of the data source
        needs[path] = {modules[name] for each in imports | texts for name in _prefixes(each) if name in modules}
        # f"app.commands.{name}": any module of the package.
        packages = tuple(text for text in texts if text.endswith(".") and text[:-1] in modules)
        needs[path] |= {modules[name] for name in modules if packages and name.startswith(packages)}
        # Of what a conftest.py imports a test uses little, and that it mostly imports itself.
        its_conftest = any(_is_conftest_of(parent, path) for parent in changed)
        if its_conftest or any(text.rpartition("/")[2] in names for text in texts):
            found.add(path)
    while more := {path for path in sources if path not in found and not found.isdisjoint(needs[path])}:
        found |= more
    return found & set(sources)


def _read(source: str) -> tuple[set[str], set[str]]:
    """The texts of a module, and the names of what it imports."""
    texts, imports = set[str](), set[str]()
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return texts, imports  # what imports it is found all the same
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
        elif isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imports.update(f"{node.module}.{alias.name}" for alias in node.names)
    return texts, imports


def _prefixes(dotted: str) -> Iterable[str]:
    """`a.b.c`, `a.b` and `a`: the import of a module runs its packages too."""
    parts = dotted.split(".")
    return (".".join(parts[:length]) for length in range(len(parts), 0, -1))


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_conftest_of(parent: str, path: str) -> bool:
    folder, _, name = parent.rpartition("/")
    return name == "conftest.py" and path != parent and path.startswith(f"{folder}/")


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def main(arguments: Sequence[str]) -> int:
    """Prints the test files; says on stderr what was compared. The status is 1 where git has no such reference."""
    if shutil.which("git") is None:
        print("git is not installed; select the tests with make test FILES=...", file=sys.stderr)
        return 1
    known = [
        name
        for name in _MAINS
        if not subprocess.run(
            ["git", "rev-parse", "--verify", "--quiet", name], cwd=_ROOT, capture_output=True, check=False
        ).returncode
    ]
    reference = next(iter([*arguments, *known]), "main")
    try:
        changed = differing(_ROOT, reference)
    except ValueError as exc:
        print(exc, file=sys.stderr)
        return 1
    paths = (path for folder in _FOLDERS for path in sorted((_ROOT / folder).rglob("*.py")))
    sources = {path.relative_to(_ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    tests = {path for path in sources if path.startswith("tests/") and Path(path).name.startswith("test_")}
    found = sorted(tests & dependents(changed, sources))
    print(
        f"{len(changed)} files differ from {reference}; {len(found)} of {len(tests)} test files depend on them",
        file=sys.stderr,
    )
    print("\n".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
