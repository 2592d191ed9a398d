"""What the command line of the jobs reads from files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from app.config.arguments import properties
from jobs import audit, backfill, ingest, sweep
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
    with pytest.raises(ConfigurationError, match="must be KEY=VALUE") as caught:
        properties("--kafka-config", str(file))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("main", [audit.main, backfill.main, ingest.main, sweep.main], ids=lambda main: main.__module__)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--bootstrap-server=hunter2"], "there is no option --bootstrap-server; did you mean --bootstrap-servers?"),
        (["--config", "x", "--password=hunter2"], "there is no option --password"),
        (["--conf", "a=--hunter2", "--verbose", "hunter3"], None),
    ],
)
def test_options_that_are_wrong(
    main: Callable[[Sequence[str]], int], options: list[str], told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that is not there is told first, in one line, without its value; so is anything else that is wrong."""
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith("; --help lists the options\n")
    assert "hunter2" not in said
    if told is not None:
        assert f": {told}; --help" in said
