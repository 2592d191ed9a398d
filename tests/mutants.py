"""Breaks the code in each way that mutmut knows, and counts what the tests notice: `python -m tests.mutants MODULE …`.

A MODULE is a file such as `transforms/chunk.py`; without one it is all of `transforms/`. mutmut works in a copy of the
checkout, `build/mutants`, where it keeps what it has found: a mutant is tried again only if its function or its tests
differ. Of each module it prints how many mutants were killed, and the names of the others; `mutmut show NAME` there
shows one. The status is 1 if the tests kill less than `LEAST_PERCENT` of the mutants of a module.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from app.local.jars import cache_folder

LEAST_PERCENT = 90
_ROOT = Path(__file__).resolve().parents[1]
_WORK = _ROOT / "build" / "mutants"
_ROOMS = ("chunks", "config", "deadletters", "kafka", "pipeline", "serializers")
# The tests of a directory: those that reach it, and need neither broker, nor server, nor Spark.
_TESTS = {
    "transforms": ["tests/transforms", *(f"tests/app/{room}" for room in _ROOMS)],
    "app/pipeline": ["tests/app/pipeline"],
}
_COPIED = ["app", "benchmarks", "deploy", "docs", "jobs", "package", "stores", "tests", "transforms", "wideload"]
# These read the source, which mutmut has changed.
_LEFT_OUT = ["tests/transforms/test_exports.py", "tests/transforms/test_logger_name.py"]
# What runs while modules are imported, when no mutant is in its place: a module; and functions, which do not count.
_AT_IMPORT = ["transforms/logger_name.py"]
_CALLED_AT_IMPORT = (
    "transforms.frames.x__framed__",
    "transforms.identifiers.x__named__",
    "transforms.wrapper.x__numbered__",
)
# By the exit codes of mutmut 3.8 (mutmut.stats): one that hangs is noticed, too.
_KILLED = {1, 3, 24, 36, 152, 255, -24}
_SURVIVED = {0: "survived", 5: "no test", 33: "no test"}
_LEAST_MUTANTS = 10  # of fewer, one is too many percent


def main(modules: Sequence[str]) -> int:
    """Runs mutmut, and prints its results."""
    folders = {folder for folder in _TESTS if not modules or any(name.startswith(f"{folder}/") for name in modules)}
    folder = "transforms" if not modules else folders.pop() if len(folders) == 1 else None
    if folder is None:
        print(f"name modules of one of {', '.join(_TESTS)}, as transforms/chunk.py", file=sys.stderr)
        return 2
    work = _WORK / folder.replace("/", "-")
    _copy(work, folder)
    names = [f"{name.removesuffix('.py').replace('/', '.')}.*" for name in modules]
    paths = os.pathsep.join([str(cache_folder() / "mutmut"), "."])
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(os.cpu_count() or 1), *names]
    done = subprocess.run(command, cwd=work, env={**os.environ, "PYTHONPATH": paths}, check=False)
    low = _report(work, folder, modules)
    return done.returncode or int(low)


def _copy(work: Path, folder: str) -> None:
    """Puts the checkout there as it is, with mutmut's configuration; what differs alone, so that results stay."""
    work.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        new = work / f"{name}.new"
        shutil.copytree(_ROOT / name, new, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        shutil.rmtree(work / name, ignore_errors=True)
        new.rename(work / name)
    left_out = [f"--ignore={each}" for each in _LEFT_OUT]
    config = {
        "source_paths": [f"{folder}/"],
        "do_not_mutate": _AT_IMPORT,
        "also_copy": [*(f"{name}/" for name in _COPIED), "pyproject.toml"],
        "pytest_add_cli_args": ["-n0", "-p", "no:cacheprovider", "-m", "unit and not slow", *left_out],
        "pytest_add_cli_args_test_selection": [f"{each}/" for each in _TESTS[folder]],
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]  # JSON of lists is TOML
    text = (_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (work / "pyproject.toml").write_text("\n".join([text, "[tool.mutmut]", *lines, ""]), encoding="utf-8")


def _report(work: Path, folder: str, modules: Sequence[str]) -> bool:
    """Prints the results; True if those of a module are too low."""
    low = False
    killed_of_all = Counter[str]()
    for meta in sorted((work / "mutants" / folder).rglob("*.py.meta")):
        module = str(meta.relative_to(work / "mutants")).removesuffix(".meta")
        found = json.loads(meta.read_text())["exit_code_by_key"]
        tried = {name: code for name, code in found.items() if code is not None}
        codes = {name: code for name, code in tried.items() if not name.startswith(_CALLED_AT_IMPORT)}
        if not codes or (modules and module not in modules):
            continue
        killed = sum(code in _KILLED for code in codes.values())
        killed_of_all.update(killed=killed, all=len(codes))
        few = 100 * killed < LEAST_PERCENT * len(codes) and len(codes) >= _LEAST_MUTANTS
        low = low or few
        print(f"{module}  {killed} of {len(codes)} killed, {killed / len(codes):.1%}{'  TOO FEW' if few else ''}")
        for name, code in codes.items():
            if code not in _KILLED:
                print(f"  {_SURVIVED.get(code, f'exit code {code}')}: {name}")
    print(f"all  {killed_of_all['killed']} of {killed_of_all['all']} killed")
    return low


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
