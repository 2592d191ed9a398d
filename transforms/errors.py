"""All errors of the project, grouped by what the caller can do about them.

WideloadError
├── ConfigurationError            refuse at start; the user changes the configuration
├── TransformError                this record can never succeed; `errors.tolerance` decides
│   ├── MalformedError            a field of the record is not what its format allows
│   │   ├── TooManyHeadersError   the record has more headers than are read
│   │   ├── MalformedReferenceError
│   │   ├── MalformedChunkError
│   │   └── MalformedWrapperError
│   ├── ChunkError                the record cannot be split into chunks that the output topic accepts
│   ├── DiscardedChunkError       the record is a chunk of a message that cannot be assembled
│   ├── BatchTooLargeError        the batch is too large before compression
│   ├── EncryptionError           the payload is encrypted, and no known key decrypts it
│   ├── HeaderNameError           the name of a header is not UTF-8
│   ├── KeyMissingError           the record has no key, and the output topic is compacted
│   ├── PayloadCorruptError       size or checksum of the payload differ from the reference
│   ├── PayloadTooLargeError      the payload is over `large.message.max.bytes`
│   ├── RecordTooLargeError       the record is over the output topic's `max.message.bytes`
│   ├── RecordUnfitError          the output topic refuses the record, for instance for its timestamp
│   ├── ReferenceClaimedError     the record has the headers of a reference or a chunk that its pipeline did not write
│   ├── SignatureError            the reference is not signed with a known key
│   ├── ValueTooLargeError        the value is over `large.message.max.bytes`, so readers would refuse it
│   └── WrapError                 the record has a header that a message wrapper cannot hold
├── PayloadStoreError             the store has failed; `retriable` is true if a retry may succeed
│   ├── PayloadStoreAccessError   the store refuses this caller: permission, credentials, bucket; an operator must act
│   ├── PayloadNotFoundError      there is no such payload; final
│   ├── PayloadUnfitError         the store refuses this payload, for instance for its size; final
│   ├── PayloadUnavailableError   the store is up, but has failed for this record for too long; final
│   └── ReferenceRefusedError     the reference points outside the store's root; final
├── SerializationError            raised by a client's serializer; `__cause__` is one of the above, or any other error
│   └── RecordDeserializationError    raised by its consumer, with the position of the record
└── ResourceIdentifierTooLargeError  a name is longer than Kafka accepts, today or from 5.0 on; final

Each error carries its data as attributes and builds its message from them. Each can be copied and pickled, so it can be
passed from one process to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass

__all__ = [
    "BatchTooLargeError",
    "ChunkError",
    "ConfigurationError",
    "DiscardedChunkError",
    "EncryptionError",
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
    "PayloadUnavailableError",
    "PayloadUnfitError",
    "RecordDeserializationError",
    "RecordTooLargeError",
    "RecordUnfitError",
    "ReferenceClaimedError",
    "ReferenceRefusedError",
    "ResourceIdentifierTooLargeError",
    "SerializationError",
    "SignatureError",
    "TooManyHeadersError",
    "TransformError",
    "ValueTooLargeError",
    "WideloadError",
    "WrapError",
]

_SHOWN_CHARACTERS = 200


def shown(text: str) -> str:
    """`text` for a message: quoted, and shortened in the middle if it is long.

    Paths come from records that anyone may write. They may be a megabyte long or contain control characters. A secret
    string, of a class that hides its text, is not shortened, because its parts would be ordinary strings.
    """
    if len(text) > _SHOWN_CHARACTERS and type(text) is str:
        half = _SHOWN_CHARACTERS // 2
        text = f"{text[:half]}…{text[-half:]}"
    return repr(text)


class WideloadError(Exception):
    """The root of the project's errors."""

    def __reduce__(self) -> tuple[Callable[..., WideloadError], tuple[object, ...], dict[str, object]]:
        # BaseException would call `__init__` with `args`, which do not match its parameters in every class.
        return type(self).__new__, (type(self), *self.args), self.__dict__


