"""The worker in simulated worlds; see The simulation in CONTRIBUTING.md."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SEEDS = Path(__file__).with_name("seeds.txt")
_FRESH = 250  # of a thousand, one in two found something when this was written: the hour of each night looks for that
_CLIENTS = ["chunks", "replay", "kafka-python", "confluent"]


# A worker that commits what it has read, whether it is written or not.
_CARELESS = """
import sys
from tests.simulation.clock import take_the_place_of_time
take_the_place_of_time()
from app.pipeline.offset_tracker import OffsetTracker
OffsetTracker.safe = lambda self: self.released
from tests.simulation.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def _run(
    *arguments: object, hash_seed: str = "0", program: tuple[str, ...] = ("-m", "tests.simulation"), root: Path = _ROOT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, *map(str, arguments)],
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )


def _digests(folder: Path, seeds: list[str], *arguments: object, hash_seed: str, root: Path = _ROOT) -> dict[str, str]:
    given, found = folder / "seeds", folder / "digests"
    given.write_text("\n".join(seeds))
    found.unlink(missing_ok=True)
    run = _run("--seeds", given, "--digests", found, "--shrink", 0, *arguments, hash_seed=hash_seed, root=root)
    assert run.returncode in (0, 1), run.stderr
    return dict(line.split() for line in found.read_text().splitlines())


def test_seed_has_one_history(tmp_path: Path) -> None:
    """A seed has the same history in another process and folder, behind other seeds, and whatever the order of sets is.

    Of 82, a dead-letter record has a traceback whose length decides which batches go together.
    """
    elsewhere = tmp_path / "a folder with quite another name than that of the checkout"
    for name in ("app", "stores", "transforms", "tests"):
        shutil.copytree(_ROOT / name, elsewhere / name, ignore=shutil.ignore_patterns("__pycache__"))
    plays = ["worker"] * 30 + _CLIENTS * 3
    seeds = [f"{seed} {play}" for seed, play in enumerate(plays, 1)] + ["82 worker"]
    first = _digests(tmp_path, seeds, "--processes", 1, "--chunk", 30, hash_seed="0")
    again = _digests(tmp_path, seeds[::-1], "--processes", 2, "--chunk", 7, hash_seed="7", root=elsewhere)
    assert len(first) == len(seeds)
    assert again == first


def test_fault_is_found_and_told_in_a_short_history() -> None:
    """A worker that commits too early is found; the command that is printed runs the shortened history again."""
    careless = ("-c", _CARELESS)
    run = _run(1, 40, "--processes", 1, "--shrink", 2, program=careless)
    assert run.returncode == 1, run.stderr
    assert "are not written" in run.stdout
    line = next(line for line in run.stdout.splitlines() if line.startswith("to run it again: "))
    _, _, arguments = line.partition("tests.simulation ")
    again = _run(*arguments.split(), program=careless)
    assert again.returncode == 1, again.stdout
    assert again.stdout.splitlines()[-1].startswith("  BROKEN: ")


def test_seeds_that_found_something_break_no_promise() -> None:
    """Each seed of `seeds.txt` broke a guarantee once, and breaks none now."""
    run = _run("--seeds", _SEEDS, "--processes", 1)
    assert run.returncode == 0, run.stdout


@pytest.mark.slow
def test_fresh_seeds_break_no_promise() -> None:
    """New histories break no guarantee: each commit has other seeds."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False).stdout
    first = int(head[:7] or "1", 16)
    run = _run(first, _FRESH, "--play", "all", "--processes", 1)
    assert run.returncode == 0, (
        f"Seeds from {first} on broke a guarantee. Your change may not be the cause, as these seeds are new: see"
        f" 'The simulation' in CONTRIBUTING.md.\n{run.stdout}{run.stderr}"
    )


@pytest.mark.slow
def test_clients_break_no_promise(tmp_path: Path) -> None:
    """Histories of the clients with chunks, and of `dlq replay`, break no guarantee."""
    seeds = tmp_path / "seeds"
    seeds.write_text("\n".join(f"{seed} {play}" for play in _CLIENTS for seed in range(1, 61)))
    run = _run("--seeds", seeds, "--processes", 1)
    assert run.returncode == 0, run.stdout
