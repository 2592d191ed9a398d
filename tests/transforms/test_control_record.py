"""The records of `control.topic`: what they say, and what is none of them."""

from __future__ import annotations

import json

import pytest

from transforms.control_record import MAX_VALUE_BYTES, ControlRecords, Request, Restart, TargetStateRequest, record_of
from transforms.errors import MalformedError, shown

RECORDS = ControlRecords(["orders", "grüße"])
TARGET, RESTART = b"target-state-orders", b"restart-connector-orders"


@pytest.mark.parametrize(
    ("request_", "key", "value"),
    [
        (TargetStateRequest("orders", "PAUSED"), TARGET, {"state": "PAUSED"}),
        (TargetStateRequest("grüße", "STOPPED"), "target-state-grüße".encode(), {"state": "STOPPED"}),
        (Restart("orders"), RESTART, {"include-tasks": True, "only-failed": False}),
        (Restart("orders", only_failed=True), RESTART, {"include-tasks": True, "only-failed": True}),
        (TargetStateRequest("orders", "STARTED", "7f"), TARGET, {"state": "STARTED", "id": "7f"}),
        (Restart("orders", id="8"), RESTART, {"include-tasks": True, "only-failed": False, "id": "8"}),
    ],
)
def test_a_request_is_read_as_it_was_written(request_: Request, key: bytes, value: dict[str, object]) -> None:
    """Key and value are like Connect's, with the group in the place of the connector."""
    written = record_of(request_)
    assert (written[0], json.loads(written[1])) == (key, value)
    assert RECORDS.read(*written) == request_


def test_fields_that_are_not_known_are_left_out() -> None:
    """A later release may say more; a record without value takes back what was asked."""
    assert RECORDS.read(TARGET, b'{"state": "PAUSED", "state.v2": "STOPPED"}') == TargetStateRequest("orders", "PAUSED")
    assert RECORDS.read(RESTART, b"{}") == Restart("orders")
    assert RECORDS.read(TARGET, None) == TargetStateRequest("orders", "STARTED")
    assert RECORDS.read(RESTART, None) is None


@pytest.mark.parametrize(
    "key", [None, b"", b"\xff", b"target-state-other", b"target-state-", b"orders", b"x" * 1_000_000]
)
def test_records_of_others_are_not_looked_at(key: bytes | None) -> None:
    """Deployments that share a topic have groups of their own."""
    assert not RECORDS.concerns(key)
    assert ControlRecords(["orders"]).concerns(TARGET)
    assert RECORDS.read(key, b"\xff no JSON") is None


JSON, STATES, ID = "a JSON object", "STARTED, PAUSED, STOPPED", "a string of up to 64 characters"
LONG = b'["' + b"x" * 100 + b'"]'


@pytest.mark.parametrize(
    ("key", "value", "field", "found", "allowed"),
    [
        (TARGET, b"", "value", "b''", JSON),
        (TARGET, b"\xff", "value", repr(b"\xff"), JSON),
        (TARGET, b'"PAUSED"', "value", repr(b'"PAUSED"'), JSON),
        (TARGET, b"[" * 4_000, "value", repr(b"[" * 40), JSON),
        (TARGET, LONG, "value", repr(LONG[:40]), JSON),
        (TARGET, b'{"n": ' + b"9" * 4_080 + b"}", "state", "None", STATES),
        (TARGET, b"{}" + b" " * (MAX_VALUE_BYTES - 2), "state", "None", STATES),
        (TARGET, b"{}" + b" " * (MAX_VALUE_BYTES - 1), "value", "4,097 bytes", "4,096 bytes"),
        (TARGET, b'{"state": "PAUSED", "id": 7}', "id", "7", ID),
        (RESTART, b'{"id": "' + b"7" * 65 + b'"}', "id", "'" + "7" * 63, ID),
        (TARGET, b'{"state": "paused"}', "state", "'paused'", STATES),
        (TARGET, b'{"state": ["PAUSED"]}', "state", "['PAUSED']", STATES),
        (TARGET, b'{"state": "\\ud800"}', "state", repr("\ud800"), STATES),
        (RESTART, b'{"only-failed": "yes"}', "only-failed", "'yes'", "true or false"),
        (RESTART, b"null", "value", "b'null'", JSON),
    ],
)
def test_what_is_no_request_is_refused(key: bytes, value: bytes, field: str, found: str, allowed: str) -> None:
    """The error says which field is wrong, what it is, and what is allowed."""
    with pytest.raises(MalformedError) as refused:
        RECORDS.read(key, value)
    assert str(refused.value) == f"malformed record: {field} is {shown(found)}; allowed: {allowed}"


def test_the_longest_id_is_taken() -> None:
    """As many characters as are allowed."""
    assert ControlRecords(["orders"]).read(RESTART, b'{"id": "%b"}' % (b"7" * 64)) == Restart("orders", id="7" * 64)