@dataclass(eq=False, repr=False)
class ConfigurationError(WideloadError):
    """The configuration cannot work.

    Attributes:
        key: the property that is at fault, as the user wrote it.
        reason: what was found, what is allowed, what to do.
        pipeline: the pipeline that the property belongs to; None for a property of the worker.
        more: other errors of this configuration; the text has a line for each.
    """

    key: str
    reason: str
    _: KW_ONLY
    pipeline: str | None = None
    more: tuple[ConfigurationError, ...] = ()

    def __str__(self) -> str:
        where = f"[pipeline.{self.pipeline}] " if self.pipeline else ""
        return "\n".join([f"{where}{self.key}: {self.reason}", *map(str, self.more)])

    @property
    def each(self) -> tuple[ConfigurationError, ...]:
        """This error alone, followed by each of `more`."""
        return self._with(self.pipeline, ()), *self.more

    @classmethod
    def together(cls, errors: Sequence[ConfigurationError]) -> ConfigurationError:
        """One error that reports all of these, of which there must be at least one."""
        first, *more = [each for error in errors for each in error.each]
        error = cls(first.key, first.reason, pipeline=first.pipeline, more=tuple(more))
        error.__cause__ = first.__cause__
        return error

    def of(self, pipeline: str) -> ConfigurationError:
        """This error, for a property of this pipeline."""
        more = tuple(each.of(pipeline) for each in self.more)
        return self._with(pipeline, more)

    def _with(self, pipeline: str | None, more: tuple[ConfigurationError, ...]) -> ConfigurationError:
        error = ConfigurationError(self.key, self.reason, pipeline=pipeline, more=more)
        error.__cause__ = self.__cause__
        return error


@contextmanager
def of_pipeline(name: str) -> Iterator[None]:
    """Makes each `ConfigurationError` of the block name this pipeline."""
    try:
        yield
    except ConfigurationError as exc:
        raise exc.of(name) from exc


class TransformError(WideloadError):
    """This record can never succeed, however often it is retried."""


@dataclass(eq=False, repr=False)
class MalformedError(TransformError):
    """A field of a record breaks its format.

    Attributes:
        field: the name of the header, or "value".
        found: the content of the field.
        allowed: the content that the format allows.
    """

    _WHAT = "record"

    field: str
    found: str
    allowed: str

    def __str__(self) -> str:
        return f"malformed {self._WHAT}: {self.field} is {shown(self.found)}; allowed: {self.allowed}"


class TooManyHeadersError(MalformedError):
    """A record has so many headers that their objects would fill the memory."""


class MalformedReferenceError(MalformedError):
    """The value or a header of a reference record breaks the format."""

    _WHAT = "reference"


class MalformedChunkError(MalformedError):
    """The value or a header of a chunk breaks the format."""

    _WHAT = "chunk"


class MalformedWrapperError(MalformedError):
    """A value is not a message wrapper; the fields have the names of `transforms.wrapper`."""

    _WHAT = "wrapper"


@dataclass(eq=False, repr=False)
class ChunkError(TransformError):
    """A record cannot be split into chunks.

    Attributes:
        size: bytes of its value.
        limit: the maximum size of a chunk as a batch of one.
        reason: why not.
    """

    size: int
    limit: int
    reason: str

    def __str__(self) -> str:
        return f"a value of {self.size:,} bytes cannot be split into chunks of {self.limit:,} bytes: {self.reason}"


@dataclass(eq=False, repr=False)
class DiscardedChunkError(TransformError):
    """The record is a chunk of a message that cannot be assembled.

    Attributes:
        uuid: of the message; None if it cannot be read.
        reason: one of those in `transforms.reassembly`.
        detail: a description of what was found.
    """

    uuid: str | None
    reason: str
    detail: str

    def __str__(self) -> str:
        return f"the chunked message {self.uuid or '(unnamed)'} is discarded, {self.reason}: {self.detail}"


WORKER_ALLOWS = "in.flight.bytes, or 64 MiB if that is more"
"""The maximum size, before compression, of a batch that the worker decodes."""


@dataclass(eq=False, repr=False)
class BatchTooLargeError(TransformError):
    """A compressed batch is too large to be decompressed: a megabyte may hold a gigabyte.

    Attributes:
        first: the offset of its first wanted record.
        last: the offset of its last record.
        limit: the maximum size of the records before compression.
        allowed: a description of the limit.
    """

    first: int
    last: int
    limit: int
    allowed: str = WORKER_ALLOWS

    def __str__(self) -> str:
        return (
            f"the batch of offsets {self.first} to {self.last} holds more than {self.limit:,} bytes before "
            f"compression; allowed are {self.allowed}"
        )


