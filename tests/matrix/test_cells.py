"""The cells of the matrix, by their names, and the parts that they name."""

from __future__ import annotations

import pytest

from app.local import jars
from tests.matrix import broker
from tests.matrix.cells import CELLS, USUAL, chosen
from tests.matrix.environment import ROOT


def test_cells_are_chosen_by_name() -> None:
    """Names stand between spaces or commas; none means the usual cells, "all" all; an unknown one is told."""
    assert [cell.name for cell in chosen("spark-3.5,kafka-2.8  kafka-2.8")] == ["spark-3.5", "kafka-2.8"]
    assert [cell.name for cell in chosen(" ")] == list(USUAL)
    assert [cell.name for cell in chosen("all")] == list(CELLS)
    with pytest.raises(ValueError, match=r"^no cell 'kafka-1\.0'; there are: all kafka-2\.8 "):
        chosen("kafka-2.8 kafka-1.0")


def test_each_release_has_its_jars() -> None:
    """The lock of the other brokers has Kafka itself in the version of each release, and there is no other set."""
    locked = jars.read_lock(lock=broker._LOCK)
    found = {jar.set: jar.coordinates.rpartition(":")[2] for jar in locked if ":kafka_2.13:" in jar.coordinates}
    assert found == {f"kafka-{release}": version for release, version in broker.RELEASES.items()}
    assert {jar.set for jar in locked} == set(found)


def test_what_a_broker_cannot_do_names_tests_that_there_are() -> None:
    """A test that was renamed would run again, and the table would give a reason of none."""
    for cell in CELLS.values():
        for test in cell.cannot:
            file, name = test.split("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
