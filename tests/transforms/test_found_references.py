"""The references of a record: each format, both parts of a record, what is wrapped, and what is malformed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.vectors.bakdata import bakdata_cases
from transforms import record_format
from transforms.bakdata import FLAG
from transforms.chunk import Chunk, Chunking
from transforms.formats import FORMATS, FormatName
from transforms.found_references import HIDDEN, FoundReference, ReferenceFinder
from transforms.letter import BATCH_FORMS, MARK
from transforms.record import Header, Record
from transforms.record_batch import RecordBatch, pack
from transforms.reference import KEY, MAX_PATH_BYTES, VALUE, Encryption, Reference
from transforms.signing import Signing
from transforms.wrapper import OWN_KEYS, Wrap

ROOT = "s3://payloads/base/"
DIGEST = "ab" * 32
MARKED: Header = ("large-message", b"true")
WITH_ROOT = ReferenceFinder(root=ROOT)


def found(log: Sequence[Record], finder: ReferenceFinder = WITH_ROOT) -> list[tuple[int, FoundReference]]:
    """What each record of a log has, by its position; a batch with a reference is never passed over."""
    given = []
    for offset, record in enumerate(log):
        references = list(finder.find(record))
        assert not references or finder.wants_any(RecordBatch.read(memoryview(pack([record]))))
        given += [(offset, each) for each in references]
    return given


def referring(path: str, *own: Header, size: int | None = None, name: FormatName = "wideload") -> Record:
    """A record whose value is in a store."""
    plain = Record(b"k", b"?", own, 5)
    return FORMATS[name].write_reference(plain, Reference(path, size, None if size is None else DIGEST))


def wrapped(record: Record) -> Record:
    """The record as `wrap` writes it."""
    return Wrap().wrap(record)


def test_references_of_the_projects_own_format() -> None:
    """Path, size, checksum and codec of values and keys are found, keys first; all else is left out."""
    key = Reference(f"{ROOT}t/key", 7, DIGEST)
    log = [
        Record(b"k", b"plain", [("x", b"1")]),
        referring(f"{ROOT}t/a", ("large-message", b"no"), ("x", None), size=3),
        Record(b"k", Reference(f"{ROOT}t/b", 9, DIGEST, "zstd").value(), Reference("-", 9, DIGEST, "zstd").headers()),
        Record(b"k", f"{ROOT}t/seed".encode(), [MARKED]),
        Record(b"k", None, [MARKED]),
        Record(key.value(), b"small", key.headers(KEY)),
        Record(key.value(), f"{ROOT}t/c".encode(), [*key.headers(KEY), *Reference("-", 1).headers()]),
        Record(key.value(), None, key.headers(KEY)),
        Record(None, b"v", [("large-message-key", b"true")]),
        Record(b"k", b"not one", [("large-message", b"false"), ("x", b"1")]),
    ]
    of_key = FoundReference("key", "wideload", f"{ROOT}t/key", 7, DIGEST)
    assert found(log) == [
        (1, FoundReference("value", "wideload", f"{ROOT}t/a", 3, DIGEST)),
        (2, FoundReference("value", "wideload", f"{ROOT}t/b", 9, DIGEST, "zstd")),
        (3, FoundReference("value", "wideload", f"{ROOT}t/seed")),
        (5, of_key),
        (6, of_key),
        (6, FoundReference("value", "wideload", f"{ROOT}t/c", 1)),
        (7, of_key),
    ]


@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
def test_references_of_bakdatas_formats(name: FormatName) -> None:
    """What bakdata's own serializer wrote leads to where it put the objects, and nothing of it is called malformed."""
    cases = [case for case in bakdata_cases() if case.format == name]
    assert found([case.wire for case in cases], ReferenceFinder(name, ROOT)) == [
        (offset, FoundReference("value", name, case.stored[0], compression=case.codec))
        for offset, case in enumerate(cases)
        if case.stored is not None
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_references_of_another_header_format_count_too(name: FormatName) -> None:
    """A record that a header marks is a reference whatever the topic's format is said to be."""
    log = [referring(f"{ROOT}t/a", name="bakdata-headers"), referring(f"{ROOT}t/b", size=2)]
    heard = found(log, ReferenceFinder(name))
    assert [(offset, each.path, each.error) for offset, each in heard] == [
        (0, f"{ROOT}t/a", None),
        (1, f"{ROOT}t/b", None),
    ]


def test_malformed_references_are_found_with_the_reason() -> None:
    """What says that it is a reference and is none has the reason, and nothing else, for values and keys."""
    log = [
        Record(b"k", b"\xff", [MARKED]),
        Record(b"k", b"", [MARKED]),
        Record(b"k", b"p" * (MAX_PATH_BYTES + 1), [MARKED]),
        Record(b"k", b"path", [MARKED, ("large-message.size", b"many")]),
        Record(b"k", b"path", [MARKED, ("large-message.checksum", b"x" * 5_000)]),
        Record(b"\xff", b"v", [("large-message-key", b"true")]),
        Record(b"k", b"path", [MARKED, ("large-message.chunk.uuid", b"u")]),
        Record(b"k", b"path", [MARKED, ("large-message.size", b"9" * 19)]),
        Record(b"k", b"p" * MAX_PATH_BYTES, [MARKED]),
    ]
    reasons = [
        "value is 'not UTF-8 at byte 0'",
        "value is '0 bytes'",
        "bytes'; allowed: a path",
        "large-message.size is 'many'",
        "large-message.checksum is 'xxx",
        "key is 'not UTF-8 at byte 0'",
        "is a chunk of a reference: assemble it",
    ]
    heard = found(log)
    assert [offset for offset, _ in heard] == list(range(len(log)))
    for (_, each), reason in zip(heard, reasons, strict=False):
        assert reason in (each.error or "")
        assert each == FoundReference(each.which, error=each.error)
    assert [each.which for _, each in heard] == ["value"] * 5 + ["key"] + ["value"] * 3
    assert heard[6][1].error == reasons[6]
    assert (heard[7][1].error, heard[7][1].size) == (None, 2**63 - 1)
    assert heard[8][1].path == "p" * MAX_PATH_BYTES


def test_signatures_of_references_with_the_longest_headers() -> None:
    """A signature covers the whole data key, which a key service makes long; one that is refused has its path."""
    signing = Signing("s" * 32)

    def signed(key_id: str, data_key: bytes, by: Signing = signing) -> Record:
        encryption = Encryption(key_id, b"n" * 12, data_key)
        reference = by.signed(Reference(f"{ROOT}t/a", 9, DIGEST, encryption=encryption))
        return Record(b"k", reference.value(), reference.headers())

    key = signing.signed(Reference(f"{ROOT}t/key"), KEY)
    log = [
        signed("one", b"d" * 80),
        signed("i" * 256, b"d" * 6_272),
        Record(key.value(), None, key.headers(KEY)),
        referring(f"{ROOT}t/b", name="bakdata-headers"),  # has no signatures
        signed("i" * 257, b"d" * 80),
        signed("one", b"d" * 6_273),
        signed("one", b"d" * 80, Signing("x" * 32)),
        referring(f"{ROOT}t/c"),
    ]
    heard = [each for _, each in found(log, ReferenceFinder(root=ROOT, signing=signing))]
    assert [(each.error, each.encryption) for each in heard[:2]] == [(None, "aes-256-gcm")] * 2
    assert [each.error for each in heard[2:4]] == [None, None]
    reasons = ["large-message.encryption.key is", "data-key is", "known here are", "it has no signature"]
    for each, reason in zip(heard[4:], reasons, strict=True):
        assert reason in (each.error or "")
    assert [each.path for each in heard[4:]] == [None, None, f"{ROOT}t/a", f"{ROOT}t/c"]


def test_values_without_the_flag_of_their_format() -> None:
    """In the format with flags each value has one; what has none is found with the reason."""
    log = [Record(b"k", b"\0v"), Record(b"k", b"{}"), Record(b"k", b""), Record(b"k", None)]
    heard = found(log, ReferenceFinder("bakdata-flag"))
    assert [(offset, "flag" in (each.error or "")) for offset, each in heard] == [(1, True), (2, True)]


def test_unmarked_paths_are_found() -> None:
    """A path below the root without a mark: the topic has another format, and nobody can say what lives."""
    log = [
        Record(b"k", f"{ROOT}t/a".encode()),
        Record(b"k", b"\1" + f"{ROOT}t/a".encode()),
        Record(f"{ROOT}t/a".encode(), b"v"),
        Record(b"k", f"{ROOT}t/values/a".encode()),
        Record(b"\1" + f"{ROOT}t/keys/a".encode(), None),
        Record(b"k", f"see {ROOT}t/a".encode()),
        Record(b"k", f"{ROOT}t/a".encode(), [(FLAG, b"\0")]),
        Record(b"k", f"{ROOT}t/".encode() + b"a" * 2**20),
    ]
    heard = found(log)
    assert [(offset, each.which) for offset, each in heard] == [
        (0, "value"),
        (1, "value"),
        (2, "key"),
        (6, "value"),
        (7, "value"),
    ]
    for _, each in heard:
        assert (each.error or "").startswith(f"begins with {ROOT}t/ and is not marked as a reference")
        assert len(each.error or "") < 200
    assert found(log, ReferenceFinder()) == []
    assert 6 not in [offset for offset, _ in found(log, ReferenceFinder("bakdata-headers", ROOT))]


def test_references_in_wrappers() -> None:
    """What a wrapper or dead-letter record refers to is found as in a bare record, however long they are."""
    key = Reference(f"{ROOT}t/key", 7, DIGEST)
    long: Header = ("wrapper.header.7", bytes(2**21))
    log = [
        wrapped(referring(f"{ROOT}t/a", size=3)),
        wrapped(referring(f"{ROOT}t/b", long, size=4)),
        wrapped(Record(key.value(), None, key.headers(KEY))),
        wrapped(wrapped(referring("s3://elsewhere/t/c"))),
        wrapped(referring(f"{ROOT}t/d", name="bakdata-headers")),
        wrapped(Record(b"k", b"a plain value", [("wrapper.header.5", b"trace")])),
        wrapped(Record(b"k", f"says {ROOT}t/e".encode())),
        Record(b"k", b"\0\0\0\0\7" + f"Avro, says {ROOT}t/f".encode()),
        wrapped(Record(b"k", None)),
        Record(b"k", record_format.serialize(wrapped(referring(f"{ROOT}t/g", long))), [(MARK, b"record")]),
    ]
    heard = found(log)
    assert [(offset, each.which, each.path, each.size) for offset, each in heard] == [
        (0, "value", f"{ROOT}t/a", 3),
        (1, "value", f"{ROOT}t/b", 4),
        (2, "key", f"{ROOT}t/key", 7),
        (3, "value", "s3://elsewhere/t/c", None),
        (4, "value", f"{ROOT}t/d", None),
        (9, "value", f"{ROOT}t/g", None),
    ]


def test_references_in_wrappers_with_flags() -> None:
    """In the format without headers the flag stands inside the wrapper; inline values are no wrappers."""
    form = FORMATS["bakdata-flag"]
    log = [
        wrapped(referring(f"{ROOT}t/a", name="bakdata-flag")),
        form.write_inline(Record(b"k", f"{ROOT}t/b".encode())),
        wrapped(form.write_inline(Record(b"k", f"{ROOT}t/c".encode()))),
    ]
    heard = found(log, ReferenceFinder("bakdata-flag", ROOT))
    assert [(offset, each.path, each.error) for offset, each in heard] == [(0, f"{ROOT}t/a", None)]


def test_wrappers_that_cannot_be_read() -> None:
    """A wrapper, chunk or dead-letter record that may hold a reference nobody can read is found, not passed over."""
    deep = referring(f"{ROOT}t/deep")
    for _ in range(9):
        deep = wrapped(deep)
    pieces = list(Chunking(600).split(wrapped(referring(f"{ROOT}t/a", ("wrapper.header.7", bytes(900)))), "u"))
    plain = list(Chunking(600).split(wrapped(Record(b"k", b"v" * 2 * MAX_PATH_BYTES)), "v"))
    assert len(pieces) > 1
    log = [
        deep,
        wrapped(Record(b"k", b"\xff", [MARKED])),
        wrapped(Record(b"k", f"{ROOT}t/unmarked".encode())),
        *pieces,
        *plain,
        Record(b"k", b"a record", [(MARK, b"bare-record")]),
        Record(b"k", b"plain", [(MARK, b"whole")]),
        replace(referring(f"{ROOT}t/b"), headers=[(MARK, b"record"), MARKED]),
    ]
    reasons = [
        "is a wrapper in a wrapper, more than 8 times",
        "malformed reference: value is 'not UTF-8 at byte 0'; allowed: a path in UTF-8 of 1 to 16,384 bytes",
        f"begins with {ROOT}t/ and is not marked as a reference: not wideload?",
        "is a chunk of a wrapper that may hold a reference: assemble it",
        "malformed record: record is 'a length of -49'; allowed: 1 to 7",
        "is a dead letter whose record is elsewhere, and may be a reference: replay or drop it",
    ]
    heard = found(log)
    assert {each.which for _, each in heard} == {"value"}
    wrong = [(offset, each.error) for offset, each in heard if each.error is not None]
    assert [each.path for _, each in heard if each.error is None] == [f"{ROOT}t/b"]
    assert [offset for offset, _ in wrong] == [*range(4), len(log) - 3, len(log) - 1]
    assert [error for _, error in wrong] == reasons
    assert [error.startswith(HIDDEN) for _, error in wrong] == [True, False, False, True, False, True]


@pytest.mark.parametrize(
    ("size", "headers_bytes", "number", "hidden"),
    [
        (9 + 20 - 1, 20, 0, False),  # no room for the headers
        (9 + 20, 20, 0, True),
        (9 + 20 + MAX_PATH_BYTES + 2, 20, 0, True),
        (9 + 20 + MAX_PATH_BYTES + 3, 20, 0, False),  # the value is longer than a path
        (9 + 2**24, 2**24, 0, True),
        (9 + 20, 20, 1, False),  # the first chunk says enough
    ],
)
def test_first_chunk_of_a_wrapper_hides_a_short_value(size: int, headers_bytes: int, number: int, hidden: bool) -> None:  # noqa: FBT001
    """Its head tells how long the value of the wrapper is: a path is short."""
    head = b"\0" + headers_bytes.to_bytes(4) + bytes(4)
    headers = Chunk("u", number, 2, size).headers()
    assert len(found([Record(b"k", head, headers)])) == hidden
    assert found([Record(b"k", b"\1" + head[1:], headers), Record(b"k", head, headers[:1])]) == []


def test_references_in_letters_of_earlier_releases() -> None:
    """A dead-letter record with a stored reference of bakdata's is found: where that leads is in its payload."""
    backed = Record(b"k", b"?", [(FLAG, b"\x01"), (MARK, b"value")], 5)
    heard = found([FORMATS["wideload"].write_reference(backed, Reference(f"{ROOT}dlq/a", 3_000, DIGEST))])
    assert [(each.path, each.error) for _, each in heard] == [
        (None, "is a dead letter whose record is elsewhere, and may be a reference: replay or drop it"),
        (f"{ROOT}dlq/a", None),
    ]


def test_batches_in_dead_letters_are_not_looked_into() -> None:
    """As docs/sweep.md says: references in a letter that is a whole batch do not count; the letter's own does."""
    record = referring(f"{ROOT}orders/id")
    for form in BATCH_FORMS:
        letter = Record(None, bytes(pack([record])), [(MARK, form)])
        stored = Record(None, record.value, [(MARK, form), *record.headers])
        assert [(offset, each.path) for offset, each in found([letter, stored])] == [(1, f"{ROOT}orders/id")]


def test_names_and_keys_of_headers_leave_a_trace_in_their_batch() -> None:
    """`wants_any` looks for what all names of headers, or all keys of wrapped headers, have in common."""
    names = [VALUE.flag, KEY.flag, FLAG, MARK, "large-message.chunk.uuid"]
    keys = [b"\0\0\0\0\x08" + key.to_bytes(4) + bytes(8) for key in OWN_KEYS]
    for record in (*(Record(None, b"v", [(name, None)]) for name in names), *(Record(None, key) for key in keys)):
        assert ReferenceFinder().wants_any(RecordBatch.read(memoryview(pack([record]))))
    plain = RecordBatch.read(memoryview(pack([Record(b"k", b"v" * 1_000, [("x", b"y")])])))
    assert not ReferenceFinder(root=ROOT).wants_any(plain)
    path = RecordBatch.read(memoryview(pack([Record(b"k", f"{ROOT}t/a".encode())])))
    assert [ReferenceFinder(root=root).wants_any(path) for root in (None, ROOT)] == [False, True]
    assert ReferenceFinder("bakdata-flag").wants_any(plain)
