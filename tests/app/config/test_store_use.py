"""The stores of a configuration: above all, each topic that may carry a reference, and its keys."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pytest

from app.config.store_use import StoreUse, reachable_topics, store_uses, use_of
from tests.app.configurations import HEAD, settings_of
from transforms.errors import ConfigurationError
from transforms.keyring import EncryptionSettings

S3 = 'large.message.payload.store.class = "s3"\ns3.bucket = "payloads"'


def table(name: str, topic: str, sink: str, transform: str, *more: str) -> str:
    lines = [f'topics = ["{topic}"]', f'output.topic = "{sink}"', f'transforms = ["{transform}"]']
    return "\n".join([f"[pipeline.{name}]", *lines, *more, ""])


def store(root: str) -> str:
    return f'large.message.payload.store.class = "filesystem"\nfilesystem.root = "{root}"'


def dead(topic: str) -> str:
    return f'errors.tolerance = "all"\nerrors.deadletterqueue.topic.name = "{topic}"'


def only(text: str) -> StoreUse:
    (use,) = store_uses(settings_of(HEAD + text))
    return use


def test_every_carrier(tmp_path: Path) -> None:
    """Outputs, dead letters and copies of them are found, through pipelines without a store and with another one."""
    one, two = tmp_path / "one", tmp_path / "two"
    text = (
        table("in", "raw", "orders", "offload", store(f"{one}"), dead("raw-dlq"), "errors.retry.delay.max.ms = 7")
        + table("copy", "orders", "copies", "wrap", dead("copies-dlq"))
        + table("split", "copies", "pieces", "chunk")
        + table("again", "copies-dlq", "second", "unwrap", dead("second-dlq"))
        + table("out", "orders", "whole", "inflate", store(f"{one}/"), dead("orders-dlq"))
        + table("other", "whole", "other", "offload", store(f"{two}"))
        + table("apart", "apart-raw", "apart", "chunk")
    )
    first, second = store_uses(settings_of(HEAD + text))
    assert [each.name for each in first.pipelines] == ["in", "out"]
    assert first.store["filesystem.root"] == str(one)
    expected = ("copies", "copies-dlq", "whole", "orders-dlq", "pieces", "second", "second-dlq", "other")
    assert first.referencing == {"orders": expected, "raw-dlq": (), "orders-dlq": ()}
    assert first.topics == ["orders", "raw-dlq", "orders-dlq", *(name for name in expected if name != "orders-dlq")]
    assert second.referencing == {"other": ()}
    assert first.in_flight == timedelta(seconds=60 + 20 * 60 + 120)


def test_store_of_a_pipeline_or_of_topics() -> None:
    """The store is that of the pipeline, or of the topics; where neither says which, the message has the names."""
    one = table("one", "a", "orders", "offload", store("/one"))
    settings = settings_of(HEAD + one + table("two", "b", "returns", "offload", store("/two")))
    assert use_of(settings, None, ["orders"]).referencing.keys() == {"orders"}
    assert use_of(settings, "two", ["orders"]).referencing.keys() == {"returns"}
    assert use_of(settings_of(HEAD + one), None, []).referencing.keys() == {"orders"}
    with pytest.raises(ConfigurationError, match=r"--pipeline: is missing, .* name one of: one, two"):
        use_of(settings, None, [])
    with pytest.raises(ConfigurationError, match="--pipeline: found 'three', those with a store are: one, two"):
        use_of(settings, "three", [])
    with pytest.raises(ConfigurationError, match="-c: has no pipeline with a store"):
        use_of(settings_of(HEAD + table("one", "a", "b", "chunk")), None, [])


def test_reachable_topics_leave_out_no_way() -> None:
    """Whatever the pipelines are, no record of a topic comes by any way of theirs to a topic that is not named."""
    chance = random.Random(8)
    for _ in range(30):
        names = [f"t{n}" for n in range(12)]
        edges = sorted({tuple(sorted(chance.sample(range(12), 2))) for _ in range(14)})  # upwards: no circles
        text = "".join(
            table(f"p{n}", names[a], names[b], "wrap", *([dead(names[b] + "-dlq")] if n % 3 == 0 else []))
            for n, (a, b) in enumerate(edges)
        )
        pipelines = settings_of(HEAD + text).pipelines
        for topic in names:
            found = {topic, *reachable_topics(topic, pipelines)}
            for pipeline in pipelines:
                if found & set(pipeline.topics):
                    assert {pipeline.output_topic, pipeline.dead_letter_topic} - {None} <= found


def test_formats() -> None:
    """A topic has its pipeline's format, and so have those that its records are carried to."""
    flag = 'reference.format = "bakdata-flag"'
    found = only(
        table("in", "raw", "a", "offload", S3, flag)
        + table("out", "b", "c", "inflate", S3, dead("b-dlq"))
        + table("pass", "a", "d", "wrap")
    )
    assert found.formats == {
        **dict.fromkeys(("a", "d"), "bakdata-flag"),
        **dict.fromkeys(("b", "b-dlq", "c"), "wideload"),
    }


KEYS, PREVIOUS, REQUIRED = (f"large.message.signing.{name}" for name in ("key", "previous.keys", "required"))
OLD, NEW = "o" * 32, "n" * 32
ONE = "1f" * 32


def signed(key: str, *previous: str) -> list[str]:
    """The lines of a pipeline with these keys."""
    return [f'{KEYS} = "{key}"', *([f"{PREVIOUS} = {list(previous)}"] if previous else [])]


