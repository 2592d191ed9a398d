from __future__ import annotations

import pytest

from jobs.copying.forms import form_of
from transforms.formats import FormatName
from transforms.record import Record

pytestmark = pytest.mark.unit

FORGED = [("large-message", b"true"), ("__large.message.backed.value", b"\0")]


@pytest.mark.parametrize(
    ("record", "form", "found"),
    [
        (Record(b"k", b"v"), "wideload", "plain"),
        (Record(b"k", b"v"), "bakdata-flag", "bakdata"),
        (Record(b"k", b"v", [("__large.message.backed.value", b"\0")]), "wideload", "bakdata"),
        (Record(b"k", None, [("__large.message.backed.value", b"\0")]), "bakdata-flag", "tombstone"),
        (Record(b"k", b"p", [("large-message", b"true")]), "bakdata-flag", "reference"),
        (Record(b"k", b"\0v", [("large-message", b"true")]), "bakdata-flag", "bakdata"),
        (Record(b"k", b"v", FORGED), "bakdata-flag", "bakdata"),
        (Record(b"k", b"v", FORGED), "bakdata-headers", "bakdata"),
        (Record(b"k", b"v", FORGED), "wideload", "reference"),
        (Record(b"k", None, [("large-message", b"true")]), "wideload", "tombstone"),
        (Record(b"k", b"p", [("large-message", b"true"), ("large-message.chunk.uuid", b"u")]), "wideload", "chunk"),
    ],
)
def test_form_of(record: Record, form: FormatName, found: str) -> None:
    """A chunk is a chunk whatever else it is, and a null value is a tombstone whatever its headers say."""
    assert form_of(record, form) == found