@dataclass(eq=False, repr=False)
class EncryptionError(TransformError):
    """A reference leads to an encrypted payload, and no known key decrypts it.

    Attributes:
        path: the path in the reference.
        reason: what is wrong, and what to do.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"reference {shown(self.path)} cannot be decrypted: {self.reason}"


@dataclass(eq=False, repr=False)
class HeaderNameError(TransformError):
    """The name of a header is not UTF-8. Kafka requires UTF-8, so clients cannot write it.

    Attributes:
        name: the name; bytes that are not UTF-8 are decoded with `surrogateescape`.
    """

    name: str

    def __str__(self) -> str:
        text = self.name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        return f"the header name {shown(text)} is not UTF-8, which Kafka requires, so clients cannot write it"


class KeyMissingError(TransformError):
    """A record has no key, and the output topic (the only argument) is compacted, so brokers refuse the record."""

    def __str__(self) -> str:
        return f"the record has no key, and topic {self.args[0]} is compacted, so it accepts only records with a key"


@dataclass(eq=False, repr=False)
class PayloadCorruptError(TransformError):
    """The payload in the store is not the value that the reference describes.

    Attributes:
        path: the full path of the payload.
        what: what differs: "size", "checksum", "compression" or "encryption".
        expected: the value in the reference.
        found: the value of the payload.
    """

    path: str
    what: str
    _: KW_ONLY
    expected: str
    found: str

    def __str__(self) -> str:
        return f"payload {shown(self.path)} is corrupt: {self.what} is {self.found}, the reference says {self.expected}"


@dataclass(eq=False, repr=False)
class PayloadTooLargeError(TransformError):
    """A payload, stored or decompressed, is over the limit.

    Attributes:
        path: the full path of the payload.
        size: its length in bytes; None if it is only known to be over the limit.
        limit: the limit in bytes.
    """

    path: str
    size: int | None
    limit: int

    def __str__(self) -> str:
        size = "over the limit of" if self.size is None else f"{self.size:,} bytes, the limit is"
        return (
            f"payload {shown(self.path)} is too large: {size} {self.limit:,} bytes; "
            "raise large.message.max.bytes to accept such payloads"
        )


@dataclass(eq=False, repr=False)
class RecordTooLargeError(TransformError):
    """A record is over the `max.message.bytes` of its output topic.

    Attributes:
        topic: the output topic.
        size: the record's size as a batch of one, in bytes.
        limit: the topic's `max.message.bytes`.
    """

    topic: str
    size: int
    limit: int

    def __str__(self) -> str:
        return (
            f"the record has {self.size:,} bytes as a batch of one, topic {self.topic} accepts {self.limit:,}; "
            f"raise max.message.bytes of topic {self.topic}"
        )


@dataclass(eq=False, repr=False)
class RecordUnfitError(TransformError):
    """A topic refuses a record for another reason than its size.

    Attributes:
        topic: the topic.
        reason: the broker's message, and what to do.
        timestamp: the record's timestamp, in milliseconds since 1970, if this is the reason; otherwise None.
    """

    topic: str
    reason: str
    timestamp: int | None = None

    def __str__(self) -> str:
        return f"topic {self.topic} refuses the record: {self.reason}"


@dataclass(eq=False, repr=False)
class ReferenceClaimedError(TransformError):
    """A record has the headers of a reference or a chunk that its pipeline did not write: anyone may have.

    Attributes:
        claim: how readers would treat it: as a reference in place of its `value` or `key`, or as a `chunk`.
    """

    claim: str

    def __str__(self) -> str:
        what, before = f"a reference in place of its {self.claim}", ""
        if self.claim == "chunk":
            what, before = "a chunk", 'put "assemble" first in transforms, or '
        return (
            f"the record has the headers of {what} that this pipeline did not write; if its producer is trusted, "
            f'{before}set offload.on.reference = "pass"'
        )


@dataclass(eq=False, repr=False)
class SignatureError(TransformError):
    """A reference is not signed, or not with a known key; no request was made.

    Attributes:
        path: the path in the reference.
        reason: what is wrong with the signature.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return (
            f"reference {shown(self.path)} is refused: {self.reason}; writers need large.message.signing.key, and "
            "readers the same key, there or in large.message.signing.previous.keys"
        )


@dataclass(eq=False, repr=False)
class ValueTooLargeError(TransformError):
    """A value is over the `large.message.max.bytes` of its writer: readers with this limit would refuse its payload.

    Attributes:
        size: bytes of the value.
        limit: the limit in bytes.
    """

    size: int
    limit: int

    def __str__(self) -> str:
        return (
            f"the value has {self.size:,} bytes, and large.message.max.bytes is {self.limit:,}: readers with this "
            "limit would refuse its payload; to accept such values, raise it here and in the readers"
        )


@dataclass(eq=False, repr=False)
class WrapError(TransformError):
    """A message wrapper cannot hold a header of the record.

    Attributes:
        header: its name.
        reason: why not.
    """

    header: str
    reason: str

    def __str__(self) -> str:
        return f"a message wrapper cannot hold the header {shown(self.header)}: {self.reason}"


class PayloadStoreError(WideloadError):
    """A request to a store has failed (KIP-1159: "PayloadStoreException").

    Attributes:
        retriable: True if a retry may succeed (throttling, 5xx, time-outs, broken connections), False if an operator
            must act first (access denied, no such bucket).
        key: the property that is probably wrong; None if the store does not report it.
        operation: the operation of the store, as metrics name it; None if it was not noted.
    """

    retriable: bool = False
    key: str | None = None
    operation: str | None = None

    def __init__(self, message: str, *, retriable: bool | None = None, key: str | None = None) -> None:
        super().__init__(message)
        if key is not None:
            self.key = key
        if retriable is not None:
            self.retriable = retriable


