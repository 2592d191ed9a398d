"""Every error of the project, grouped by what the caller can do about it.

WideloadError
├── ConfigurationError            refuse at start; the user changes the configuration
├── TransformError                this record can never succeed; `errors.tolerance` decides
│   ├── MalformedError            a field of the record is not what its format allows
│   │   ├── MalformedReferenceError
│   │   ├── MalformedChunkError
│   │   └── MalformedWrapperError
│   ├── ChunkError                the record cannot be split into chunks that the sink topic takes
│   ├── DiscardedChunkError       the record is a chunk that did not become a message with others
│   ├── HeaderNameError           the name of a header is not UTF-8
│   ├── KeyMissingError           the record has no key, and the sink topic is compacted
│   ├── PayloadCorruptError       size or checksum of the payload differ from the reference
│   ├── PayloadTooLargeError      the payload is over `large.message.max.bytes`
│   ├── RecordTooLargeError       the record is over what the sink topic takes
│   ├── RecordUnfitError          the sink topic does not take the record, such as for its timestamp
│   ├── SignatureError            the reference is not signed with a key that is known
│   └── WrapError                 the record has a header that a message wrapper cannot hold
├── PayloadStoreError             the store; `retriable` says whether to try again
│   ├── PayloadStoreAccessError   the store lets nobody in: permission, credentials, bucket; somebody must act
│   ├── PayloadNotFoundError      there is no such payload; final
│   ├── PayloadUnfitError         the store does not take this payload, such as for its size; final
│   └── ReferenceRefusedError     the reference points outside the store's root; final
├── SerializationError            what a client's serializer raises; `__cause__` is one of the above, or a stage's own
└── ResourceIdentifierTooLargeError  a name is longer than Kafka takes, or will take; final

Each carries its data as attributes and builds its message from them. Each can be copied and pickled, so it may cross
from one process to another.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = [
    "ChunkError",
    "ConfigurationError",
    "DiscardedChunkError",
    "HeaderNameError",
    "KeyMissingError",
    "MalformedChunkError",
    "MalformedError",
    "MalformedReferenceError",
    "MalformedWrapperError",
    "PayloadCorruptError",
    "PayloadNotFoundError",
    "PayloadStoreAccessError",
    "PayloadStoreError",
    "PayloadTooLargeError",
    "PayloadUnfitError",
    "RecordTooLargeError",
    "RecordUnfitError",
    "ReferenceRefusedError",
    "ResourceIdentifierTooLargeError",
    "SerializationError",
    "SignatureError",
    "TransformError",
    "WideloadError",
    "WrapError",
]

_SHOWN_CHARACTERS = 200


def shown(text: str) -> str:
    """`text` as it may stand in a message: quoted, and cut in the middle when it is long.

    Paths come from records that anyone may write, and may be a megabyte long or hold control characters. A string of a
    class that does not show itself is not cut, as what is left of it would be a string that does.
    """
    if len(text) > _SHOWN_CHARACTERS and type(text) is str:
        half = _SHOWN_CHARACTERS // 2
        text = f"{text[:half]}…{text[-half:]}"
    return repr(text)


class WideloadError(Exception):
    """The root of the project's errors."""

    def __reduce__(self) -> tuple[Callable[..., WideloadError], tuple[object, ...], dict[str, object]]:
        # BaseException would call `__init__` with `args`, which are not its parameters in every class.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class ConfigurationError(WideloadError):
    """The configuration cannot work.

    Attributes:
        key: the key of the configuration that is at fault, as the user wrote it.
        reason: what was found, what is allowed, what to do.
        pipeline: the pipeline that the key belongs to; None for a key of the worker.
    """

    def __init__(self, key: str, reason: str, *, pipeline: str | None = None) -> None:
        super().__init__(key, reason, pipeline)
        self.key = key
        self.reason = reason
        self.pipeline = pipeline

    def __str__(self) -> str:
        where = f"[pipeline.{self.pipeline}] " if self.pipeline else ""
        return f"{where}{self.key}: {self.reason}"

    def within(self, pipeline: str) -> ConfigurationError:
        """The same error, said of one pipeline."""
        return ConfigurationError(self.key, self.reason, pipeline=pipeline)


class TransformError(WideloadError):
    """This record can never succeed, however often it is tried."""


class MalformedError(TransformError):
    """A field of a record is not what a format allows.

    Attributes:
        field: the header, or "value".
        found: what stood there.
        allowed: what may stand there.
    """

    _WHAT = "record"

    def __init__(self, field: str, found: str, allowed: str) -> None:
        super().__init__(field, found, allowed)
        self.field = field
        self.found = found
        self.allowed = allowed

    def __str__(self) -> str:
        return f"malformed {self._WHAT}: {self.field} is {shown(self.found)}; allowed: {self.allowed}"


