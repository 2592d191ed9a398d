"""The references of a topic: whether their payloads are in the store, with the right size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stores.store import Stat
from transforms.encryption import stored_bytes
from transforms.errors import (
    MalformedReferenceError,
    PayloadNotFoundError,
    PayloadStoreError,
    ReferenceRefusedError,
    SignatureError,
)
from transforms.formats import WIDELOAD, Format
from transforms.record import RecordLike
from transforms.reference import KEY, VALUE, Field, Reference
from transforms.signing import Signing

State = Literal["ok", "unchecked", "missing", "size", "refused", "malformed", "unknown"]

BAD: frozenset[State] = frozenset({"missing", "size", "refused", "malformed", "unknown"})
"""The states of a reference with a problem."""


@dataclass(frozen=True, slots=True)
class ReferenceCheck:
    """The result for one reference.

    Attributes:
        state: `ok`: the payload exists and has the right size. `unchecked`: no store was given, or the store has no
            `stat`. `missing`: the payload does not exist. `size`: the payload has a different size. `refused`: the path
            is not below the store's root, or the signature is wrong. `malformed`: the reference cannot be read.
            `unknown`: the store failed.
        reference: None if it is malformed.
        stored: the size of the payload in the store in bytes; None if it is not known.
        detail: the problem, for people.
    """

    state: State
    reference: Reference | None = None
    stored: int | None = None
    detail: str | None = None

    @property
    def bad(self) -> bool:
        """Whether the reference has a problem."""
        return self.state in BAD


def check_reference(
    record: RecordLike,
    store: Stat | None,
    form: Format = WIDELOAD,
    part: Field = VALUE,
    signing: Signing | None = None,
) -> ReferenceCheck:
    """Reads one reference, and looks for its payload in the store. Blocks.

    Args:
        record: a record whose value or key is a reference.
        store: None to skip the look at the store.
        form: the format of references in values.
        part: the key or the value.
        signing: verifies signatures; None to accept all references.
    """
    try:
        if part is KEY:
            reference, _ = Reference.read(record.key, record.headers, KEY)
        else:
            reference, _ = form.read_reference(record)
    except MalformedReferenceError as exc:
        return ReferenceCheck("malformed", detail=str(exc))
    try:
        if signing is not None:
            signing.verify(reference, part)
    except SignatureError as exc:
        return ReferenceCheck("refused", reference, detail=str(exc))
    return ReferenceCheck("unchecked", reference) if store is None else _look(reference, store)


def _look(reference: Reference, store: Stat) -> ReferenceCheck:
    try:
        stored = store.stat(reference.path).size
    except PayloadNotFoundError as exc:
        return ReferenceCheck("missing", reference, detail=str(exc))
    except ReferenceRefusedError as exc:
        return ReferenceCheck("refused", reference, detail=str(exc))
    except PayloadStoreError as exc:
        return ReferenceCheck("unknown", reference, detail=str(exc))
    size = None if reference.size is None else stored_bytes(reference, reference.size)
    # A payload is stored compressed only if that makes it smaller.
    wrong = size is not None and (stored != size if reference.codec is None else stored > size)
    if wrong:
        return ReferenceCheck("size", reference, stored, f"the store has {stored:,} bytes, the reference says {size:,}")
    return ReferenceCheck("ok", reference, stored)
