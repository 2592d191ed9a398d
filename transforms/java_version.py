"""What a Java says of its version."""

from __future__ import annotations

import re

_VERSION = re.compile(r'(?:version "|JAVA_VERSION=")(?:1\.)?(\d+)')


def parse(text: str) -> int | None:
    """The major version in the output of `java -version`, or in a JDK's file `release`; None if there is none."""
    found = _VERSION.search(text)
    return int(found[1]) if found else None
