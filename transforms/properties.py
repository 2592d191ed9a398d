"""The text of a properties file, for example of a Kafka client."""

from __future__ import annotations


def entries(text: str) -> list[str]:
    """The entries as they are written, `KEY=VALUE`, without empty lines and comments.

    A line that ends with a backslash is joined with the next one. Java's other escapes are not supported.
    """
    found: list[str] = []
    continued = False
    for line in map(str.strip, text.splitlines()):
        if not continued and (not line or line[0] in "#!"):
            continue
        part = line.removesuffix("\\")
        if continued:
            found[-1] += part
        else:
            found.append(part)
        continued = part != line
    return found
