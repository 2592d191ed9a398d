"""What goes with a release of Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from transforms.errors import ConfigurationError
from transforms.spark_release import DEFAULT, RELEASES, found_in, release_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("version", "scala", "connector"),
    [
        ("3.5.9", "2.12", "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7"),
        ("3.5.9", "2.13", "org.apache.spark:spark-sql-kafka-0-10_2.13:3.5.1"),
        ("3.5.0-amzn-1", None, "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.7"),
        ("4.0.0.dev1", None, "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"),
        ("4.3.0", "2.13", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"),
    ],
)
def test_packages_follow_the_version(version: str, scala: str | None, connector: str) -> None:
    """The first two numbers count, and the Scala of the jars: what vendors append does not."""
    assert release_of(version, scala).connector == connector


@pytest.mark.parametrize("version", ["3.4.4", "4.4.0", "5.0.0", "4.30.1", "14.0.0", "4", "unknown"])
def test_other_versions_are_refused(version: str) -> None:
    """One sentence has what was found, what is allowed and what to do."""
    with pytest.raises(ConfigurationError) as caught:
        release_of(version)
    assert str(caught.value) == (
        f"spark: version {version} was found; supported are 3.5 to 4.3: run pip install 'wideload[spark]', or set "
        f"SPARK_HOME to a supported version"
    )


def test_scala_without_packages_is_refused() -> None:
    """Packages for another Scala would fail with `NoSuchMethodError`, so none are chosen by guess."""
    for version, scala, found in (
        ("4.0.0", "3.3", "version 4.0.0 built with Scala 3.3 was found"),
        ("4.0.0", "2.12", "version 4.0.0 built with Scala 2.12 was found"),
        ("9.0", "2.13", "version 9.0 was found"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            release_of(version, scala)
        assert str(caught.value).startswith(f"spark: {found}; supported are 3.5 to 4.3")


def test_what_goes_with_a_release() -> None:
    """Names, as `--packages` takes them, and what people read."""
    assert (DEFAULT.avro, DEFAULT.jars, DEFAULT.java_range) == (
        "org.apache.spark:spark-avro_2.13:4.0.0", "spark-4.0_2.13", "Java 17 to 22",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["scala-library-2.12.18.jar", "spark-core_2.12-3.5.0-amzn-1.jar"], ("3.5.0-amzn-1", "2.12")),
        (["spark-core_2.13-4.1.0-SNAPSHOT.jar"], ("4.1.0-SNAPSHOT", "2.13")),
        (["----workspace_spark_3_5--core--core-hive-2.3__hadoop-3.2_2.12_deploy.jar"], None),  # Databricks
        ([], None),
    ],
)
def test_version_in_the_names_of_jars(names: list[str], found: tuple[str, str] | None) -> None:
    """Spark's own jar has its version and its Scala in its name, as vendors write it."""
    assert found_in(names) == found


def test_sets_of_jars_have_names_of_their_own() -> None:
    """Two releases with other packages never share a set."""
    assert len({each.jars for each in RELEASES}) == len(RELEASES)


def test_page_has_the_table() -> None:
    """The table of versions in the documentation is this one; its commands have the packages of the locked PySpark."""
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    rows = [
        f"| {each.name} | {each.scala} | {each.java[0]} to {each.java[1]} | {each.packages} | "
        + (f"`{each.delta}`" if each.delta else "none")
        for each in RELEASES
    ]
    assert [row for row in rows if row not in page] == []
    for path in sorted((ROOT / "docs").glob("*.md")):
        given = set(
            re.findall(r"(?:--packages |,)((?:org\.apache\.spark|io\.delta):[\w.:-]+)", path.read_text("utf-8"))
        )
        assert given <= {DEFAULT.connector, DEFAULT.avro, DEFAULT.delta}, path