class MalformedReferenceError(MalformedError):
    """The value or a header of a reference record is not what the format allows."""

    _WHAT = "reference"


class MalformedChunkError(MalformedError):
    """The value or a header of a chunk is not what the format allows."""

    _WHAT = "chunk"


class MalformedWrapperError(MalformedError):
    """A value is not a message wrapper; the fields have the names of `transforms.wrapper`."""

    _WHAT = "wrapper"


class ChunkError(TransformError):
    """A record cannot be split into chunks.

    Attributes:
        size: bytes of its value.
        limit: the most bytes that a chunk may take as a batch of one.
        reason: what is in the way.
    """

    def __init__(self, size: int, limit: int, reason: str) -> None:
        super().__init__(size, limit, reason)
        self.size = size
        self.limit = limit
        self.reason = reason

    def __str__(self) -> str:
        return f"a value of {self.size:,} bytes cannot go as chunks of {self.limit:,} bytes: {self.reason}"


class DiscardedChunkError(TransformError):
    """The record is a chunk of a message that will not be whole.

    Attributes:
        uuid: the message's; None where the chunk does not say.
        reason: as `transforms.assembly` has them.
        detail: what was found.
    """

    def __init__(self, uuid: str | None, reason: str, detail: str) -> None:
        super().__init__(uuid, reason, detail)
        self.uuid = uuid
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"the chunked message {self.uuid or '(unnamed)'} is discarded, {self.reason}: {self.detail}"


class HeaderNameError(TransformError):
    """The name of a header is not UTF-8, as Kafka wants it, so that clients cannot write it.

    Attributes:
        name: with the bytes that are not UTF-8 as `surrogateescape` has them.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        text = self.name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        return f"the name of a header, {shown(text)}, is not UTF-8, as Kafka wants it, and clients cannot write it"


class KeyMissingError(TransformError):
    """A record has no key, and the sink topic, the only argument, is compacted: brokers refuse it there."""

    def __str__(self) -> str:
        return f"the record has no key, and topic {self.args[0]} is compacted: it takes none without"


class PayloadCorruptError(TransformError):
    """The payload in the store is not the value that the reference describes.

    Attributes:
        path: the full path of the payload.
        what: what differs: "size", "checksum" or "compression".
        expected: what the reference says.
        found: what the payload has.
    """

    def __init__(self, path: str, what: str, *, expected: str, found: str) -> None:
        super().__init__(path, what, expected, found)
        self.path = path
        self.what = what
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"payload {shown(self.path)} is corrupt: {self.what} is {self.found}, the reference says {self.expected}"


class PayloadTooLargeError(TransformError):
    """A payload, stored or decompressed, is over the limit.

    Attributes:
        path: the full path of the payload.
        size: its length in bytes; None where it is only known to be over the limit.
        limit: the limit in bytes.
    """

    def __init__(self, path: str, size: int | None, limit: int) -> None:
        super().__init__(path, size, limit)
        self.path = path
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        size = "more" if self.size is None else f"{self.size:,} bytes"
        return (
            f"payload {shown(self.path)} is too large: {size}, the limit is {self.limit:,} bytes; "
            "raise large.message.max.bytes if such payloads are meant to pass"
        )


class RecordTooLargeError(TransformError):
    """A record is over the `max.message.bytes` of the topic that it should go to.

    Attributes:
        topic: the sink topic.
        size: the record's size as a batch of one, in bytes.
        limit: the topic's `max.message.bytes`.
    """

    def __init__(self, topic: str, size: int, limit: int) -> None:
        super().__init__(topic, size, limit)
        self.topic = topic
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the record takes {self.size:,} bytes as a batch of one, topic {self.topic} takes {self.limit:,}; "
            f"raise max.message.bytes of topic {self.topic}"
        )


class RecordUnfitError(TransformError):
    """A topic does not take a record, whatever its size.

    Attributes:
        topic: the topic.
        reason: what the broker says, and what would help.
        timestamp: of the record that a broker has refused for it, in milliseconds since 1970; None where none has.
    """

    def __init__(self, topic: str, reason: str, timestamp: int | None = None) -> None:
        super().__init__(topic, reason, timestamp)
        self.topic = topic
        self.reason = reason
        self.timestamp = timestamp

    def __str__(self) -> str:
        return f"topic {self.topic} refuses the record: {self.reason}"


class SignatureError(TransformError):
    """A reference is not signed, or not with a key that is known here; nothing was requested.

    Attributes:
        path: where it points to.
        reason: what is wrong with the signature.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"reference {shown(self.path)} is refused: {self.reason}; whoever writes references needs "
            "large.message.signing.key, and its readers the same, or large.message.signing.previous.keys"
        )