def test_signing_keys_of_each_topic() -> None:
    """Topics of one store have nothing to do with each other: the keys of one, or none, are not those of another."""
    found = only(
        table("a-in", "a-raw", "a", "offload", S3, *signed(OLD))
        + table("a-out", "a", "a-plain", "inflate", S3, *signed(OLD), dead("a-dlq"))
        + table("b-in", "b-raw", "b", "offload", S3, *signed(NEW))
        + table("c-in", "c-raw", "c", "offload", S3)
        + table("c-out", "c", "c-plain", "inflate", S3)
    )
    assert not {KEYS, PREVIOUS, REQUIRED} & found.store.keys()
    for topic in ("a", "a-dlq", "a-plain"):
        assert found.signing_of(topic) == {KEYS: OLD, REQUIRED: True}
    assert found.signing_of("b") == {KEYS: NEW, REQUIRED: True}
    assert found.signing_of("c") == found.signing_of("c-plain") == {}
    with pytest.raises(
        ConfigurationError, match="-c: has no pipeline for topic new, and the pipelines of the store have"
    ):
        found.signing_of("new")


def test_a_copy_has_the_keys_that_all_topics_have() -> None:
    """A topic that no pipeline has is verified too, where there is only one way to do so."""
    one = table("in", "raw", "a", "offload", S3, *signed(OLD))
    found = only(one + table("out", "a", "b", "inflate", S3, *signed(OLD)))
    assert found.signing_of("mirror") == {KEYS: OLD, REQUIRED: True}
    assert only(table("in", "raw", "a", "offload", S3)).signing_of("mirror") == {}


def test_keys_of_encryption_of_each_topic() -> None:
    """A job encrypts as the writer of a topic does, and decrypts what any of its pipelines can; no other topic's."""
    name = "large.message.encryption"

    def keys(key_id: str, secret: str, *more: str) -> list[str]:
        return [f'{name}.key.id = "{key_id}"', f'{name}.key.secret = "{secret * 32}"', *more]

    found = only(
        table("a-out", "a", "a-plain", "inflate", S3, *keys("two", "2e", f'{name}.previous.keys = ["one:{ONE}"]'))
        + table("a-in", "a-raw", "a", "offload", S3, *keys("one", "1f", f'{name}.type = "aes-256-gcm"'))
        + table("b-in", "b-raw", "b", "offload", S3)
    )
    assert not [key for key in found.store if key.startswith(name)]
    assert found.encryption_of("a") == found.encryption_of("a-plain")
    assert found.encryption_of("a") == {
        f"{name}.type": "aes-256-gcm",
        f"{name}.key.id": "one",
        f"{name}.key.secret": ONE,
        f"{name}.previous.keys": ["two:" + "2e" * 32],
    }
    assert found.encryption_of("b") == {}
    with pytest.raises(ConfigurationError, match="different encryption keys; pass the keys of the topic with"):
        found.encryption_of("new")
    again = EncryptionSettings.of(found.encryption_of("a"))
    assert again is not None
    assert (again.writes, again.current, [*again.keys]) == (True, "one", ["one", "two"])


def test_signing_in_the_middle_of_a_change_of_keys() -> None:
    """A job signs as the writer does, and refuses nothing that a reader takes; a signature is required if one does."""
    writer = table("in", "raw", "a", "offload", S3, *signed(OLD))
    lenient = table("out", "a", "b", "inflate", S3, *signed(OLD), f"{REQUIRED} = false")
    strict = table("more", "a", "c", "inflate", S3, *signed(OLD))
    for text, expected in (
        (table("out", "a", "b", "inflate", S3, *signed(NEW, OLD)) + writer, {PREVIOUS: [NEW], REQUIRED: True}),
        (table("out", "a", "b", "inflate", S3) + writer, {REQUIRED: False}),
        (lenient + writer, {REQUIRED: False}),
        (lenient + writer + strict, {REQUIRED: True}),
    ):
        assert only(text).signing_of("a") == {KEYS: OLD, **expected}


def test_pipelines_that_share_no_key() -> None:
    """No keys hold for their topic; those of a chain of changes hold together."""
    one = table("one", "a", "b", "inflate", S3, *signed(NEW))
    other = table("other", "a", "c", "inflate", S3, *signed(OLD))
    with pytest.raises(ConfigurationError, match="topic a: pipelines one, other do not share a key; leave"):
        only(one + other).signing_of("a")
    between = table("more", "a", "d", "inflate", S3, *signed("m" * 32, NEW, OLD))
    expected = {KEYS: NEW, PREVIOUS: [OLD, "m" * 32], REQUIRED: True}
    assert only(one + other + between).signing_of("a") == expected
    branching = (("1", ""), ("2", "1"), ("3", "2"), ("4", "1"))
    text = "".join(
        table(f"p{key}", "a", f"to-{key}", "inflate", S3, *signed(key * 32, *([old * 32] if old else [])))
        for key, old in branching
    )
    assert only(text).signing_of("a")[KEYS] == "1" * 32


def test_all_keys_of_dead_letters() -> None:
    """Dead-letter records of several pipelines may be signed with the key of each; a job accepts them all."""
    found = only(
        table("one", "a", "b", "inflate", S3, *signed(NEW), dead("dlq"))
        + table("other", "c", "d", "inflate", S3, *signed(OLD), dead("dlq"))
    )
    assert found.signing_of("dlq") == {KEYS: NEW, PREVIOUS: [OLD], REQUIRED: True}
    assert (found.signing_of("a")[KEYS], found.signing_of("c")[KEYS]) == (NEW, OLD)
