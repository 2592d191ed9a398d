"""The Java process of Spark: the Java that it will run on, what it writes, and why it did not start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from transforms.errors import ConfigurationError
from transforms.java_version import parse
from transforms.spark_release import SparkRelease

_ANSWER_SECONDS = 30
_KEPT_BYTES = 2**18
_PIECE_BYTES = 2**16
# Ivy: `[unresolved dependency: org#module;revision: not found]`, `[download failed: org#module;revision!module.jar]`.
_NOT_FETCHED = re.compile(r"(?:unresolved dependency|download failed): ([^#\s]+)#([^;\s]+);([^:!\s\]]+)")
_REASON = re.compile(
    r"^(?:Exception in thread \S+ |Caused by: )?((?:[a-z]\w*\.)+\w*(?:Error|Exception)\b.*"
    r"|Error: (?!Could not create|A fatal).*|Invalid .*|Unrecognized .*)$",
    re.MULTILINE,
)


def require_java(spark: SparkRelease) -> None:
    """Asks the Java of `JAVA_HOME`, else the first of `PATH`, for its version: a wrong one ends with a stack trace.

    Raises:
        ConfigurationError: there is none, or Spark does not run on it.
    """
    allowed, home = spark.java_range, os.environ.get("JAVA_HOME")
    name = "JAVA_HOME" if home else "java"
    command = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if command is None and home:
        raise ConfigurationError(name, f"{home} holds no bin/java; set it to a {allowed}, or unset it")
    if command is None:
        raise ConfigurationError(
            name, f"not found, but Spark requires it; install {allowed} (Debian: openjdk-17-jre-headless)"
        )
    try:
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
        raise ConfigurationError(name, f"{command} cannot be run: {exc}; install {allowed}") from exc
    said = answer.stderr + answer.stdout
    version = parse(said)
    if version is None:
        # macOS has a `java` that only says that there is none.
        first = said.strip().partition("\n")[0] or "nothing"
        raise ConfigurationError(name, f"{command} reported no version, but: {first}; install {allowed}")
    if not spark.java[0] <= version <= spark.java[1]:
        raise ConfigurationError(
            name,
            f"{command} is Java {version}, and Spark {spark.name} runs on {allowed}; set JAVA_HOME accordingly "
            f"(Debian: apt-get install openjdk-17-jre-headless)",
        )


@contextmanager
def captured() -> Iterator[bytearray]:
    """The last 256 KiB of what processes write to stderr that are started in the `with` block, as long as they live.

    Ivy's report of a failed download, stack traces and Spark's own ERROR blocks go there.
    """
    output = bytearray()
    reading, writing = os.pipe()
    Thread(target=_drain, args=(reading, output), name="wideload-java-output", daemon=True).start()
    sys.stderr.flush()
    former = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield output
    finally:
        sys.stderr.flush()
        os.dup2(former, 2)
        os.close(former)


def start_error(output: bytearray | None, error: Exception) -> ConfigurationError:
    """Why Spark did not start, in one sentence.

    Args:
        output: what its Java process has written; None if the user has seen it.
        error: what PySpark says.
    """
    text = (output or bytearray()).decode(errors="replace")
    missing = sorted({":".join(found) for found in _NOT_FETCHED.findall(text)})
    if missing:
        return ConfigurationError(
            "--jars",
            f"Spark could not fetch {', '.join(missing)}: no repository has it, or none can be reached; pass its "
            f"files with --jars (`wideload job jars` prints those of the connector), or configure a repository "
            f"with --conf spark.jars.ivySettings=FILE; --verbose shows what was tried",
        )
    found = _REASON.findall(text) or _REASON.findall(str(error))
    if found:
        return ConfigurationError("spark", f"did not start: {found[-1].strip()[:500]}; --verbose shows its output")
    hint = "its output is above" if output is None else "--verbose shows its output"
    return ConfigurationError("spark", f"did not start: its Java process ended; {hint}")


def _drain(number: int, output: bytearray) -> None:
    with open(number, "rb", buffering=0) as pipe:
        while piece := pipe.read(_PIECE_BYTES):
            output += piece
            del output[:-_KEPT_BYTES]