class WrapError(TransformError):
    """A message wrapper cannot hold a header of the record.

    Attributes:
        header: its name.
        reason: what is in the way.
    """

    def __init__(self, header: str, reason: str) -> None:
        super().__init__(header, reason)
        self.header = header
        self.reason = reason

    def __str__(self) -> str:
        return f"a message wrapper cannot hold the header {shown(self.header)}: {self.reason}"


class PayloadStoreError(WideloadError):
    """A store could not do what it was asked to (seed 000, "PayloadStoreException").

    Attributes:
        retriable: True for what may pass by itself (throttling, 5xx, time-outs, connections cut), False for what
            stays as it is until somebody acts (access denied, no such bucket).
    """

    retriable: bool = False

    def __init__(self, message: str, *, retriable: bool | None = None) -> None:
        super().__init__(message)
        if retriable is not None:
            self.retriable = retriable


class PayloadStoreAccessError(PayloadStoreError):
    """The store is there, and does not do what it is asked for by this caller, whatever the payload.

    It takes somebody to act: to give a permission, other keys, to make the bucket, or the file system writable. Who has
    been let in before may wait for that.
    """


class PayloadNotFoundError(PayloadStoreError, LookupError):
    """There is no payload at this path.

    Attributes:
        path: the full path that was asked for.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no payload at {shown(path)}")
        self.path = path


class PayloadUnfitError(PayloadStoreError):
    """The store does not take this payload, and takes others: it, or a server before it, takes no more at once."""


class ReferenceRefusedError(PayloadStoreError):
    """A path is not below the store's own root; nothing was requested.

    Attributes:
        path: the path that was refused.
        root: what a path must begin with.
    """

    def __init__(self, path: str, root: str, reason: str = "it is not below the store's root") -> None:
        super().__init__(f"reference {shown(path)} is refused: {reason} {shown(root)}")
        self.path = path
        self.root = root


class SerializationError(WideloadError):
    """A key or a value cannot be serialized or deserialized (seed 000: "as SerializationException to client").

    `__cause__` is what happened: a `PayloadNotFoundError` where the payload is gone, another `PayloadStoreError` where
    the store failed, a `TransformError` where the payload is not what the reference says, or what a stage raised.

    Attributes:
        topic: the topic of the record.
        field: `key` or `value`.
        reason: what happened, and in which stage.
        deserializing: whether the record was being read.
        partition: the partition of the record that was read; None where the client did not say.
        offset: its offset; None likewise.
    """

    def __init__(
        self,
        topic: str,
        field: str,
        reason: str,
        *,
        deserializing: bool = False,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(topic, field, reason)
        self.topic = topic
        self.field = field
        self.reason = reason
        self.deserializing = deserializing
        self.partition = partition
        self.offset = offset

    def __reduce__(self) -> tuple[Callable[..., WideloadError], tuple[object, ...], dict[str, object]]:
        make, arguments, state = super().__reduce__()
        # `retriable` is the cause's. What a stage of the application raised may be of a class that cannot be pickled.
        cause = {"__cause__": self.__cause__} if isinstance(self.__cause__, WideloadError) else {}
        return make, arguments, {**state, **cause}

    @property
    def retriable(self) -> bool:
        """Whether the same record may succeed later: the store was the reason, and what it met may pass."""
        return isinstance(self.__cause__, PayloadStoreError) and self.__cause__.retriable

    def __str__(self) -> str:
        where = "" if self.partition is None else f" partition {self.partition} offset {self.offset}"
        what = "deserialized" if self.deserializing else "serialized"
        return f"the {self.field} of a record of topic {self.topic}{where} cannot be {what}: {self.reason}"

    def at(self, partition: int, offset: int) -> SerializationError:
        """The same error with the coordinates of the record; to be raised from the same cause."""
        return SerializationError(
            self.topic,
            self.field,
            self.reason,
            deserializing=self.deserializing,
            partition=partition,
            offset=offset,
        )


class ResourceIdentifierTooLargeError(WideloadError):
    """A name is longer than its kind allows (seed 003: "ResourceIdentifierTooLargeException … is not retriable").

    Attributes:
        kind: what is named, as `transforms.identifiers.IDENTIFIERS` has it: `group-id`.
        length: how long the name is, in `unit`.
        limit: how long it may be.
        unit: `characters` or `bytes`.
        retriable: False: the same name is always as long.
    """

    retriable = False

    def __init__(self, kind: str, length: int, limit: int, unit: str = "characters") -> None:
        super().__init__(kind, length, limit, unit)
        self.kind = kind
        self.length = length
        self.limit = limit
        self.unit = unit

    def __str__(self) -> str:
        return f"the {self.kind} has {self.length:,} {self.unit}, the limit is {self.limit:,}"
