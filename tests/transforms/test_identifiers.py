"""The table of limits, and what is held to it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transforms.errors import ResourceIdentifierTooLargeError
from transforms.identifiers import (
    CLIENT_KEYS,
    IDENTIFIERS,
    STRING_BYTES,
    Kind,
    check,
    transactional_id,
)

NAMES = st.text("abc.-_😀", min_size=1, max_size=200)
TOPICS = st.text("abc.-_", min_size=1, max_size=249)

# Seed 003: limit, unit, error, and the error for a client that does not know that one.
TABLE = {
    "topic": (249, "characters", "INVALID_TOPIC_EXCEPTION (17)", 17),
    "group-id": (249, "characters", "RESOURCE_IDENTIFIER_TOO_LARGE", 42),
    "member-id": (36, "characters", "INVALID_REQUEST (42)", 42),
    "group-instance-id": (249, "characters", "RESOURCE_IDENTIFIER_TOO_LARGE", 42),
    "client-id": (249, "characters", "RESOURCE_IDENTIFIER_TOO_LARGE", 42),
    "transactional-id": (249, "characters", "RESOURCE_IDENTIFIER_TOO_LARGE", 42),
    "offset-metadata": (4096, "bytes", "OFFSET_METADATA_TOO_LARGE (12)", 12),
    "rack-id": (249, "characters", "RESOURCE_IDENTIFIER_TOO_LARGE", 42),
    "resource-name": (249, "characters", "RESOURCE_IDENTIFIER_TOO_LARGE", 42),
    "acl-principal": (249, "characters", "RESOURCE_IDENTIFIER_TOO_LARGE", 42),
    "acl-host": (249, "characters", "RESOURCE_IDENTIFIER_TOO_LARGE", 42),
}


def test_table_is_that_of_the_document() -> None:
    """Each row of the document is there, in its order, with limit, unit, error and the error for older clients."""
    found = {
        kind: (row.limit, row.unit, str(row.answer(new_client=True)), row.answer(new_client=False).number)
        for kind, row in IDENTIFIERS.items()
    }
    assert found == TABLE
    assert list(found) == list(get_args(Kind))


def test_table_is_that_of_the_docs() -> None:
    """docs/limits.md has each row as it is."""
    page = Path(__file__).parents[2].joinpath("docs", "limits.md").read_text(encoding="utf-8")
    for kind, row in IDENTIFIERS.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {row.name} | `{kind}` |")]
        assert f"| {row.limit:,} {row.unit} | `{row.answer(new_client=True)}` |" in line
        assert ("| the same |" in line) or f"| `{row.answer(new_client=False)}` |" in line


@pytest.mark.parametrize("kind", get_args(Kind))
def test_limit_is_the_last_that_passes(kind: Kind) -> None:
    """A name of the limit passes; one more is refused, with the kind, its length and the limit."""
    limit = IDENTIFIERS[kind].limit
    check(kind, "x" * limit)
    with pytest.raises(ResourceIdentifierTooLargeError) as caught:
        check(kind, "x" * (limit + 1))
    error = caught.value
    assert (error.kind, error.length, error.limit, error.unit) == (kind, limit + 1, limit, IDENTIFIERS[kind].unit)
    assert error.retriable is False


@pytest.mark.parametrize(
    ("kind", "text", "length"),
    [
        ("group-id", "ä" * 249, 249),  # 498 bytes
        ("group-id", "漢" * 249, 249),  # 747 bytes
        ("group-id", "😀" * 125, 250),  # of two characters each in Java
        ("group-id", "e\u0301" * 125, 250),  # a letter and its accent are two
        ("group-id", "\udc80" * 250, 250),  # as a command line gives bytes that are not UTF-8
        ("offset-metadata", "ä" * 2048, 4096),
        ("offset-metadata", "ä" * 2048 + "a", 4097),
        ("offset-metadata", "😀" * 1024, 4096),
    ],
)
def test_length_of_multi_byte_characters(kind: Kind, text: str, length: int) -> None:
    """Names are counted in characters as brokers have them, the metadata in bytes of UTF-8."""
    assert IDENTIFIERS[kind].length(text) == length
    if length > IDENTIFIERS[kind].limit:
        with pytest.raises(ResourceIdentifierTooLargeError):
            check(kind, text)
    else:
        check(kind, text)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_check_that_is_not_enabled(kind: Kind) -> None:
    """Without the limits, what brokers refuse today is refused still; the rest ends where a request does."""
    over = "x" * (IDENTIFIERS[kind].limit + 1)
    if kind in ("topic", "offset-metadata"):
        with pytest.raises(ResourceIdentifierTooLargeError):
            check(kind, over, enabled=False)
        return
    check(kind, over, enabled=False)
    check(kind, "x" * STRING_BYTES, enabled=False)
    for text in ("x" * (STRING_BYTES + 1), "ä" * 16_384):
        with pytest.raises(ResourceIdentifierTooLargeError, match="32,768 bytes, the limit is 32,767"):
            check(kind, text, enabled=False)


def test_client_keys_are_kinds() -> None:
    """Every key of a client that is a name has a row in the table."""
    assert set(CLIENT_KEYS.values()) <= IDENTIFIERS.keys()


def test_transactional_id_plain() -> None:
    """Where there is room, the id says what it is for."""
    assert transactional_id("orders-offload", "raw-large", 3) == "orders-offload:raw-large:3"
    assert transactional_id("p" * 100, "t" * 145, 12) == f"{'p' * 100}:{'t' * 145}:12"


def test_transactional_id_short() -> None:
    """Where there is none, it is the pipeline and a digest, the same on every machine and in every version."""
    found = transactional_id("orders", "t" * 249, 3)
    assert found == "orders:0b6d38a349f64fec26d4ff02edea000d9e8958be"


@pytest.mark.parametrize("owner", ["😀" * 110, "a" + "😀" * 110])
def test_transactional_id_of_characters_that_count_as_two(owner: str) -> None:
    """The beginning of the name is cut as brokers count, and never within a character."""
    found = transactional_id(owner, "t" * 249, 3)
    begin, _, digest = found.partition(":")
    assert (len(digest), owner.startswith(begin)) == (40, True)
    assert IDENTIFIERS["transactional-id"].length(found) in (248, 249)


@given(NAMES, TOPICS, st.integers(0, 2**31 - 1))
def test_transactional_id_is_within_the_limit(pipeline: str, topic: str, partition: int) -> None:
    """Whatever the names, the id is one that Kafka takes, and the same at every call."""
    found = transactional_id(pipeline, topic, partition)
    check("transactional-id", found)
    assert found == transactional_id(pipeline, topic, partition)


@given(st.lists(st.tuples(NAMES, TOPICS, st.integers(0, 20)), min_size=2, max_size=5, unique=True))
def test_transactional_id_is_nobody_elses(partitions: list[tuple[str, str, int]]) -> None:
    """Two partitions, or two pipelines, never have one id: they would fence each other."""
    found = [transactional_id(*partition) for partition in partitions]
    assert len(set(found)) == len(found)


def test_transactional_id_of_names_with_dashes() -> None:
    """Nor where their names, with dashes between them, read alike; nor where only the end of a long topic differs."""
    near = [
        ("a-b", "c", 0),
        ("a", "b-c", 0),
        ("a", "t" * 248 + "u", 1),
        ("a", "t" * 248 + "v", 1),
        ("a", "t" * 248 + "u", 11),
        ("p" * 200, "t" * 249, 0),
        ("p" * 200, "t" * 249, 1),
        ("p" * 199 + "q", "t" * 249, 0),
    ]
    found = {partition: transactional_id(*partition) for partition in near}
    for one, other in itertools.combinations(near, 2):
        assert found[one] != found[other]
