"""The topics that a file names: their partitions and limits, if they are missing."""

from __future__ import annotations

from app.cluster.wanted_topics import Wanted, wanted_topics
from app.kafka.topics import Topic
from tests.app.configurations import HEAD, settings_of

MOST = "104000000"
LETTERS = 'errors.tolerance = "all"\nerrors.deadletterqueue.topic.name = "dead"\n'


def table(name: str, transforms: str, source: str, sink: str, more: str = "") -> str:
    """A pipeline with a store in memory, if it needs one."""
    return f"[pipeline.{name}]\ntopics = ['{source}']\noutput.topic = '{sink}'\ntransforms = {transforms}\n{more}"


def topic(name: str, partitions: int, limit: int = 1_048_588, **more: object) -> Topic:
    """A topic as the cluster has it."""
    return Topic(name, partitions, limit, "delete", **more)  # type: ignore[arg-type]


def wanted(text: str, *found: Topic, partitions: int | None = None, largest: int | None = None) -> dict[str, Wanted]:
    """The topics of a file, by name."""
    settings = settings_of(f'{HEAD}large.message.payload.store.class = "memory"\n{text}')
    there = {each.name: each for each in found}
    listed = wanted_topics(settings.pipelines, there, partitions=partitions, largest_bytes=largest)
    return {each.name: each for each in listed}


ROW = table("a", "['offload']", "raw", "refs", LETTERS) + table("b", "['inflate']", "refs", "whole", LETTERS)


def test_topics_are_listed_in_the_order_of_the_file() -> None:
    """Each once, with all that pipelines do with it; and whether it is there."""
    found = wanted(ROW, topic("refs", 6))
    assert {name: each.uses for name, each in found.items()} == {
        "raw": ("source of a",),
        "refs": ("output of a", "source of b"),
        "dead": ("dead letters of a", "dead letters of b"),
        "whole": ("output of b",),
    }
    assert [each.key for each in found.values()] == [
        "topics", "output.topic", "errors.deadletterqueue.topic.name", "output.topic",
    ]  # fmt: skip
    assert list(found) == ["raw", "refs", "dead", "whole"]
    assert [name for name, each in found.items() if each.found is not None] == ["refs"]


def test_partitions_follow_the_sources() -> None:
    """Down the row, whichever topic is there; without any, all are the brokers' default."""

    def counts(*found: Topic, partitions: int | None = None) -> list[int]:
        return [each.partitions for each in wanted(ROW, *found, partitions=partitions).values()]

    assert counts() == [-1, -1, -1, -1]
    assert counts(partitions=3) == [3, 3, 3, 3]
    assert counts(topic("raw", 6)) == [6, 6, 6, 6]
    assert counts(topic("refs", 4)) == [4, 4, 4, 4]
    assert counts(topic("raw", 6), topic("refs", 4)) == [6, 4, 6, 4]
    assert counts(topic("raw", 6), topic("refs", 4), partitions=9) == [6, 4, 6, 4]


def test_order_of_the_file_does_not_matter() -> None:
    """A pipeline may stand before the one that writes its source."""
    text = table("b", "['inflate']", "refs", "whole") + table("a", "['offload']", "raw", "refs")
    assert {name: each.partitions for name, each in wanted(text, topic("raw", 5)).items()} == {
        "refs": 5, "whole": 5, "raw": 5,
    }  # fmt: skip


def test_limits_are_raised_for_whole_values_alone() -> None:
    """The topic with references keeps the brokers' limit; letters and chunks are never compacted away."""
    configs = {name: each.configs for name, each in wanted(ROW).items()}
    assert configs == {
        "raw": {"max.message.bytes": MOST},
        "refs": {},
        "dead": {"cleanup.policy": "delete"},
        "whole": {"max.message.bytes": MOST},
    }
    own = wanted(ROW, largest=33_554_432)
    assert own["raw"].configs == own["whole"].configs == {"max.message.bytes": str(33_554_432 + 65_536)}


def test_limits_are_what_the_configuration_says() -> None:
    """Of values, of the threshold, of chunks and of messages made of them."""
    more = "large.message.max.bytes = '5MB'\nlarge.message.threshold.bytes = '2MB'\n"
    assert {name: each.configs for name, each in wanted(table("a", "['offload']", "raw", "refs", more)).items()} == {
        "raw": {"max.message.bytes": "5065536"},
        "refs": {"max.message.bytes": "2000000"},
    }
    chunks = table("a", "['chunk']", "raw", "pieces", "chunk.max.message.bytes = '3MB'\nchunk.max.bytes = '2MB'\n")
    chunks += table("b", "['assemble']", "pieces", "whole", "chunk.max.message.bytes = '4MB'\n")
    assert {name: each.configs for name, each in wanted(chunks).items()} == {
        "raw": {"max.message.bytes": "3065536"},
        "pieces": {"max.message.bytes": "2000000", "cleanup.policy": "delete"},
        "whole": {"max.message.bytes": "4065536"},
    }
    wrap = table("a", "['wrap']", "raw", "wrapped")
    assert wanted(wrap)["wrapped"].configs == {}
    assert wanted(wrap, topic("raw", 1, 7_000_000))["wrapped"].configs == {"max.message.bytes": "7065536"}


def test_letters_stay_as_long_as_their_records() -> None:
    """They have the timestamps of these: in a topic that keeps less, they could be deleted at once."""
    assert wanted(ROW, topic("raw", 1, retention_ms=7))["dead"].configs["retention.ms"] == "7"
    both = (topic("raw", 1, retention_ms=7), topic("refs", 1, retention_ms=-1))
    assert wanted(ROW, *both)["dead"].configs["retention.ms"] == "-1"


def test_replicas_are_those_of_the_file() -> None:
    """The brokers' default, unless the file says otherwise."""
    found = wanted(ROW + "topic.creation.default.replication.factor = 3\n")
    assert {name: each.replicas for name, each in found.items()} == {"raw": -1, "refs": 3, "dead": 3, "whole": 3}


def test_the_topic_of_control() -> None:
    """It comes first, has one partition, and is compacted, whatever the others are."""
    settings = settings_of(f'{HEAD}control.topic = "control"\nlarge.message.payload.store.class = "memory"\n{ROW}')
    first, *others = wanted_topics(settings.pipelines, {}, partitions=6, control_topic=settings.control_topic)
    assert (first.name, first.key, first.partitions, first.configs) == (
        "control", "control.topic", 1, {"cleanup.policy": "compact"},
    )  # fmt: skip
    assert [each.name for each in others] == ["raw", "refs", "dead", "whole"]
