"""The text of a properties file, such as a Kafka client's."""

from __future__ import annotations


def entries(text: str) -> list[str]:
    """The entries as they are written, `KEY=VALUE`; without empty lines and comments.

    A line that ends with a backslash is joined with the next one. Other escapes of Java's are not known.
    """
    found: list[str] = []
    goes_on = False
    for line in map(str.strip, text.splitlines()):
        if not goes_on and (not line or line[0] in "#!"):
            continue
        part = line.removesuffix("\\")
        if goes_on:
            found[-1] += part
        else:
            found.append(part)
        goes_on = part != line
    return found
