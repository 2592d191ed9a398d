"""Pipelines side by side: groups of their own, and no circle of topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.configurations import HEAD, STORE, refusal_of, settings_of

TOLERANT = 'errors.tolerance = "all"\nerrors.deadletterqueue.topic.name = '


def pipeline_table(name: str, source: str, sink: str, more: str = "") -> str:
    """A pipeline from one topic to another."""
    return (
        f"[pipeline.{name}]\ntopics = ['{source}']\noutput.topic = '{sink}'\ntransforms = ['offload']\n{STORE}{more}\n"
    )


def test_pipelines_of_one_group_are_refused() -> None:
    """A group that stands twice, given or by default, is an error of the second pipeline."""
    text = HEAD + pipeline_table("a", "x", "y") + pipeline_table("b", "x", "z", "group.id = 'wideload-a'")
    assert refusal_of(text) == (
        "[pipeline.b] group.id: found 'wideload-a', which pipeline a has too; each pipeline needs a group of its own"
    )


def test_pipelines_in_a_row_are_taken() -> None:
    """What one pipeline writes another may read; two may read, and two may write, one topic."""
    tables = [("a", "raw", "refs"), ("b", "refs", "whole"), ("c", "refs", "copy"), ("d", "other", "refs")]
    settings = settings_of(HEAD + "".join(pipeline_table(*table) for table in tables))
    assert [pipeline.name for pipeline in settings.pipelines] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (
            [("a", "raw", "orders"), ("b", "orders", "raw")],
            (
                "[pipeline.b] output.topic: found 'raw', which closes a circle of topics: orders → raw → "
                "orders; records "
                "would go round for ever"
            ),
        ),
        (
            [("a", "x", "y"), ("b", "z", "x"), ("c", "y", "z")],
            (
                "[pipeline.c] output.topic: found 'z', which closes a circle of topics: y → z → x → y; "
                "records would go "
                "round for ever"
            ),
        ),
        (
            [("a", "x", "y", TOLERANT + '"dead"'), ("again", "dead", "x")],
            (
                "[pipeline.again] output.topic: found 'x', which closes a circle of topics: dead → x → dead; "
                "records would "
                "go round for ever"
            ),
        ),
        (
            [("again", "dead", "x"), ("a", "x", "y", TOLERANT + '"dead"')],
            (
                "[pipeline.a] errors.deadletterqueue.topic.name: found 'dead', which closes a circle of "
                "topics: x → dead → "
                "x; records would go round for ever"
            ),
        ),
    ],
)
def test_circle_of_topics_is_refused(tables: list[tuple[str, ...]], expected: str) -> None:
    """Records and dead letters that come back to where they were would go round for ever."""
    assert refusal_of(HEAD + "".join(pipeline_table(*table) for table in tables)) == expected


def test_circle_may_close_at_any_source() -> None:
    """A pipeline that reads several topics is in a circle where one of them is fed by its sink."""
    closing = pipeline_table("b", "y", "x").replace("['y']", "['z', 'y']")
    expected = "[pipeline.b] output.topic: found 'x', which closes a circle of topics: y → x → y;"
    assert refusal_of(HEAD + pipeline_table("a", "x", "y") + closing).startswith(expected)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda edge: edge[0] != edge[1]), max_size=7))
def test_circle_is_refused_exactly_where_one_is(edges: list[tuple[int, int]]) -> None:
    """A set of pipelines is taken if, and only if, its topics can be put in a line."""
    left = set(edges)
    while ends := {edge for edge in left if edge[1] not in {source for source, _ in left}}:
        left -= ends
    text = HEAD + "".join(pipeline_table(f"p{i}", f"t{a}", f"t{b}") for i, (a, b) in enumerate(edges))
    if not edges:
        return
    if left:
        assert "closes a circle of topics" in refusal_of(text)
    else:
        assert len(settings_of(text).pipelines) == len(edges)


@pytest.mark.parametrize("topic", ["x", "y", "letters"])
def test_control_needs_a_topic_of_its_own(topic: str) -> None:
    """Requests must not go through a pipeline, nor records be taken for requests."""
    text = pipeline_table("a", "x", "y", TOLERANT + "'letters'")
    assert refusal_of(f"{HEAD}control.topic = '{topic}'\n{text}") == (
        f"control.topic: found '{topic}', which pipeline a uses too; it needs a topic of its own"
    )
    assert settings_of(f"{HEAD}control.topic = 'control'\n{text}").control_topic == "control"


def test_name_of_the_control_topic_is_within_limits() -> None:
    """As with all other topics."""
    told = refusal_of(f"{HEAD}control.topic = '{'c' * 250}'\n{pipeline_table('a', 'x', 'y')}")
    assert told.startswith("control.topic: the topic name has 250 ")
    told = refusal_of(f"{HEAD}control.topic = ''\n{pipeline_table('a', 'x', 'y')}")
    assert told == "control.topic: found '', allowed are 1 to 249 characters of [a-zA-Z0-9._-]"
    assert refusal_of(f"{HEAD}control.topic = 5\n{pipeline_table('a', 'x', 'y')}").startswith("control.topic: found 5")
