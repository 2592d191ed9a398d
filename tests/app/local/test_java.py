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


@pytest.mark.parametrize("version", [17, 22])
def test_find_takes_java(tmp_path: Path, version: int) -> None:
    """The oldest and the newest supported Java are accepted."""
    environ = java_that_prints(tmp_path, f'openjdk version "{version}.0.1"')
    assert find(environ) == tmp_path / "bin" / "java"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('openjdk version "16.0.2"', "Java 16 was found"),
        ('openjdk version "23"', "does not run on 23 or newer"),
        ("Unable to locate a Java Runtime.", "but: Unable to locate a Java Runtime."),
    ],
)
def test_find_refuses_java(tmp_path: Path, text: str, said: str) -> None:
    """A missing Java, or one that is too old or too new, is refused, with what to install."""
    with pytest.raises(JavaMissingError) as caught:
        find(java_that_prints(tmp_path, text))
    assert said in str(caught.value)
    assert "Install Java 17 to 22 (" in str(caught.value)


def test_find_goes_by_spark(tmp_path: Path) -> None:
    """The newest Java is that of the release of Spark; the oldest is Kafka's, also if Spark runs on an older one."""
    environ = java_that_prints(tmp_path, 'openjdk version "25"')
    assert find(environ, release_of("4.3.0")) == tmp_path / "bin" / "java"
    with pytest.raises(JavaMissingError, match=r"Spark 3\.5 does not run on 18 or newer\. Install Java 17 \("):
        find(environ, release_of("3.5.9"))


def test_locate_prefers_java_home(tmp_path: Path) -> None:
    """JAVA_HOME takes precedence over PATH, as in Spark."""
    environ = java_that_prints(tmp_path, "") | {"PATH": "/usr/bin"}
    assert locate(environ) == tmp_path / "bin" / "java"


@pytest.mark.parametrize("variable", ["JAVA_HOME", "PATH"])
def test_locate_finds_none(tmp_path: Path, variable: str) -> None:
    """Without Java the message names the variable that was read."""
    with pytest.raises(JavaMissingError, match=variable):
        locate({variable: str(tmp_path)})
