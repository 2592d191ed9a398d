"""What a configuration says to the jobs: above all, each topic that may carry a reference."""

from __future__ import annotations

import json
import random
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli import cli
from app.config.job_document import document, reachable_topics, write
from tests.app.configurations import settings_of
from transforms.errors import ConfigurationError

S3 = 'large.message.payload.store.class = "s3"\ns3.bucket = "payloads"'
HEAD = 'bootstrap.servers = "b:9092"\n'


def table(name: str, topics: list[str], sink: str, transforms: list[str], *more: str) -> str:
    lines = [f"topics = {json.dumps(topics)}", f'output.topic = "{sink}"', f"transforms = {json.dumps(transforms)}"]
    return "\n".join([f"[pipeline.{name}]", *lines, *more, ""])


def store(root: str) -> str:
    return f'large.message.payload.store.class = "filesystem"\nfilesystem.root = "{root}"'


def dead(topic: str) -> str:
    return f'errors.tolerance = "all"\nerrors.deadletterqueue.topic.name = "{topic}"'


def said(text: str) -> dict[str, Any]:
    return document(settings_of(HEAD + text, {}))


def test_document_has_every_carrier(tmp_path: Path) -> None:
    """Outputs, dead letters and copies of them are found, through pipelines without a store and with another one."""
    one, two = tmp_path / "one", tmp_path / "two"
    found = said(
        table("in", ["raw"], "orders", ["offload"], store(f"{one}"), dead("raw-dlq"), "errors.retry.delay.max.ms = 7")
        + table("copy", ["orders"], "copies", ["wrap"], dead("copies-dlq"))
        + table("split", ["copies"], "pieces", ["chunk"])
        + table("again", ["copies-dlq"], "second", ["unwrap"], dead("second-dlq"))
        + table("out", ["orders"], "whole", ["inflate"], store(f"{one}/"), dead("orders-dlq"))
        + table("other", ["whole"], "other", ["offload"], store(f"{two}"))
        + table("apart", ["apart-raw"], "apart", ["chunk"])
    )
    first, second = found["stores"]
    assert first["pipelines"] == ["in", "out"]
    assert first["store"]["filesystem.root"] == str(one)
    expected = ["copies", "copies-dlq", "whole", "orders-dlq", "pieces", "second", "second-dlq", "other"]
    assert first["carriers"] == {"orders": expected, "raw-dlq": [], "orders-dlq": []}
    assert second["carriers"] == {"other": []}
    assert first["in.flight.ms"] == 2 * 60_000 + 60_000 + 120_000
    assert set(found["topics"]) == {"raw", "raw-dlq", "orders", *expected, "apart-raw", "apart"}


def test_reachable_topics_leave_out_no_way() -> None:
    """Whatever the pipelines are, no record of a topic comes by any way of theirs to a topic that is not named."""
    chance = random.Random(8)
    for _ in range(30):
        names = [f"t{n}" for n in range(12)]
        edges = sorted({tuple(sorted(chance.sample(range(12), 2))) for _ in range(14)})  # upwards: no circles
        text = "".join(
            table(f"p{n}", [names[a]], names[b], ["wrap"], *([dead(names[b] + "-dlq")] if n % 3 == 0 else []))
            for n, (a, b) in enumerate(edges)
        )
        pipelines = settings_of(HEAD + text, {}).pipelines
        for topic in names:
            found = {topic, *reachable_topics(topic, pipelines)}
            for pipeline in pipelines:
                if found & set(pipeline.topics):
                    assert {pipeline.output_topic, pipeline.dead_letter_topic} - {None} <= found


def test_document_formats() -> None:
    """A topic has its pipeline's format, and so have those that its records are carried to."""
    flag = 'reference.format = "bakdata-flag"'
    found = said(
        table("in", ["raw"], "a", ["offload"], S3, flag)
        + table("out", ["b"], "c", ["inflate"], S3, dead("b-dlq"))
        + table("pass", ["a"], "d", ["wrap"])
    )
    (only,) = found["stores"]
    assert only["formats"] == {
        "a": "bakdata-flag",
        "d": "bakdata-flag",
        "b": "wideload",
        "b-dlq": "wideload",
        "c": "wideload",
    }


def test_document_knows_the_signing_keys_of_all_pipelines() -> None:
    """In the middle of a change of keys a job signs as the writer does, and refuses nothing that a reader takes."""
    old, new = "o" * 32, "n" * 32
    key, previous = "large.message.signing.key", "large.message.signing.previous.keys"
    found = said(
        table("out", ["a"], "b", ["inflate"], S3, f'{key} = "{new}"', f'{previous} = ["{old}"]')
        + table("in", ["raw"], "a", ["offload"], S3, f'{key} = "{old}"')
    )
    (only,) = found["stores"]
    assert (only["store"][key], only["store"][previous]) == (old, [new])
    assert only["store"]["large.message.signing.required"] is True
    found = said(
        table("out", ["a"], "b", ["inflate"], S3) + table("in", ["raw"], "a", ["offload"], S3, f'{key} = "{old}"')
    )
    (only,) = found["stores"]
    assert only["store"][key] == old
    assert only["store"]["large.message.signing.required"] is False
    assert previous not in only["store"]


def test_write_is_for_the_owner_alone(tmp_path: Path) -> None:
    """The file has the secrets, so nobody else may read it, and it is no file that is there already."""
    config = tmp_path / "wideload.toml"
    lines = 'security.protocol = "SASL_SSL"\nsasl.username = "ann"\nsasl.password = "${env:PASSWORD}"\n'
    config.write_text(HEAD + lines + table("in", ["raw"], "orders", ["offload"], store(f"{tmp_path}")))
    file = tmp_path / "options.json"
    command = ["job", "sweep", "-c", str(config), "--write-options", str(file)]
    result = CliRunner(env={"PASSWORD": "hunter-2-hunter"}).invoke(cli, command)
    assert (result.exit_code, result.output, result.exception) == (0, "", None)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text())["connection"]["sasl.password"] == "hunter-2-hunter"
    with pytest.raises(ConfigurationError, match=r"--write-options: .*options\.json is there already"):
        write({}, str(file))
    with pytest.raises(ConfigurationError, match=r"--write-options: .* cannot be written"):
        write({}, str(tmp_path / "no" / "folder"))
    result = CliRunner().invoke(cli, ["job", "sweep", "--write-options", str(file)])
    assert str(result.exception) == "--write-options: needs a configuration; give it with -c"
