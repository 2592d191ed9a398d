"""The interfaces of payload stores: `PayloadStore` of KIP-1159, and the optional capabilities.

Source: <https://cwiki.apache.org/confluence/display/KAFKA/KIP-1159%3A+Large+message+reference+based+Serializer>. A
custom class needs `PayloadStore` only. Each of the other protocols is one capability; a function requires only those
that it uses.
"""

from __future__ import annotations

import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal, Protocol, runtime_checkable

from stores.encryption import ENCRYPTION_KEYS
from stores.keys import Key, Value, read, unknown
from stores.root import Root, check_object_id
from transforms.errors import ConfigurationError
from transforms.retention import ExpiryRule

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
        "The key that signs references (HMAC-SHA-256): at least 32 random characters (`openssl rand -hex 32`), the "
        "same for all writers and readers of a topic ([signatures](reference-security.md#signatures)). If it is set, "
        "unsigned references are refused.",
        secret=True,
    ),
    Key(
        "large.message.signing.previous.keys",
        "list",
        "Older keys whose signatures are still accepted, for key rotation.",
        secret=True,
    ),
    Key(
        "large.message.signing.required",
        "boolean",
        "Whether unsigned references are refused if `large.message.signing.key` is set. Set `false` while some "
        "writers do not sign yet; signatures are verified in any case.",
        default=True,
    ),
)
"""Keys for writers and readers of references (`transforms/signing.py`); no store gets them."""

COMMON_KEYS: Sequence[Key] = (
    Key(
        "large.message.id.generator",
        "string",
        "How payloads are named. `sha256`: with the digest of the stored bytes, so that a repeated record overwrites "
        "the same object, and equal payloads share one. `uuid`: with a random UUID.",
        default="sha256",
        allowed=("sha256", "uuid"),
    ),
    Key(
        "large.message.max.bytes",
        "bytes",
        "The maximum size in bytes of a payload, stored or decompressed, that is read. Larger payloads are refused "
        "before they are read. The worker and the serializers do not offload larger values either, since readers with "
        "this limit would refuse them.",
        default=268_435_456,
        minimum=1,
    ),
    Key(
        "large.message.store.timeout.ms",
        "int",
        "The maximum time in milliseconds of a store call, including its retries. It must be less than "
        "`consumer.max.poll.interval.ms`.",
        default=60_000,
        minimum=1,
    ),
    *SIGNING_KEYS,
    *ENCRYPTION_KEYS,
)


class PayloadStore(Protocol):
    """The interface of KIP-1159. Calls block, and several threads make them simultaneously.

    If the store fails, every method raises a `PayloadStoreError` with `retriable` set, and no other error.
    A topic is 1 to 249 characters of `[a-zA-Z0-9._-]`, as in Kafka; any other raises `ValueError`.
    """

    def configure(self, config: Mapping[str, object]) -> None:
        """Receives the properties of the pipeline, once, before any other call. Sends no request.

        Raises:
            ConfigurationError: a key is missing, unknown or wrong.
        """

    def publish(self, topic: str, data: bytes) -> str:
        """Stores `data` and returns the full path, once it is durable.

        Atomic: no reader ever sees a part of it. To publish an existing payload writes it again, so that its age begins
        again: a lifecycle rule must not delete an object to which a new record refers.
        """

    def download(self, full_path: str) -> bytes:
        """The bytes that `publish` stored under this path, as soon as it has returned.

        Raises:
            ReferenceRefusedError: the path is not below the store's root; no request was made.
            PayloadNotFoundError: there is no such payload.
            PayloadTooLargeError: it is over `large.message.max.bytes`; the body was not read.
        """

    def id(self, data: bytes) -> str:
        """The name of the object for `data`, not its path."""

    def close(self) -> None:
        """Closes connections and files; may be called twice. No other call may follow."""


@runtime_checkable
class Put(Protocol):
    """Stores under a name that the caller chooses, for instance a digest that it already has."""

    def put(self, topic: str, object_id: str, data: bytes) -> str:
        """As `publish`, under `object_id`.

        Raises:
            ValueError: `topic` or `object_id` is not 1 to 249 characters of `[a-zA-Z0-9._-]`.
        """


@runtime_checkable
class Get(Protocol):
    """Reads at most as many bytes as the caller allows."""

    def get(self, full_path: str, max_bytes: int) -> bytes:
        """As `download`.

        Raises:
            PayloadTooLargeError: there is more than `max_bytes`; the body was not read.
        """


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
        """Size and age of one payload; raises the same errors as `download`."""


@runtime_checkable
class Delete(Protocol):
    """Removes payloads."""

    def delete(self, full_path: str) -> None:
        """Removes one payload. A missing payload is not an error, so a sweep can be repeated.

        Raises:
            ReferenceRefusedError: the path is not below the store's root.
        """


