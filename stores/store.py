"""What a payload store is: the seed's interface, and what a store may offer besides.

Source: seed 000, "PayloadStore". `PayloadStore` is all that a user's own class needs. The other protocols are one
capability each; a function asks for the one that it uses.
"""

from __future__ import annotations

import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal, Protocol, runtime_checkable

from stores.keys import Key, Value, read, unknown
from stores.root import Root, check_object_id
from transforms.errors import ConfigurationError

__all__ = [
    "COMMON_KEYS",
    "SIGNING_KEYS",
    "Check",
    "Delete",
    "DeleteUnchanged",
    "ExpiryRule",
    "Get",
    "Lifecycle",
    "List",
    "ListTopics",
    "PayloadInfo",
    "PayloadStore",
    "Put",
    "Removal",
    "RemovalOutcome",
    "Stat",
    "Store",
    "check_object_id",
    "check_topic",
]

SIGNING_KEYS: Sequence[Key] = (
    Key(
        "large.message.signing.key",
        "string",
        "The key that signs references (HMAC-SHA-256); unsigned ones are refused. 32 random characters or more "
        "(`openssl rand -hex 32`), the same for all writers and readers of a topic (docs/reference-messages.md).",
        secret=True,
    ),
    Key(
        "large.message.signing.previous.keys",
        "list",
        "Older keys whose signatures are still accepted, for a rotation of keys.",
        secret=True,
    ),
    Key(
        "large.message.signing.required",
        "boolean",
        "Whether a reference without a signature is refused, if there is a key. `false` while some writers do not "
        "sign yet; signatures are verified in any case.",
        default=True,
    ),
)
"""What writers and readers of references do with them; no store gets these (`transforms/signing.py`)."""

COMMON_KEYS: Sequence[Key] = (
    Key(
        "large.message.id.generator",
        "string",
        "How a payload is named. `sha256`: by the digest of its stored bytes, so a replay writes the same object "
        "again and equal payloads share one. `uuid`: at random.",
        default="sha256",
        allowed=("sha256", "uuid"),
    ),
    Key(
        "large.message.max.bytes",
        "int",
        "The largest payload, stored or decompressed, that is read. Larger ones are refused before they are read.",
        default=268_435_456,
        minimum=1,
    ),
    Key(
        "large.message.store.timeout.ms",
        "int",
        "The longest time of one store call, with its retries. Must be less than `consumer.max.poll.interval.ms`.",
        default=60_000,
        minimum=1,
    ),
    *SIGNING_KEYS,
)


class PayloadStore(Protocol):
    """The seed's interface. Calls block and come from several threads at once.

    Raises of every method: `PayloadStoreError` with `retriable` set, and nothing else for what the store does.
    A topic is 1 to 249 characters of `[a-zA-Z0-9._-]`, as Kafka has it; another one is a `ValueError`.
    """

    def configure(self, config: Mapping[str, object]) -> None:
        """Takes the keys of the pipeline, once, before anything else. Makes no request.

        Raises:
            ConfigurationError: a key is missing, unknown or wrong.
        """
        ...

    def publish(self, topic: str, data: bytes) -> str:
        """Stores `data` and returns the full path, once it is durable.

        Atomic: no reader ever sees a part of it. Publishing again what is there already writes it again, so that its
        age begins anew: a lifecycle rule must not delete an object to which a new record refers.
        """
        ...

    def download(self, full_path: str) -> bytes:
        """The bytes that `publish` stored under this path; a publish that has returned is seen.

        Raises:
            ReferenceRefusedError: the path is not below the store's root; nothing was requested.
            PayloadNotFoundError: there is no such payload.
            PayloadTooLargeError: it is over `large.message.max.bytes`; the body was not read.
        """
        ...

    def id(self, data: bytes) -> str:
        """The name of the object for `data`, not its path."""
        ...

    def close(self) -> None:
        """Gives back what the store holds; may be called twice. No other call may follow."""
        ...


