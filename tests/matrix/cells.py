"""The cells of the matrix: each a broker or an environment that is not that of `make test`, and the tests for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.matrix.broker import RELEASES
from tests.matrix.brokers import NEWEST
from tests.matrix.environment import Environment

_NO_SPARK = "matrix and not spark"
_SPARK = "matrix and spark"
_WITH_UNIT = f"(unit and not slow) or ({_NO_SPARK})"
_DOCS = "tests/docs"  # its tools are not among the packages of a cell, and the page of the results changes in the run
_NEED_JAVA = (
    _DOCS,
    "tests/app/local",
    "tests/jobs",
)  # a chroot has none, and PySpark says itself which Python it supports
_NOT_KFAKE = {
    "tests/integration/test_exactly_once.py::test_other_producer_fences": "kfake answers a fenced producer "
    "with INVALID_TXN_STATE, which does not say that it is fenced",
}
_NO_SOURCES = "Spark 3.5, the lowest, has no Python data sources"
_NOT_LOWEST = {
    "tests/test_public_face.py::test_face_has_what_its_home_has": _NO_SOURCES,
    "tests/test_public_face.py::test_module_of_the_face_says_what_it_is": _NO_SOURCES,
    "tests/test_public_face.py::test_pages_import_what_there_is": _NO_SOURCES,
    "tests/test_extras.py::test_modules_import_with_their_extra_alone": _NO_SOURCES,
    "tests/jobs/ingesting/test_command_line.py::test_main_bad_option": _NO_SOURCES,
    "tests/jobs/ingesting/test_command_line.py::test_value_schema_inline": "Spark 3.5, the lowest, has no variants",
}
_PANDAS = "pandas<3"  # PySpark warns of newer ones, up to 4.3


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the tests.

    Attributes:
        name: by which it is asked for.
        choice: pytest's expression of its tests.
        broker: its broker; see `running_broker`.
        environment: its Python and packages; by default those of `make test`.
        without: folders of tests that are left out.
        cannot: tests that the broker or a package cannot pass, with the reason, which stands in the table.
    """

    name: str
    choice: str = _NO_SPARK
    broker: str = NEWEST
    environment: Environment = field(default_factory=Environment)
    without: Sequence[str] = ()
    cannot: Mapping[str, str] = field(default_factory=dict)

    @property
    def with_unit_tests(self) -> bool:
        """Whether its tests are more than those of the marker `matrix`."""
        return self.choice == _WITH_UNIT


def _spark(name: str, version: str, *more: str) -> Cell:
    return Cell(f"spark-{name}", _SPARK, environment=Environment(replaced=(f"pyspark=={version}", _PANDAS, *more)))


_ALL = (
    *(Cell(f"kafka-{release}", broker=release) for release in RELEASES),
    Cell("kafka-newest"),
    Cell("kfake", broker="kfake", cannot=_NOT_KFAKE),
    _spark("3.5", "3.5.9", "numpy<2.4"),
    _spark("4.1", "4.1.4"),
    _spark("4.2", "4.2.1"),
    _spark("4.3", "4.3.0"),
    Cell(
        "lowest", _WITH_UNIT, environment=Environment(resolution="lowest-direct"), without=(_DOCS,), cannot=_NOT_LOWEST
    ),
    Cell("newest", _WITH_UNIT, environment=Environment(resolution="highest"), without=(_DOCS,)),
    *(
        Cell(f"python-{version}", _WITH_UNIT, environment=Environment(python=version), without=_NEED_JAVA)
        for version in ("3.12", "3.13", "3.14")
    ),
)

CELLS = {cell.name: cell for cell in _ALL}
"""By name."""

_ON_REQUEST = {"kafka-3.0", "kafka-3.7", "spark-4.1", "spark-4.2", "python-3.12", "python-3.13"}

USUAL: Sequence[str] = [name for name in CELLS if name not in _ON_REQUEST]
"""What runs where no cell is named: what fits into twenty minutes of two cores."""


def chosen(names: str) -> list[Cell]:
    """The cells of a text with names; "all" for all of them, and the usual ones if it is empty.

    Raises:
        ValueError: there is no such cell; the message is for the user.
    """
    wanted = names.replace(",", " ").split() or USUAL
    if wanted == ["all"]:
        wanted = list(CELLS)
    unknown = [name for name in wanted if name not in CELLS]
    if unknown:
        raise ValueError(f"no cell {unknown[0]!r}; there are: all {' '.join(CELLS)}")
    return [CELLS[name] for name in dict.fromkeys(wanted)]
