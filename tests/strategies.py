"""Hypothesis generators of what travels: header names, headers, records, references."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from transforms.compression import CODECS, Codec
from transforms.record import Header, Record
from transforms.reference import MAX_PATH_BYTES, Reference

REFERENCE_NAMES = (
    "large-message",
    "large-message.size",
    "large-message.checksum",
    "large-message.compression",
    "large-message.signature",
)

# Where a zigzag varint takes another byte: 2**6 and 2**13 (2**20 only costs time here).
_EDGES = (0, 1, 62, 63, 64, 65, 127, 128, 8_190, 8_191, 8_192, 8_193)


def _edge_bytes() -> st.SearchStrategy[bytes]:
    return st.builds(lambda size, byte: bytes([byte]) * size, st.sampled_from(_EDGES), st.integers(0, 255))


def values() -> st.SearchStrategy[bytes]:
    """Any bytes, short ones and those whose length is at a boundary of the format."""
    return st.binary(max_size=300) | _edge_bytes()


def optional_bytes() -> st.SearchStrategy[bytes | None]:
    """A key, value or header value: null, empty, short, or at a boundary."""
    return st.none() | values()


def codecs() -> st.SearchStrategy[Codec | None]:
    """Every codec, and none."""
    return st.sampled_from((None, *CODECS))


def header_names() -> st.SearchStrategy[str]:
    """Any name that Kafka can carry (UTF-8, so no lone surrogates), often one that the reference uses itself."""
    text = st.text(st.characters(codec="utf-8"), max_size=70)
    return st.sampled_from(REFERENCE_NAMES) | st.sampled_from(("é" * 32, "名" * 21, "x" * 64)) | text


def header_values() -> st.SearchStrategy[bytes | None]:
    """Any header value, often one that the reference uses itself."""
    known = (b"true", b"false", b"0", b"7", b"sha256:" + b"a" * 64, b"gzip", b"zstd", b"")
    return st.sampled_from(known) | st.none() | st.binary(max_size=80)


def headers(max_size: int = 8) -> st.SearchStrategy[list[Header]]:
    """Headers in any order; duplicates and nulls are common."""
    return st.lists(st.tuples(header_names(), header_values()), max_size=max_size)


def reference_headers() -> st.SearchStrategy[list[Header]]:
    """Headers of the reference's own names only, in any number and order: what a decoder has to sort out."""
    return st.lists(st.tuples(st.sampled_from(REFERENCE_NAMES), header_values()), max_size=8)


def records(*, value: st.SearchStrategy[bytes | None] | None = None) -> st.SearchStrategy[Record]:
    """Any record."""
    return st.builds(
        Record,
        key=optional_bytes(),
        value=optional_bytes() if value is None else value,
        headers=headers().map(tuple),
        timestamp=st.integers(-1, 2**62),
    )


@st.composite
def batches(draw: st.DrawFn, min_size: int, max_size: int) -> list[Record]:
    """So many records in a row: up to four that differ in everything, again and again, most with separate times.

    Where the order of records is tested, drawing each of forty would take most of the time of the test.
    """
    different = draw(st.lists(records(), min_size=1, max_size=4))
    drawn = draw(st.lists(st.sampled_from(different), min_size=min_size, max_size=max_size))
    timed = ((each, number if each.timestamp >= 0 else 0) for number, each in enumerate(drawn))  # -1 means none
    return [replace(each, timestamp=each.timestamp + later) for each, later in timed]


def paths() -> st.SearchStrategy[str]:
    """Any path that a reference can hold."""
    text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
    return text | st.sampled_from(("s3://bucket/prefix/orders/id", "/" * MAX_PATH_BYTES))


def references() -> st.SearchStrategy[Reference]:
    """Any reference that our writers can create, and that of KIP-1159, which has only the path."""
    checksums = st.binary(min_size=32, max_size=32).map(bytes.hex)
    signatures = st.none() | checksums.map(lambda digest: f"hmac-sha256:{digest[:8]}:{digest}")
    whole = st.builds(Reference, paths(), st.integers(0, 10**19 - 1), checksums, codecs(), signatures)
    return whole | st.builds(Reference, paths())
