"""The Java that Spark will run on, looked at before Spark starts: from the wrong one Spark ends with a stack trace."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from transforms.errors import ConfigurationError
from transforms.java_version import parse
from transforms.spark_release import SparkRelease

__all__ = ["require_java"]

_ANSWER_SECONDS = 30


def require_java(spark: SparkRelease) -> None:
    """Looks at the Java of `JAVA_HOME`, else at the first of `PATH`, as Spark does; at most 0.1 s.

    Args:
        spark: the release of Spark that is to run on it.

    Raises:
        ConfigurationError: there is none, or Spark does not run on it.
    """
    allowed = spark.java_range
    home = os.environ.get("JAVA_HOME")
    name = "JAVA_HOME" if home else "java"
    if home:
        command = Path(home) / "bin" / "java"
        if not command.is_file():
            raise ConfigurationError(name, f"{home} holds no bin/java; set it to a {allowed}, or unset it")
    else:
        found = shutil.which("java")
        if found is None:
            raise ConfigurationError(
                name, f"not found, and Spark runs on it; install {allowed} (Debian: openjdk-17-jre-headless)"
            )
        command = Path(found)
    said = _said(command, allowed)
    version = parse(said)
    if version is None:
        # macOS has a `java` that only says that there is none.
        first = said.strip().partition("\n")[0] or "nothing"
        raise ConfigurationError(name, f"{command} says no version, but: {first}; install {allowed}")
    if not spark.java[0] <= version <= spark.java[1]:
        raise ConfigurationError(
            name,
            f"{command} is Java {version}, and Spark {spark.name} runs on {allowed}; set JAVA_HOME to such a one "
            "(Debian: apt-get install openjdk-17-jre-headless)",
        )


def _said(command: Path, allowed: str) -> str:
    """What Java says of its version: in its file `release`, or when it is run."""
    try:
        release = command.resolve().parents[1] / "release"
        if release.is_file():
            text = release.read_text("utf-8", errors="replace")
            if parse(text) is not None:
                return text
        answer = subprocess.run(
            [command, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise ConfigurationError("java", f"{command} cannot be run: {exc}; install {allowed}") from exc
    return answer.stderr + answer.stdout
