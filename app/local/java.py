"""The search for a Java that runs the embedded Kafka and Spark. Standard library only, as the set-up uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from transforms.errors import WideloadError
from transforms.java_version import parse
from transforms.spark_release import DEFAULT, SparkRelease

_ANSWER_SECONDS = 30
_OLDEST = 17  # for Kafka 4

# With the first compiler alone Java has room for 48 MB of code, a fifth of what it has else. The session of the tests
# fills that in minutes, and then keeps removing code and compiling it again.
SHORT_RUN = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=240m")
"""Options for a program that runs for seconds: most of its time would go into compiling it, and not into running it."""


class JavaMissingError(WideloadError):
    """No suitable Java; the message says what was found and what to install."""


def locate(environ: Mapping[str, str] = os.environ) -> Path:
    """The `java` command to use: that of `JAVA_HOME`, as in Spark, else the first on `PATH`.

    Raises:
        JavaMissingError: there is no command.
    """
    home = environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        if not os.access(path, os.X_OK):
            raise JavaMissingError(f"JAVA_HOME is {home}, but there is no bin/java in it. {_advice()}")
        return path
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    if found is None:
        raise JavaMissingError(f"Java was not found: JAVA_HOME is not set and no java is on PATH. {_advice()}")
    return Path(found)


def find(environ: Mapping[str, str] = os.environ, spark: SparkRelease = DEFAULT) -> Path:
    """Like `locate`, and runs the command to read its version, which takes about 0.1 s.

    Args:
        environ: the environment.
        spark: the release of Spark that is to run on it; during the set-up, none is installed yet.

    Raises:
        JavaMissingError: there is no command, it does not answer, or Kafka or Spark does not run on its version.
    """
    path = locate(environ)
    newest = spark.java[1]
    try:
        answer = subprocess.run(
            [path, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise JavaMissingError(f"{path} cannot be run: {exc}. {_advice()}") from exc
    version = parse(answer.stderr + answer.stdout)
    if version is None:
        # macOS has a `java` command that only prints that Java is not installed.
        said = (answer.stderr + answer.stdout).strip().partition("\n")[0]
        raise JavaMissingError(f"{path} -version did not print a version, but: {said or 'nothing'}. {_advice()}")
    if not _OLDEST <= version <= newest:
        why = "Kafka 4 needs 17" if version < _OLDEST else f"Spark {spark.name} does not run on {newest + 1} or newer"
        raise JavaMissingError(f"Java {version} was found ({path}), but {why}. {_advice(newest)}")
    return path


def _advice(newest: int = DEFAULT.java[1]) -> str:
    installers = {
        "apt-get": "sudo apt-get install openjdk-17-jre-headless",
        "dnf": "sudo dnf install java-17-openjdk-headless",
        "apk": "sudo apk add openjdk17-jre-headless",
        "pacman": "sudo pacman -S jre17-openjdk-headless",
    }
    found = (command for tool, command in installers.items() if shutil.which(tool))
    command = (
        "brew install openjdk@17" if sys.platform == "darwin" else next(found, "your system's package of OpenJDK 17")
    )
    wanted = f"Java {_OLDEST}" if newest == _OLDEST else f"Java {_OLDEST} to {newest}"
    return f"Install {wanted} ({command}), or set JAVA_HOME to one that is installed."


if __name__ == "__main__":
    try:
        find()
    except JavaMissingError as error:
        sys.exit(str(error))
