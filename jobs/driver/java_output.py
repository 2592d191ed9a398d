"""What Spark's Java process writes to its stderr, for as long as a job runs: its end is kept, and a failure told of it.

Ivy's report of a failed download, stack traces and Spark's own ERROR blocks go there. The job says in a sentence what
matters of them; `--verbose` lets all of it through.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from transforms.errors import ConfigurationError

__all__ = ["JavaOutput", "captured", "start_error"]

_KEPT_BYTES = 2**18
_PIECE_BYTES = 2**16
# Ivy: `[unresolved dependency: org#module;revision: not found]`, `[download failed: org#module;revision!module.jar]`.
_NOT_FETCHED = re.compile(r"(?:unresolved dependency|download failed): ([^#\s]+)#([^;\s]+);([^:!\s\]]+)")
_REASON = re.compile(
    r"^(?:Exception in thread \S+ |Caused by: )?((?:[a-z]\w*\.)+\w*(?:Error|Exception)\b.*"
    r"|Error: (?!Could not create|A fatal).*|Invalid .*|Unrecognized .*)$",
    re.MULTILINE,
)


class JavaOutput:
    """The end of what the process has written."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    @property
    def text(self) -> str:
        """The last 256 KiB, as text."""
        return bytes(self._bytes).decode(errors="replace")

    def drain(self, number: int) -> None:
        """Reads from a file descriptor until its end, and closes it."""
        with open(number, "rb", buffering=0) as pipe:
            while piece := pipe.read(_PIECE_BYTES):
                self._bytes += piece
                del self._bytes[:-_KEPT_BYTES]


@contextmanager
def captured() -> Iterator[JavaOutput]:
    """For the length of a `with` block a process that is started has a pipe in place of this process's stderr.

    It keeps the pipe after the block, and what it writes is read until it ends.
    """
    output = JavaOutput()
    reading, writing = os.pipe()
    Thread(target=output.drain, args=(reading,), name="wideload-java-output", daemon=True).start()
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


def start_error(output: JavaOutput | None, error: Exception) -> ConfigurationError:
    """Why Spark did not start, in one sentence.

    Args:
        output: what its Java process has written; None if the user has seen it.
        error: what PySpark says.
    """
    text = "" if output is None else output.text
    missing = sorted({":".join(found) for found in _NOT_FETCHED.findall(text)})
    if missing:
        return ConfigurationError(
            "--jars",
            f"Spark could not fetch {', '.join(missing)}: no registry has it, or none can be reached; give its files "
            "with --jars (`wideload job jars` prints those of the connector), or a registry with --conf "
            "spark.jars.ivySettings=FILE; --verbose shows what was tried",
        )
    found = _REASON.findall(text) or _REASON.findall(str(error))
    if found:
        return ConfigurationError("spark", f"did not start: {found[-1].strip()[:500]}; --verbose shows all it said")
    hint = "what it said is above" if output is None else "--verbose shows what it said"
    return ConfigurationError("spark", f"did not start: its Java process ended; {hint}")
