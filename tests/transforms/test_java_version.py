import pytest

from transforms.java_version import parse


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "22" 2024-03-19', 22),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.1"', 17),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ('JAVA_VERSION="21.0.4"\nOS_NAME="Linux"', 21),  # the file `release`
        ("", None),
    ],
)
def test_parse_version(output: str, version: int | None) -> None:
    """The major version, in the old and the new notation."""
    assert parse(output) == version