class PayloadStoreAccessError(PayloadStoreError):
    """The store answers, but refuses every request of this caller.

    An operator must act: grant a permission, replace the credentials, create the bucket, or make the file system
    writable. A caller that had access before may wait for this.
    """


class PayloadNotFoundError(PayloadStoreError, LookupError):
    """There is no payload at this path.

    Attributes:
        path: the full path that was requested.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"there is no payload at {shown(path)}")
        self.path = path


class PayloadUnfitError(PayloadStoreError):
    """The store refuses this payload but accepts others: it, or a proxy in front of it, limits the size."""


class PayloadUnavailableError(PayloadStoreError):
    """The store is up, but has failed for this record longer than `errors.retry.timeout` allows.

    Attributes:
        tries: how often it has failed.
        seconds: the time since the first try.
        reason: the last failure.
    """

    def __init__(self, tries: int, seconds: float, reason: str) -> None:
        super().__init__(
            f"the store is up, but has failed {tries:,} times in {seconds:,.1f} s for this record alone, longer than "
            f"errors.retry.timeout allows: {reason}"
        )
        self.tries = tries
        self.seconds = seconds
        self.reason = reason


class ReferenceRefusedError(PayloadStoreError):
    """A path is not below the store's root; no request was made.

    Attributes:
        path: the path that was refused.
        root: the required beginning of every path.
    """

    def __init__(self, path: str, root: str, reason: str = "it is not below the store's root") -> None:
        super().__init__(f"reference {shown(path)} is refused: {reason} {shown(root)}")
        self.path = path
        self.root = root


@dataclass(eq=False, repr=False)
class SerializationError(WideloadError):
    """A key or a value cannot be serialized or deserialized (KIP-1159: "as SerializationException to client").

    `__cause__` is the reason: a `PayloadNotFoundError` if the payload is gone, another `PayloadStoreError` if the store
    failed, a `TransformError` if the payload differs from the reference, or the error of another serializer.

    Attributes:
        topic: the topic of the record.
        field: `key` or `value`.
        reason: what happened, and in which serializer of the list.
        deserializing: True if the record was being read.
        partition: the partition of the record that was read; None if the client did not report it.
        offset: its offset, or None as well.
    """

    topic: str
    field: str
    reason: str
    _: KW_ONLY
    deserializing: bool = False
    partition: int | None = None
    offset: int | None = None

    def __reduce__(self) -> tuple[Callable[..., WideloadError], tuple[object, ...], dict[str, object]]:
        make, arguments, state = super().__reduce__()
        # `retriable` needs the cause. The error of an application's serializer may have a class that cannot be pickled.
        cause = {"__cause__": self.__cause__} if isinstance(self.__cause__, WideloadError) else {}
        return make, arguments, {**state, **cause}

    @property
    def retriable(self) -> bool:
        """Whether this record may succeed later: the cause is a temporary error of the store."""
        return isinstance(self.__cause__, PayloadStoreError) and self.__cause__.retriable

    def __str__(self) -> str:
        where = "" if self.partition is None else f" partition {self.partition} offset {self.offset}"
        what = "deserialized" if self.deserializing else "serialized"
        return f"the {self.field} of a record of topic {self.topic}{where} cannot be {what}: {self.reason}"

    def at(self, partition: int, offset: int) -> RecordDeserializationError:
        """This error with the coordinates of the record that was read; raise it from the cause of this error."""
        return RecordDeserializationError(self.topic, self.field, self.reason, partition=partition, offset=offset)


@dataclass(eq=False, repr=False)
class RecordDeserializationError(SerializationError):
    """A key or a value that a consumer has read cannot be deserialized, like Kafka's exception of this name.

    To skip the record, seek to `offset + 1`.

    Attributes:
        partition: the partition of the record.
        offset: its offset.
    """

    _: KW_ONLY
    deserializing: bool = True
    partition: int
    offset: int


@dataclass(eq=False, repr=False)
class ResourceIdentifierTooLargeError(WideloadError):
    """A name is longer than its kind allows (KIP-1233: "ResourceIdentifierTooLargeException … is not retriable").

    Attributes:
        kind: a key of `transforms.identifiers.IDENTIFIERS`, such as `group-id`.
        length: of the name, in `unit`.
        limit: the longest allowed length.
        unit: `characters` or `bytes`.
        retriable: always False.
    """

    retriable = False

    kind: str
    length: int
    limit: int
    unit: str = "characters"

    def __str__(self) -> str:
        return f"the {self.kind} has {self.length:,} {self.unit}, the limit is {self.limit:,}"
