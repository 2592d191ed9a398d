"""Environments of the matrix: what stands in their requirements. No package is installed."""

from __future__ import annotations

from tests.matrix import environment

LOCK = """# a comment
boto3==1.44.5 \\
    --hash=sha256:aa
pyspark==4.0.0 ; python_version < '3.14' \\
    --hash=sha256:bb \\
    --hash=sha256:cc
Some_Tool[extra]==2
"""


def test_lock_is_read_in_blocks() -> None:
    """A requirement of the lock is its line with the hashes behind it, by its normal name."""
    found = dict(environment._blocks(LOCK))
    assert list(found) == ["boto3", "pyspark", "some-tool"]
    assert found["pyspark"] == LOCK[LOCK.index("pyspark") : LOCK.index("Some_Tool")]


def test_own_packages_replace_those_of_the_lock() -> None:
    """The lock is installed without what is replaced, and then what replaces it."""
    wanted = environment.Environment(replaced=("pyspark==3.5.9", "pandas<3"))
    (locked, options), (own, _) = environment._steps(wanted, environment.ROOT)
    names = dict(environment._blocks(locked))
    assert options == ["--no-deps"]
    assert "boto3" in names
    assert {"pyspark", "pandas"}.isdisjoint(names)
    assert own == "pyspark==3.5.9\npandas<3"
