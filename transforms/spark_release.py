"""The releases of Spark that the jobs run on, and what each of them needs: the only table by Spark's version."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from transforms.errors import ConfigurationError

_VERSION = re.compile(r"(\d+)\.(\d+)(?!\d)")
_CORE = re.compile(r"spark-core_(\d+\.\d+)-(\d.*)\.jar")


@dataclass(frozen=True, slots=True)
class SparkRelease:
    """What goes with a release of Spark, whatever its last number.

    Attributes:
        name: the first two numbers of the version.
        scala: the Scala that Spark is built with; a build with another one cannot load the packages of this one.
        packages: the version of Spark's Kafka connector and Avro functions: the newest one whose dependencies are all
            in the registry, not necessarily that of Spark itself.
        delta: Delta Lake, as `--packages` takes it; None if no release of Delta Lake works with this Spark.
        java: the oldest and the newest version of Java.
    """

    name: str
    scala: str
    packages: str
    delta: str | None
    java: tuple[int, int]

    @property
    def connector(self) -> str:
        """The Kafka connector, as `--packages` takes it."""
        return f"org.apache.spark:spark-sql-kafka-0-10_{self.scala}:{self.packages}"

    @property
    def avro(self) -> str:
        """Spark's functions for Avro, as `--packages` takes it."""
        return f"org.apache.spark:spark-avro_{self.scala}:{self.packages}"

    @property
    def jars(self) -> str:
        """The name of the set of locked jars."""
        return f"spark-{self.name}_{self.scala}"

    @property
    def java_range(self) -> str:
        """The versions of Java, for people."""
        return f"Java {self.java[0]} to {self.java[1]}"


# Up to Hadoop 3.4 (Spark 4.1) Hadoop calls `Subject.getSubject`, which Java 23 took away.
RELEASES = (
    SparkRelease("3.5", "2.12", "3.5.7", "io.delta:delta-spark_2.12:3.3.2", (8, 17)),
    SparkRelease("3.5", "2.13", "3.5.1", "io.delta:delta-spark_2.13:3.3.2", (8, 17)),
    SparkRelease("4.0", "2.13", "4.0.0", "io.delta:delta-spark_2.13:4.0.0", (17, 22)),
    SparkRelease("4.1", "2.13", "4.1.1", "io.delta:delta-spark_4.1_2.13:4.1.0", (17, 22)),
    SparkRelease("4.2", "2.13", "4.2.0", "io.delta:delta-spark_2.13:4.3.0", (17, 25)),
    # The registry has no packages of 4.3 yet; those of 4.2 were run with it. Delta Lake 4.3.0 writes there and cannot
    # read: `NoSuchMethodError`.
    SparkRelease("4.3", "2.13", "4.2.0", None, (17, 25)),
)
"""All of them, in order; of those with the same version, PySpark on PyPI is the first."""

DEFAULT = next(each for each in RELEASES if each.name == "4.0")
"""The release that the lock of a checkout has."""


def release_of(version: str, scala: str | None = None) -> SparkRelease:
    """The release of a version, such as `4.0.1`, `3.5.0-amzn-1` or `4.1.0.dev1`.

    Args:
        version: as Spark or PySpark writes it.
        scala: the Scala of its jars; None if they were not found, and then it is that of PySpark on PyPI.

    Raises:
        ConfigurationError: it is none of `RELEASES`.
    """
    found = _VERSION.match(version)
    name = f"{found[1]}.{found[2]}" if found else version
    for each in RELEASES:
        if each.name == name and scala in (None, each.scala):
            return each
    build = f" built with Scala {scala}" if scala and name in {each.name for each in RELEASES} else ""
    raise ConfigurationError(
        "spark",
        f"version {version}{build} was found; supported are {RELEASES[0].name} to {RELEASES[-1].name}: run pip install "
        "'wideload[spark]', or set SPARK_HOME to a supported version",
    )


def found_in(names: Iterable[str]) -> tuple[str, str] | None:
    """The version and the Scala of the Spark whose jars have these names; None if Spark's own jar is not among them."""
    for name in names:
        core = _CORE.fullmatch(name)
        if core:
            return core[2], core[1]
    return None
