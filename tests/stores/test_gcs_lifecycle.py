"""The rules of a Google bucket: which of them affect payloads, and how the project's own is set."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from stores.gcs_lifecycle import own_rule, reaching
from tests.stores.scripted_server import Request, Wire, scripted_server
from tests.stores.test_gcs import config, opened
from transforms.errors import PayloadStoreAccessError, PayloadStoreError

PREFIX = "base/orders/"


def rule(action: str = "Delete", **condition: object) -> Mapping[str, Any]:
    return {"action": {"type": action}, "condition": condition}


@pytest.mark.parametrize(
    ("found", "days", "date", "whole"),
    [
        (rule(age=9), 9, None, True),
        (rule(age=9, isLive=True), 9, None, True),
        (rule(age=9, matchesPrefix=["base/"]), 9, None, True),
        (rule(age=9, matchesPrefix=["other/", "base/orders/"]), 9, None, True),
        (rule(age=9, matchesPrefix=["base/orders/a"]), 9, None, False),
        (rule(age=9, matchesSuffix=[".tmp"]), 9, None, False),
        (rule(age=9, matchesStorageClass=["NEARLINE"]), 9, None, False),
        (rule(age=9, somethingNew=True), 9, None, False),
        (rule(createdBefore="2030-01-31"), None, "2030-01-31", False),
        (rule(age=9, createdBefore="2030-01-31"), 9, None, False),
        (rule(isLive=True), 0, None, True),
    ],
)
def test_rules_that_may_delete_payloads(
    found: Mapping[str, Any],
    days: int | None,
    date: str | None,
    whole: bool,  # noqa: FBT001
) -> None:
    """Each rule for live objects counts, with its age, and with whether it is for every payload of the topic."""
    (read,) = reaching(PREFIX, [found])
    assert (read.days, read.date, read.whole, read.own, read.tagged) == (days, date, whole, False, False)


@pytest.mark.parametrize(
    "found",
    [
        rule("SetStorageClass", age=9),
        rule("AbortIncompleteMultipartUpload", age=9),
        rule(age=9, isLive=False),
        rule(numNewerVersions=3),
        rule(daysSinceNoncurrentTime=3),
        rule(daysSinceCustomTime=3),
        rule(age=9, matchesPrefix=["other/"]),
        rule(age=9, matchesPrefix=["base/orders2/"]),
    ],
)
def test_rules_that_delete_no_payload(found: Mapping[str, Any]) -> None:
    """Rules for other names, for old versions or with other actions do not count."""
    assert reaching(PREFIX, [found]) == []


class Bucket:
    """A bucket's description, and Google's answer to a change of it."""

    def __init__(self, rules: Sequence[Mapping[str, Any]]) -> None:
        self.described: dict[str, Any] = {"metageneration": "1", "lifecycle": {"rule": list(rules)}}
        self.changed_meanwhile = False

    def __call__(self, request: Request, wire: Wire) -> bool:
        assert request.path.startswith("/storage/v1/b/payloads?")
        status, answer = 200, self.described
        if (
            request.method == "PATCH"
            and f"ifMetagenerationMatch={self.described['metageneration']}" not in request.path
        ):
            status = 412
            answer = {"error": {"code": 412, "message": "Said so.", "errors": [{"reason": "conditionNotMet"}]}}
        elif request.method == "PATCH":
            self.described |= json.loads(request.body)
            self.described["metageneration"] = str(int(self.described["metageneration"]) + 1)
        body = json.dumps(answer).encode()
        wire.write(b"HTTP/1.1 %d Status\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        if request.method == "GET" and self.changed_meanwhile:
            self.described["metageneration"] = "77"
        return True


def test_the_own_rule_is_set_changed_and_removed() -> None:
    """One rule for the topic comes and goes; all others stay, in their order."""
    others = [rule(age=400), rule("SetStorageClass", age=30, matchesPrefix=["x"]), own_rule("base/orders2/", 3)]
    bucket = Bucket(others)
    with scripted_server(bucket) as server, opened(config(server.endpoint, gcs_prefix="base")) as store:
        assert store.set_expiry("orders", 9) is True
        assert bucket.described["lifecycle"]["rule"] == [*others, own_rule(PREFIX, 9)]
        assert store.set_expiry("orders", 9) is False
        assert [found.days for found in store.expiry_rules("orders") if found.own] == [9]
        assert store.set_expiry("orders", 10) is True
        assert bucket.described["lifecycle"]["rule"] == [*others, own_rule(PREFIX, 10)]
        assert store.set_expiry("orders", None) is True
        assert bucket.described["lifecycle"]["rule"] == others
        assert store.set_expiry("orders", None) is False


def test_the_last_rule_leaves_none() -> None:
    """Without a rule the bucket has no lifecycle at all."""
    bucket = Bucket([own_rule(PREFIX, 9)])
    with scripted_server(bucket) as server, opened(config(server.endpoint, gcs_prefix="base")) as store:
        assert store.set_expiry("orders", None) is True
        assert bucket.described["lifecycle"] is None
        assert store.expiry_rules("orders") == []


def test_a_change_by_somebody_else_is_not_undone() -> None:
    """What was written between the read and the change stays, and the change says that it was not made."""
    bucket = Bucket([])
    bucket.changed_meanwhile = True
    with scripted_server(bucket) as server, opened(config(server.endpoint)) as store:
        with pytest.raises(PayloadStoreError, match="somebody else changed the bucket") as caught:
            store.set_expiry("orders", 9)
        assert caught.value.retriable
        assert bucket.described["lifecycle"] == {"rule": []}


def test_a_missing_permission_is_named() -> None:
    """Who may not read rules is told which permission is missing."""

    def forbidden(_: Request, wire: Wire) -> bool:
        body = b'{"error": {"code": 403, "message": "No.", "errors": [{"reason": "forbidden"}]}}'
        wire.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        return True

    with (
        scripted_server(forbidden) as server,
        opened(config(server.endpoint)) as store,
        pytest.raises(PayloadStoreAccessError, match=r"storage\.buckets\.get"),
    ):
        store.expiry_rules("orders")


@pytest.mark.parametrize(
    "lifecycle",
    [[1], 1, {"rule": 1}, {"rule": [1]}, {"rule": [{"condition": {"age": "x"}}]}, {"rule": [{"action": 1}]}],
)
def test_rules_in_another_form_are_refused(lifecycle: object) -> None:
    """What is not written as Google writes it is not judged, and nothing is changed."""
    with scripted_server(_said(lifecycle)) as server, opened(config(server.endpoint)) as store:
        for call in (lambda: store.expiry_rules("orders"), lambda: store.set_expiry("orders", 3)):
            with pytest.raises(PayloadStoreError, match="do not have the form of GCS's"):
                call()
        assert {request.method for request in server.requests} == {"GET"}


def _said(lifecycle: object) -> Any:
    bucket = Bucket([])
    bucket.described["lifecycle"] = lifecycle
    return bucket
