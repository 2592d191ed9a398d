"""The paths of a store as text."""

from __future__ import annotations

from string import ascii_letters, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.root import Root, check_object_id
from transforms.errors import ReferenceRefusedError

ROOT = Root("s3://bucket/prefix/")

_names = st.text(ascii_letters + digits + "._-", min_size=1, max_size=249).filter(lambda name: name not in {".", ".."})


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


@pytest.mark.parametrize("folder", ["values", "keys"])
def test_readable_is_what_others_stored(folder: str) -> None:
    """What bakdata's serializer stores below a topic can be read; it is no path of ours."""
    path = f"s3://bucket/prefix/orders/{folder}/an.Id_1-2"
    ROOT.check_readable(path)
    assert not ROOT.holds(path)


@given(topic=_names, object_id=_names)
def test_readable_is_what_path_makes(topic: str, object_id: str) -> None:
    """Every path that is made can be read, also of a topic that is called like one of their folders."""
    for path in (ROOT.path(topic, object_id), ROOT.path("values", object_id)):
        ROOT.check_readable(path)
        assert ROOT.holds(path)


@pytest.mark.parametrize(
    "tail",
    [
        "", "orders", "orders/", "orders/values/", "/values/id", "values/values/", "orders/values//id", "orders//id",
        "orders/other/id", "orders/Values/id", "orders/values/keys/id", "a/orders/values/id", "orders/../id",
        "orders/values/..", "../values/id", "orders/values/.", "orders/%2e%2e/id", "orders/values/%2e%2e",
        "orders/values%2Fid/x", "orders/values/id?x=1", "orders/values/id/", "orders/values/i d", "orders/values/id\0",
        "orders/values/" + "x" * 250,
    ],
)  # fmt: skip
def test_readable_is_nothing_else(tail: str) -> None:
    """Below the root nothing nested deeper, encoded, empty or of another folder can be read; the error has the path."""
    with pytest.raises(ReferenceRefusedError) as caught:
        ROOT.check_readable(f"s3://bucket/prefix/{tail}")
    assert caught.value.path == f"s3://bucket/prefix/{tail}"


@pytest.mark.parametrize(
    "path", ["s3://other/prefix/orders/values/id", "s3://bucket/orders/values/id", "values/id", ""]
)
def test_readable_is_below_the_root(path: str) -> None:
    """Their folders open no way out of the root."""
    with pytest.raises(ReferenceRefusedError, match="it is not below the store's root"):
        ROOT.check_readable(path)


@given(st.text(alphabet="avluesky/.%", max_size=20))
def test_readable_takes_no_other_text(tail: str) -> None:
    """Whatever can be read is a path of ours once their folder is taken out."""
    try:
        ROOT.check_readable(ROOT.uri + tail)
    except ReferenceRefusedError:
        return
    assert ROOT.holds(ROOT.uri + tail.replace("/values/", "/").replace("/keys/", "/"))


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
    with pytest.raises(ReferenceRefusedError, match="it is not TOPIC/ID below 's3://bucket/prefix/'"):
        ROOT.split("s3://bucket/prefix/../x")