@runtime_checkable
class List(Protocol):
    """Lists payloads."""

    def list(self, topic: str | None = None) -> Iterator[PayloadInfo]:
        """Every payload, or every payload of one topic, in any order; page by page, never all in memory.

        Foreign objects below the root (unfinished writes, nested directories) are skipped.
        """


RemovalOutcome = Literal["deleted", "versioned", "changed", "gone", "failed"]
"""The outcome of the removal of a payload.

`deleted`: it is removed. `versioned`: the bucket keeps it as an old version. `changed`: it was published again since
the listing, so it stays. `gone`: it did not exist any more. `failed`: the store could not remove it.
"""


@dataclass(frozen=True, slots=True)
class Removal:
    """The outcome of the removal of one payload.

    Attributes:
        payload: as it was listed.
        outcome: in a word.
        error: the store's message if it failed; else None.
    """

    payload: PayloadInfo
    outcome: RemovalOutcome
    error: str | None = None


@runtime_checkable
class DeleteUnchanged(Protocol):
    """Removes many payloads, but none that was published again since it was listed."""

    def delete_unchanged(self, payloads: Iterable[PayloadInfo]) -> Iterator[Removal]:
        """Removes the payloads whose `modified` is still as listed; yields one `Removal` for each payload.

        The check and the removal are as close together as the store can do it; a payload that is published between the
        two is lost. Payloads are taken from `payloads` in groups; a group is removed even if the caller does not take
        all its outcomes. May be repeated, for instance after a crash.

        Raises:
            ReferenceRefusedError: a path is not below the store's root.
        """


@runtime_checkable
class ListTopics(Protocol):
    """Lists the topics that have payloads, without listing the payloads."""

    def topics(self) -> Iterator[str]:
        """The name of each topic's directory below the root, in any order; a directory may be empty."""


@runtime_checkable
class Check(Protocol):
    """Can be checked before any record is read."""

    def check(self, *, writing: bool = True) -> None:
        """Verifies that the store is reachable and usable, with requests that change no payload.

        Args:
            writing: whether payloads will be published. If so, a probe is written and, if that is allowed, removed
                again. A reader may have no permission to write, and a writer none to read.

        Raises:
            PayloadStoreError: it is not; the message says what is missing.
        """


@runtime_checkable
class Lifecycle(Protocol):
    """Can delete payloads by age, without a sweep."""

    def expiry_rules(self, topic: str) -> Sequence[ExpiryRule]:
        """The rules in force that may delete payloads of the topic; the earliest decides.

        Raises:
            PayloadStoreError: they cannot be read; the message says what is missing.
        """

    def set_expiry(self, topic: str, days: int | None) -> bool:
        """Sets the age at which the project's own rule deletes payloads of the topic; None removes the rule.

        All other rules stay as they are. Returns True if something changed, as soon as the change is visible.

        Raises:
            PayloadStoreError: it could not be done.
        """


class Store(Put, Get, Check, ABC):
    """The base of the built-in stores: properties, ids, and KIP-1159's methods in terms of `put` and `get`.

    A subclass defines `KEYS`, `open` (which sets `root`), `put`, `get`, `check` and `close`.

    Attributes:
        root: the beginning of every path.
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
        """See `PayloadStore.configure`. `config` must hold keys of the store only."""
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
        return self.put(topic, self.id(data), data)

    def download(self, full_path: str) -> bytes:
        """See `PayloadStore.download`; bounded by `large.message.max.bytes`."""
        return self.get(full_path, self.max_bytes)

    def id(self, data: bytes) -> str:
        """SHA-256 of `data` in hex, or a random UUID: `large.message.id.generator`."""
        return hashlib.sha256(data).hexdigest() if self._by_digest else str(uuid.uuid4())

    @abstractmethod
    def open(self, values: Mapping[str, Value | None]) -> None:
        """Takes the checked values of the store's own keys; sets `root`."""

    @abstractmethod
    def put(self, topic: str, object_id: str, data: bytes) -> str:
        """See `Put.put`."""

    @abstractmethod
    def get(self, full_path: str, max_bytes: int) -> bytes:
        """See `Get.get`."""

    @abstractmethod
    def check(self, *, writing: bool = True, topic: str | None = None) -> None:
        """See `Check.check`; with a topic, what is allowed for its payloads decides."""

    @abstractmethod
    def close(self) -> None:
        """See `PayloadStore.close`."""


def check_topic(topic: str) -> str:
    """`topic`, if it is a legal topic name; those have the alphabet and the length of object ids.

    Raises:
        ConfigurationError: it is not.
    """
    try:
        return check_object_id(topic)
    except ValueError:
        raise ConfigurationError(
            "topic", f"found {topic!r}, allowed are 1 to 249 characters of [a-zA-Z0-9._-]"
        ) from None
