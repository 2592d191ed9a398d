"""The format's test vectors, against the pure part: what is read of a record, and what is made of the stored bytes."""

from __future__ import annotations

import gzip
import hashlib

import pytest

from tests.vectors.case import Case, cases
from transforms.compression import CODECS
from transforms.encryption import decrypt, unwrapped
from transforms.errors import TransformError
from transforms.inflate import Inflate
from transforms.keyring import EncryptionSettings, LocalKeyring
from transforms.offload import Offload
from transforms.record import Record
from transforms.reference import KEY, VALUE, Field, Reference, is_reference

CASES = cases()
FIELDS = {part.name: part for part in (VALUE, KEY)}
OF_STORES = {"PayloadNotFoundError", "ReferenceRefusedError"}
OF_DOWNLOAD = {"compressed to more"}  # what was read is at fault for being read; see stores/payload.py


def data_of(record: Record, part: Field) -> bytes | None:
    """The key or the value."""
    return record.value if part is VALUE else record.key


def with_data(record: Record, part: Field, data: bytes | None) -> Record:
    """The record with another key or value."""
    return Record(record.key, data, record.headers) if part is VALUE else Record(data, record.value, record.headers)


def read(case: Case) -> Record:
    """The record that a reader makes of `wire`, with nothing for a store but the bytes of the case."""
    part = FIELDS[case.part]
    data = data_of(case.wire, part)
    if data is None or not is_reference(case.wire.headers, part):
        return case.wire
    reference, own = Reference.read(data, case.wire.headers, part)
    inflate = Inflate(case.max_bytes)
    inflate.stored_limit_bytes(reference)
    assert case.payload is not None
    path, stored = case.payload
    assert reference.path == path
    if reference.encryption is not None:
        settings = EncryptionSettings(False, None, {name: bytes.fromhex(key) for name, key in case.keys.items()})
        keyring = LocalKeyring(settings) if settings.keys else None
        stored = decrypt(reference, stored, unwrapped(reference, keyring))
    return with_data(Record(case.wire.key, case.wire.value, own), part, inflate.restore(reference, stored))


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.error not in OF_STORES and case.name not in OF_DOWNLOAD],
    ids=lambda case: case.name,
)
def test_vector_is_read(case: Case) -> None:
    """Each record is read as the record, or refused with the error, that the vector names."""
    if case.error is not None:
        with pytest.raises(TransformError) as raised:
            read(case)
        assert type(raised.value).__name__ == case.error
        return
    assert read(case) == case.plain


@pytest.mark.parametrize("case", [case for case in CASES if case.error in OF_STORES], ids=lambda case: case.name)
def test_vector_is_for_the_store(case: Case) -> None:
    """What only a store can refuse is a sound reference as far as the record goes."""
    part = FIELDS[case.part]
    reference, _ = Reference.read(data_of(case.wire, part), case.wire.headers, part)
    assert reference.path.encode() == data_of(case.wire, part)


@pytest.mark.parametrize("case", [case for case in CASES if case.write], ids=lambda case: case.name)
def test_vector_is_written(case: Case) -> None:
    """Each record is written as the record, and stored as the bytes, that the vector names."""
    assert case.plain is not None
    part = FIELDS[case.part]
    codec = next((each for each in CODECS if each == case.compression and part is VALUE), None)
    offload = Offload(case.threshold, codec=codec)
    data = data_of(case.plain, part)
    large = case.wire != case.plain
    assert offload.wants(Record(None, data)) == large
    if not large:
        return
    assert data is not None
    assert case.payload is not None
    path, stored = case.payload
    payload = offload.payload(data)
    reference = payload.reference(path)
    assert reference.value() == data_of(case.wire, part)
    assert (*case.plain.headers, *reference.headers(part)) == case.wire.headers
    if case.write == "exact":
        assert payload.data == stored


@pytest.mark.parametrize("case", [case for case in CASES if case.write and case.payload], ids=lambda case: case.name)
def test_vector_is_right(case: Case) -> None:
    """The vectors themselves hold: ids and checksums are SHA-256, sizes are lengths, by means that are not ours."""
    assert case.plain is not None
    assert case.payload is not None
    part = FIELDS[case.part]
    data = data_of(case.plain, part)
    assert data is not None
    path, stored = case.payload
    assert path == f"{case.root}{case.topic}/{hashlib.sha256(stored).hexdigest()}"
    group = case.wire.headers[len(case.plain.headers) :]
    assert group[:3] == (
        (part.flag, b"true"),
        (part.size, str(len(data)).encode()),
        (part.checksum, b"sha256:" + hashlib.sha256(data).hexdigest().encode()),
    )
    assert group[3:] == (() if stored == data else ((part.compression, case.compression.encode()),))
    assert stored == data or case.compression != "gzip" or gzip.decompress(stored) == data


def test_vectors_cover_every_error() -> None:
    """Each failure that a reader can have for good, and each codec, has its vectors, which have names of their own."""
    assert {case.error for case in CASES} == {
        None, *OF_STORES, "EncryptionError", "MalformedReferenceError", "PayloadCorruptError", "PayloadTooLargeError",
    }  # fmt: skip
    assert {case.compression for case in CASES} == {"none", *CODECS}
    assert len({case.name for case in CASES}) == len(CASES)