@runtime_checkable
class Put(Protocol):
    """Stores under a name that the caller has chosen, for instance a digest that it has computed already."""

    def put(self, topic: str, object_id: str, data: bytes) -> str:
        """As `publish`, under `object_id`.

        Raises:
            ValueError: `topic` or `object_id` is not 1 to 249 characters of `[a-zA-Z0-9._-]`; the caller's mistake.
        """
        ...


@runtime_checkable
class Get(Protocol):
    """Reads no more than the caller is willing to hold."""

    def get(self, full_path: str, max_bytes: int) -> bytes:
        """As `download`.

        Raises:
            PayloadTooLargeError: there is more than `max_bytes`; the body was not read.
        """
        ...


@dataclass(frozen=True, slots=True)
class PayloadInfo:
    """One payload as the store lists it.

    Attributes:
        path: the full path, as `publish` returned it.
        size: stored bytes.
        modified: when it was last published, with time zone; S3 has whole seconds.
    """

    path: str
    size: int
    modified: datetime


@runtime_checkable
class Stat(Protocol):
    """Looks at a payload without reading it."""

    def stat(self, full_path: str) -> PayloadInfo:
        """Size and age of one payload; raises what `download` raises."""
        ...


@runtime_checkable
class Delete(Protocol):
    """Removes payloads."""

    def delete(self, full_path: str) -> None:
        """Removes one payload. One that is not there is no error: a second sweep must be able to follow a first.

        Raises:
            ReferenceRefusedError: the path is not below the store's root.
        """
        ...


@runtime_checkable
class List(Protocol):
    """Lists payloads."""

    def list(self, topic: str | None = None) -> Iterator[PayloadInfo]:
        """Every payload, or those of one topic, in no promised order; page by page, never all in memory.

        Foreign objects below the root (unfinished writes, nested folders) are passed over.
        """
        ...


