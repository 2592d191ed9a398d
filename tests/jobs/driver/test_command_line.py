"""What the command line of the jobs reads from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.driver.command_line import properties
from transforms.errors import ConfigurationError


def test_properties_of_a_kafka_client(tmp_path: Path) -> None:
    """A client's file is taken as Kafka's own tools take it: comments, spaces, and lines that go on in the next."""
    file = tmp_path / "client.properties"
    file.write_text(
        "# the cluster\n! it is\n\nsecurity.protocol = SASL_SSL\n"
        'sasl.jaas.config=org.example.Module required \\\n    username="ann" \\\n    password="=#";\n'
        "client.id=a\\\n\nclient.rack=\n"
    )
    assert properties("--kafka-config", str(file)) == {
        "security.protocol": "SASL_SSL",
        "sasl.jaas.config": 'org.example.Module required username="ann" password="=#";',
        "client.id": "a",
        "client.rack": "",
    }


def test_properties_that_are_none(tmp_path: Path) -> None:
    """A line without a key is told, and not repeated: it may be a secret."""
    file = tmp_path / "client.properties"
    file.write_text("hunter2\n")
    with pytest.raises(ConfigurationError, match="is KEY=VALUE") as caught:
        properties("--kafka-config", str(file))
    assert "hunter2" not in str(caught.value)
