"""The Java that Spark runs on, and what is made of its output when Spark does not start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.driver.java import captured, require_java, start_error
from transforms.errors import ConfigurationError
from transforms.spark_release import DEFAULT, release_of


def install(folder: Path, said: str) -> Path:
    """A home of Java whose command says this."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\n")
    command.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("runs", "said", "words"),
    [
        ("4.0", 'openjdk version "17.0.15" 2025-04-15', None),
        ("4.1", 'openjdk version "25"', "is Java 25, and Spark 4.1 runs on Java 17 to 22; set JAVA_HOME acc"),
        ("4.3", 'openjdk version "25" 2025-09-16', None),
        ("4.0", 'openjdk version "23"', "is Java 23, and Spark"),
        ("4.0", 'java version "1.8.0_452"', "is Java 8, and Spark"),
        ("3.5", 'java version "1.8.0_452"', None),
        ("3.5", 'openjdk version "21"', "is Java 21, and Spark 3.5 runs on Java 8 to 17; set JAVA_HOME acc"),
        ("4.0", "No Java runtime present.", "reported no version, but: No Java runtime present.; install Java 17 to"),
    ],
)
def test_java_is_looked_at_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: str, said: str, words: str | None
) -> None:
    """A Java that Spark does not run on is told with its version and its place."""
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "java", said)))
    if words is None:
        require_java(release_of(runs))
        return
    with pytest.raises(ConfigurationError, match=r"^JAVA_HOME: ") as caught:
        require_java(release_of(runs))
    assert words in str(caught.value)


def test_java_home_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java it is told what to install; a JAVA_HOME of something else is told, and a broken command."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(ConfigurationError, match="install Java 17 to 22"):
        require_java(DEFAULT)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="holds no bin/java; set it to a Java 17 to 22, or unset it"):
        require_java(DEFAULT)
    install(tmp_path, "17").joinpath("bin", "java").write_bytes(b"\x7fELF")
    with pytest.raises(ConfigurationError, match=r"^JAVA_HOME: .*cannot be run"):
        require_java(DEFAULT)


def test_output_of_the_java_process_is_kept_from_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """What a process writes that was started inside goes into memory, and no more than the end of it."""
    with captured() as output:
        child = "import sys; sys.stderr.write('x' * 300_000 + 'the end')"
        subprocess.run([sys.executable, "-c", child], check=True)
    os.write(2, b"seen")
    # The pipe has ended with the process, or the text is there before that.
    while not output.endswith(b"the end"):
        os.sched_yield()
    assert len(output) == 2**18
    assert capfd.readouterr().err == "seen"


@pytest.mark.parametrize(
    ("said", "option", "words"),
    [
        (
            ":: PROBLEMS ::\na.Error: [unresolved dependency: org.apache.spark#kafka_2.13;4.0.0: not found]\n\tat a.X",
            "--jars",
            "Spark could not fetch org.apache.spark:kafka_2.13:4.0.0: no repository has it, or none",
        ),
        (
            "java.lang.RuntimeException: [download failed: org.lz4#lz4-java;1.8.0!lz4-java.jar]",
            "--jars",
            "could not fetch org.lz4:lz4-java:1.8.0: ",
        ),
        (
            "Invalid maximum heap size: -Xmx1x\nError: Could not create",
            "spark",
            "did not start: Invalid maximum heap size",
        ),
        ("", "spark", "did not start: its Java process ended; --verbose shows its output"),
    ],
)
def test_why_spark_did_not_start_is_one_sentence(said: str, option: str, words: str) -> None:
    """Ivy's report of 70 lines, a stack trace, or nothing at all: one line for the user."""
    error = start_error(bytearray(said.encode()), RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited"))
    assert str(error).startswith(f"{option}: ")
    assert words in str(error)
    assert "\n" not in str(error)
