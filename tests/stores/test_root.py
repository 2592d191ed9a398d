"""The paths of a store as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.root import Root, check_object_id
from transforms.errors import ReferenceRefusedError

ROOT = Root("s3://bucket/prefix/")

_names = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in {".", ".."})


def test_path_and_split_are_literal() -> None:
    """A path is the root, the topic and the id, with nothing encoded."""
    path = "s3://bucket/prefix/orders/an.Id_1-2"
    assert (ROOT.path("orders", "an.Id_1-2"), ROOT.split(path)) == (path, ("orders", "an.Id_1-2"))


@given(topic=_names, object_id=_names)
def test_split_undoes_path(topic: str, object_id: str) -> None:
    """Every path that is made can be taken apart again."""
    assert ROOT.split(ROOT.path(topic, object_id)) == (topic, object_id)


@given(st.text())
def test_split_takes_only_what_path_makes(tail: str) -> None:
    """Below the root there is no second way to write a path."""
    full_path = ROOT.uri + tail
    if ROOT.holds(full_path):
        assert ROOT.path(*ROOT.split(full_path)) == full_path
    else:
        with pytest.raises(ReferenceRefusedError):
            ROOT.split(full_path)


@pytest.mark.parametrize(("length", "legal"), [(0, False), (1, True), (249, True), (250, False)])
def test_object_id_length(length: int, legal: bool) -> None:  # noqa: FBT001
    """A name has 1 to 249 characters."""
    if legal:
        assert check_object_id("x" * length) == "x" * length
    else:
        with pytest.raises(ValueError, match="cannot be the name of an object"):
            check_object_id("x" * length)


@pytest.mark.parametrize("name", ["...", ".a", "-", "_", "a..b"])
def test_object_id_may_be_odd(name: str) -> None:
    """Only `.` and `..` lead elsewhere; other names of that alphabet are names."""
    assert check_object_id(name) == name


def test_refusal_says_path_and_root() -> None:
    """The message has what was asked for, shortened, and what is allowed."""
    with pytest.raises(ReferenceRefusedError, match=r"'s3://other/x' is refused: .* 's3://bucket/prefix/'"):
        ROOT.split("s3://other/x")
    with pytest.raises(ReferenceRefusedError, match="it is not a topic and an id below 's3://bucket/prefix/'"):
        ROOT.split("s3://bucket/prefix/../x")
