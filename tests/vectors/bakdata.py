"""What bakdata's serializer wrote, as it is read from bakdata.json; the file says itself what stands in it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transforms.compression import CODECS, Codec
from transforms.formats import FORMATS, FormatName
from transforms.record import Header, Record

VECTORS = Path(__file__).with_name("bakdata.json")
MAX_BYTE_SIZE = 100  # a value so long or longer was stored
TOPIC = "orders"


@dataclass(frozen=True)
class BakdataCase:
    """One record of theirs, and where its value is.

    Attributes:
        source: which releases wrote it.
        format: with headers or with flags.
        codec: their `large.message.compression.type`; None for `none`.
        plain: the record that they were given; its key is as they serialized it.
        wire: the record that they wrote.
        stored: path and bytes of the object of the value; None where it is inline.
    """

    source: str
    format: FormatName
    codec: Codec | None
    plain: Record
    wire: Record
    stored: tuple[str, bytes] | None

    @property
    def label(self) -> str:
        """A name for the test's report."""
        size = "null" if self.plain.value is None else len(self.plain.value)
        key = "null" if self.plain.key is None else len(self.plain.key)
        return f"{self.format}-{self.codec}-{size}-key-{key}"


def bakdata_cases() -> list[BakdataCase]:
    """All of them, in the order of the file."""
    return [_case(found) for found in json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]]


def _case(found: dict[str, Any]) -> BakdataCase:
    headers: list[Header] = [(name, base64.b64decode(value)) for name, value in found["headers"]]
    wire = Record(_bytes(found["key"]), _bytes(found["value"]), tuple(headers))
    plain = found["plain"]
    value = None if plain is None else plain["text"].encode() * plain["times"]
    # The headers of a value are those behind the record's own and the key's.
    own = tuple(header for header in headers if header[0] in {"trace", "__large.message.backed.key"})
    if ("__large.message.backed.key", b"\1") in own or (wire.key or b"").startswith(b"\1"):
        own = headers[0], ("__large.message.backed..compression", b"\1"), *own[1:]
    stored = found["stored"]
    return BakdataCase(
        source=found["source"],
        format=next(name for name in FORMATS if name == found["format"]),
        codec=next((codec for codec in CODECS if codec == found["compression"]), None),
        plain=Record(wire.key, value, own),
        wire=wire,
        stored=None if stored is None else (stored["path"], base64.b64decode(stored["data"]) + bytes(stored["zeros"])),
    )


def _bytes(found: str | None) -> bytes | None:
    return None if found is None else base64.b64decode(found, validate=True)