RemovalOutcome = Literal["deleted", "versioned", "changed", "gone", "failed"]
"""What became of a payload that was to be removed.

`deleted`: it is no more. `versioned`: it is an old version now, which the bucket keeps. `changed`: it was published
again since, so it stays. `gone`: it was not there any more. `failed`: the store did not do it.
"""


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of one payload that was to be removed.

    Attributes:
        payload: as it was listed.
        outcome: in a word.
        error: what the store said where it failed; None elsewhere.
    """

    payload: PayloadInfo
    outcome: RemovalOutcome
    error: str | None = None


@runtime_checkable
class DeleteUnchanged(Protocol):
    """Removes many payloads, but none that was published again since it was listed."""

    def delete_unchanged(self, payloads: Iterable[PayloadInfo]) -> Iterator[Removal]:
        """Removes those whose `modified` is still the one that they were listed with; one `Removal` for each.

        The look and the removal are as close to one another as the store can have them; what is published between the
        two is lost. Payloads are taken from `payloads` some at a time, and removed whether or not the caller goes on
        to the next `Removal`. May be repeated, as after a crash.

        Raises:
            ReferenceRefusedError: a path is not below the store's root.
        """
        ...


@runtime_checkable
class ListTopics(Protocol):
    """Says of which topics there are payloads, without listing those."""

    def topics(self) -> Iterator[str]:
        """The name of each folder of payloads below the root, in no promised order; it may be empty by now."""
        ...


@runtime_checkable
class Check(Protocol):
    """Can be asked, before any record is read, whether it will work."""

    def check(self, *, writing: bool = True) -> None:
        """Makes one harmless request to prove that the store is reachable and usable.

        Args:
            writing: whether payloads are going to be published; a reader may have a store that it cannot write to.

        Raises:
            PayloadStoreError: it is not; the message says what is missing.
        """
        ...


@dataclass(frozen=True, slots=True)
class ExpiryRule:
    """A rule by which a store deletes payloads on its own.

    Attributes:
        id: how the store calls it.
        days: the age at which payloads go; None where they go on a date.
        date: the day, as `2030-01-31`, from which on payloads go whatever their age; None where they go by age.
        whole: whether it is for every payload of the topic; a rule for some sizes, names or tags may leave some out.
        tagged: whether it is only for payloads with a tag. The project gives them none.
        own: whether it is the one that `Lifecycle.set_expiry` sets.
        scope: what it is for, in words.
    """

    id: str
    days: int | None
    date: str | None
    whole: bool
    tagged: bool
    own: bool
    scope: str


@runtime_checkable
class Lifecycle(Protocol):
    """Deletes payloads by age, on its own."""

    def expiry_rules(self, topic: str) -> Sequence[ExpiryRule]:
        """The rules in force that may delete payloads of the topic; the earliest decides.

        Raises:
            PayloadStoreError: they cannot be read; the message says what is missing.
        """
        ...

    def set_expiry(self, topic: str, days: int | None) -> bool:
        """Makes the project's own rule for the topic delete payloads at this age, or removes it: None.

        All other rules stay as they are. Returns whether there was anything to change, once the change is seen.

        Raises:
            PayloadStoreError: it could not be done.
        """
        ...


class Store(Put, Get, Check, ABC):
    """What the stores of the project share: the keys, the ids, and the seed's methods in terms of `put` and `get`.

    A subclass gives `KEYS`, `open` (which sets `root`), `put`, `get`, `check` and `close`.

    Attributes:
        root: what every path begins with.
        max_bytes: `large.message.max.bytes`.
        timeout_ms: `large.message.store.timeout.ms`.
    """

    KEYS: ClassVar[Sequence[Key]] = ()

    root: Root

    def __init__(self) -> None:
        self.max_bytes = 0
        self.timeout_ms = 0
        self._by_digest = True

    def configure(self, config: Mapping[str, object]) -> None:
        """See `PayloadStore.configure`. Keys of other owners must have been taken out."""
        keys = (*COMMON_KEYS, *self.KEYS)
        known = [key.name for key in keys]
        for name in config:
            if name not in known:
                raise unknown(name, known)
        values = read(keys, config)
        max_bytes, timeout_ms = values["large.message.max.bytes"], values["large.message.store.timeout.ms"]
        assert isinstance(max_bytes, int)
        assert isinstance(timeout_ms, int)
        self.max_bytes = max_bytes
        self.timeout_ms = timeout_ms
        self._by_digest = values["large.message.id.generator"] == "sha256"
        self.open(values)

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`."""
        return self.put(topic, self.id(data), data)

    def download(self, full_path: str) -> bytes:
        """See `PayloadStore.download`; bounded by `large.message.max.bytes`."""
        return self.get(full_path, self.max_bytes)

    def id(self, data: bytes) -> str:
        """SHA-256 of `data` in hex, or a random UUID: `large.message.id.generator`."""
        return hashlib.sha256(data).hexdigest() if self._by_digest else str(uuid.uuid4())

    @abstractmethod
    def open(self, values: Mapping[str, Value | None]) -> None:
        """Takes the store's own keys, checked and with defaults; sets `root`."""

    @abstractmethod
    def put(self, topic: str, object_id: str, data: bytes) -> str:
        """See `Put.put`."""

    @abstractmethod
    def get(self, full_path: str, max_bytes: int) -> bytes:
        """See `Get.get`."""

    @abstractmethod
    def check(self, *, writing: bool = True) -> None:
        """See `Check.check`."""

    @abstractmethod
    def close(self) -> None:
        """See `PayloadStore.close`."""


def check_topic(topic: str) -> str:
    """`topic` if it is a legal topic name, which has the alphabet and the length of an object id.

    Raises:
        ConfigurationError: it is not.
    """
    try:
        return check_object_id(topic)
    except ValueError:
        raise ConfigurationError(
            "topic", f"found {topic!r}, allowed are 1 to 249 characters of [a-zA-Z0-9._-]"
        ) from None
