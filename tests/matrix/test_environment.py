"""Environments of the matrix: what stands in their requirements. No package is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix import environment

LOCK = """# a comment
boto3==1.44.5 \\
    --hash=sha256:aa
pyspark==4.0.0 ; python_version < '3.14' \\
    --hash=sha256:bb \\
    --hash=sha256:cc
Some_Tool[extra]==2
"""


def test_own_packages_replace_those_of_the_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The lock is installed without what is replaced, a line with its hashes each, and then what replaces it."""
    monkeypatch.setattr(environment, "_LOCK", tmp_path / "lock")
    (tmp_path / "lock").write_text(LOCK)
    wanted = environment.Environment(replaced=("pyspark==3.5.9", "Some.Tool<3"))
    assert environment._steps(wanted, environment.ROOT) == [
        ("boto3==1.44.5 \\\n    --hash=sha256:aa\n", ["--no-deps"]),
        ("pyspark==3.5.9\nSome.Tool<3", ()),
    ]
