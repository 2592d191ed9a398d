"""The search for Java, and the errors for an unsuitable one."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.local.java import JavaMissingError, find, locate
from transforms.spark_release import release_of


def java_that_prints(folder: Path, text: str) -> dict[str, str]:
    command = folder / "bin" / "java"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    command.chmod(0o755)
    return {"JAVA_HOME": str(folder)}


@pytest.mark.parametrize(
    ("spark", "text", "told"),
    [
        ("4.0.0", 'openjdk version "17.0.1"', None),
        ("4.0.0", 'openjdk version "22.0.1"', None),
        ("4.3.0", 'openjdk version "25"', None),
        ("4.0.0", 'openjdk version "16.0.2"', r"Java 16 was found.* Install Java 17 to 22 \("),
        ("4.0.0", 'openjdk version "23"', r"does not run on 23 or newer\. Install Java 17 to 22 \("),
        ("3.5.9", 'openjdk version "25"', r"Spark 3\.5 does not run on 18 or newer\. Install Java 17 \("),
        (
            "4.0.0",
            "Unable to locate a Java Runtime.",
            r"but: Unable to locate a Java Runtime\..* Install Java 17 to 22 ",
        ),
    ],
)
def test_find_goes_by_kafka_and_spark(tmp_path: Path, spark: str, text: str, told: str | None) -> None:
    """The oldest Java is Kafka's, the newest that of the release of Spark; another one is refused, with what to do."""
    environ = java_that_prints(tmp_path, text)
    if told is None:
        assert find(environ, release_of(spark)) == tmp_path / "bin" / "java"
    else:
        with pytest.raises(JavaMissingError, match=told):
            find(environ, release_of(spark))


def test_locate_prefers_java_home(tmp_path: Path) -> None:
    """JAVA_HOME takes precedence over PATH, as in Spark."""
    environ = java_that_prints(tmp_path, "") | {"PATH": "/usr/bin"}
    assert locate(environ) == tmp_path / "bin" / "java"


@pytest.mark.parametrize("variable", ["JAVA_HOME", "PATH"])
def test_locate_finds_none(tmp_path: Path, variable: str) -> None:
    """Without Java the message names the variable that was read."""
    with pytest.raises(JavaMissingError, match=variable):
        locate({variable: str(tmp_path)})
