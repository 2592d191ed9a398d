"""The versions of Java on which Spark and Kafka run, and what a Java says of its own."""

from __future__ import annotations

import re

__all__ = ["NEWEST", "OLDEST", "parse"]

# Kafka 4.1 and Spark 4.0 need 17. Spark 4.0 brings Hadoop 3.4, which calls `Subject.getSubject`; 23 took that away.
OLDEST, NEWEST = 17, 22

_VERSION = re.compile(r'(?:version "|JAVA_VERSION=")(?:1\.)?(\d+)')


def parse(text: str) -> int | None:
    """The major version in the output of `java -version`, or in a JDK's file `release`; None if there is none."""
    found = _VERSION.search(text)
    return int(found[1]) if found else None
