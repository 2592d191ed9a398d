"""Pipelines side by side: groups of their own, and no circle of topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.configurations import HEAD, STORE, refusal_of, settings_of

DEAD = 'errors.tolerance = "all"\nerrors.deadletterqueue.topic.name = "dead"'


def file(*tables: tuple[str, ...]) -> str:
    """Pipelines by name, source, sink, and more lines."""
    return HEAD + "".join(
        f"[pipeline.{name}]\ntopics = {source.split()}\noutput.topic = '{sink}'\ntransforms = ['offload']\n{STORE}"
        + "".join(f"{line}\n" for line in more)
        for name, source, sink, *more in tables
    )


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        (
            [("a", "x", "y"), ("b", "x", "z", "group.id = 'wideload-a'")],
            "b] group.id: found 'wideload-a', which pipeline a also uses; each pipeline needs a separate group",
        ),
        *(
            (tables, f"{found}, which creates a cycle of topics: {circle}; records would circulate forever")
            for tables, found, circle in (
                ([("a", "raw", "out"), ("b", "out", "raw")], "b] output.topic: found 'raw'", "out → raw → out"),
                (
                    [("a", "x", "y"), ("b", "z", "x"), ("c", "y", "z")],
                    "c] output.topic: found 'z'",
                    "y → z → x → y",
                ),
                ([("a", "x", "y", DEAD), ("b", "dead", "x")], "b] output.topic: found 'x'", "dead → x → dead"),
                (
                    [("b", "dead", "x"), ("a", "x", "y", DEAD)],
                    "a] errors.deadletterqueue.topic.name: found 'dead'",
                    "x → dead → x",
                ),
                ([("a", "x", "y"), ("b", "z y", "x")], "b] output.topic: found 'x'", "y → x → y"),
            )
        ),
    ],
)
def test_pipelines_that_cannot_stand_side_by_side(tables: list[tuple[str, ...]], told: str) -> None:
    """Groups that stand twice; records and dead letters that come back to where they were."""
    assert refusal_of(file(*tables)) == f"[pipeline.{told}"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda edge: edge[0] != edge[1]), max_size=7))
def test_circle_is_refused_exactly_where_one_is(edges: list[tuple[int, int]]) -> None:
    """A set of pipelines is taken if, and only if, its topics can be put in a line."""
    left = set(edges)
    while ends := {edge for edge in left if edge[1] not in {source for source, _ in left}}:
        left -= ends
    text = file(*((f"p{i}", f"t{a}", f"t{b}") for i, (a, b) in enumerate(edges)))
    if left:
        assert "creates a cycle of topics" in refusal_of(text)
    elif edges:
        assert len(settings_of(text).pipelines) == len(edges)


@pytest.mark.parametrize("topic", ["x", "y", "dead"])
def test_control_needs_a_topic_of_its_own(topic: str) -> None:
    """Requests must not go through a pipeline, nor records be taken for requests."""
    text = file(("a", "x", "y", DEAD))
    assert refusal_of(f"control.topic = '{topic}'\n{text}") == (
        f"control.topic: found '{topic}', which pipeline a also uses; it needs a separate topic"
    )
    assert settings_of(f"control.topic = 'control'\n{text}").control_topic == "control"
    told = refusal_of(f"control.topic = '{'c' * 250}'\n{text}")
    assert told.startswith("control.topic: the topic name has 250 ")
