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
from transforms.keyring import EncryptionSettings

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
    assert first["in.flight.ms"] == 60_000 + 20 * 60_000 + 120_000
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


KEYS, PREVIOUS, REQUIRED = (f"large.message.signing.{name}" for name in ("key", "previous.keys", "required"))
OLD, NEW = "o" * 32, "n" * 32
ONE = "1f" * 32


def signed(key: str, *previous: str) -> list[str]:
    """The lines of a pipeline with these keys."""
    return [f'{KEYS} = "{key}"', *([f"{PREVIOUS} = {list(previous)}"] if previous else [])]


def test_document_has_the_signing_keys_of_each_topic() -> None:
    """Topics of one store have nothing to do with each other: the keys of one, or none, are not those of another."""
    found = said(
        table("a-in", ["a-raw"], "a", ["offload"], S3, *signed(OLD))
        + table("a-out", ["a"], "a-plain", ["inflate"], S3, *signed(OLD), dead("a-dlq"))
        + table("b-in", ["b-raw"], "b", ["offload"], S3, *signed(NEW))
        + table("c-in", ["c-raw"], "c", ["offload"], S3)
        + table("c-out", ["c"], "c-plain", ["inflate"], S3)
    )
    (only,) = found["stores"]
    assert not {KEYS, PREVIOUS, REQUIRED} & only["store"].keys()
    old, new = {KEYS: OLD, REQUIRED: True}, {KEYS: NEW, REQUIRED: True}
    assert only["signing"] == {
        "a": old, "a-dlq": old, "a-plain": old, "b": new, "c": {}, "c-plain": {},
    }  # fmt: skip


def test_document_has_the_keys_of_encryption_of_each_topic() -> None:
    """A job encrypts as the writer of a topic does, and decrypts what any of its pipelines can; no other topic's."""
    name = "large.message.encryption"

    def keys(key_id: str, secret: str, *more: str) -> list[str]:
        return [f'{name}.key.id = "{key_id}"', f'{name}.key.secret = "{secret * 32}"', *more]

    found = said(
        table("a-out", ["a"], "a-plain", ["inflate"], S3, *keys("two", "2e", f'{name}.previous.keys = ["one:{ONE}"]'))
        + table("a-in", ["a-raw"], "a", ["offload"], S3, *keys("one", "1f", f'{name}.type = "aes-256-gcm"'))
        + table("b-in", ["b-raw"], "b", ["offload"], S3)
    )
    (only,) = found["stores"]
    assert not [key for key in only["store"] if key.startswith(name)]
    assert only["encryption"] == {
        "a": {
            f"{name}.type": "aes-256-gcm",
            f"{name}.key.id": "one",
            f"{name}.key.secret": ONE,
            f"{name}.previous.keys": ["two:" + "2e" * 32],
        },
        "a-plain": only["encryption"]["a"],
        "b": {},
    }
    again = EncryptionSettings.of(only["encryption"]["a"])
    assert again is not None
    assert (again.writes, again.current, [*again.keys]) == (True, "one", ["one", "two"])


def test_document_in_the_middle_of_a_change_of_keys() -> None:
    """A job signs as the writer does, and refuses nothing that a reader takes; a signature is required if one does."""
    writer = table("in", ["raw"], "a", ["offload"], S3, *signed(OLD))
    found = said(table("out", ["a"], "b", ["inflate"], S3, *signed(NEW, OLD)) + writer)
    assert found["stores"][0]["signing"]["a"] == {KEYS: OLD, PREVIOUS: [NEW], REQUIRED: True}
    found = said(table("out", ["a"], "b", ["inflate"], S3) + writer)
    assert found["stores"][0]["signing"]["a"] == {KEYS: OLD, REQUIRED: False}
    lenient = table("out", ["a"], "b", ["inflate"], S3, *signed(OLD), f"{REQUIRED} = false")
    assert said(lenient + writer)["stores"][0]["signing"]["a"] == {KEYS: OLD, REQUIRED: False}
    strict = table("more", ["a"], "c", ["inflate"], S3, *signed(OLD))
    assert said(lenient + writer + strict)["stores"][0]["signing"]["a"] == {KEYS: OLD, REQUIRED: True}


def test_document_tells_what_cannot_be_told_apart() -> None:
    """Pipelines that share no key in one topic: no keys hold for it; those of a chain of changes hold together."""
    one = table("one", ["a"], "b", ["inflate"], S3, *signed(NEW))
    other = table("other", ["a"], "c", ["inflate"], S3, *signed(OLD))
    assert said(one + other)["stores"][0]["signing"]["a"] == {"apart": ["one", "other"], REQUIRED: True}
    between = table("more", ["a"], "d", ["inflate"], S3, *signed("m" * 32, NEW, OLD))
    assert said(one + other + between)["stores"][0]["signing"]["a"] == {
        KEYS: NEW,
        PREVIOUS: [OLD, "m" * 32],
        REQUIRED: True,
    }


def test_document_has_all_keys_of_dead_letters() -> None:
    """Letters of several pipelines may be signed with the key of each; a job accepts them all."""
    found = said(
        table("one", ["a"], "b", ["inflate"], S3, *signed(NEW), dead("dlq"))
        + table("other", ["c"], "d", ["inflate"], S3, *signed(OLD), dead("dlq"))
    )
    signing = found["stores"][0]["signing"]
    assert signing["dlq"] == {KEYS: NEW, PREVIOUS: [OLD], REQUIRED: True}
    assert (signing["a"][KEYS], signing["c"][KEYS]) == (NEW, OLD)


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
