"""Every error: its message, its data, its place in the tree."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable

import pytest

from transforms import errors
from transforms.errors import (
    ConfigurationError,
    DiscardedChunkError,
    HeaderNameError,
    KeyMissingError,
    MalformedReferenceError,
    PayloadCorruptError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadTooLargeError,
    PayloadUnavailableError,
    RecordDeserializationError,
    RecordTooLargeError,
    ReferenceClaimedError,
    ReferenceRefusedError,
    ResourceIdentifierTooLargeError,
    SerializationError,
    SignatureError,
    TransformError,
    ValueTooLargeError,
    WideloadError,
    of_pipeline,
    shown,
)

PATH = "s3://bucket/orders/id"

MESSAGES: list[tuple[WideloadError, str]] = [
    (
        ConfigurationError("s3.bucket", "is missing"),
        "s3.bucket: is missing",
    ),
    (
        ConfigurationError("s3.bucket", "is missing", pipeline="orders"),
        "[pipeline.orders] s3.bucket: is missing",
    ),
    (
        DiscardedChunkError("u-1", "out-of-order", "chunk 2 arrived, expected 1"),
        "the chunked message u-1 is discarded, out-of-order: chunk 2 arrived, expected 1",
    ),
    (
        DiscardedChunkError(None, "malformed", "count is absent"),
        "the chunked message (unnamed) is discarded, malformed: count is absent",
    ),
    (
        MalformedReferenceError("large-message.size", "-1", "a decimal number of bytes"),
        "malformed reference: large-message.size is '-1'; allowed: a decimal number of bytes",
    ),
    (
        PayloadCorruptError(PATH, "size", expected="3 bytes", found="4 bytes"),
        "payload 's3://bucket/orders/id' is corrupt: size is 4 bytes, the reference says 3 bytes",
    ),
    (
        PayloadTooLargeError(PATH, 1_048_577, 1_048_576),
        (
            "payload 's3://bucket/orders/id' is too large: 1,048,577 bytes, the limit is 1,048,576 bytes; "
            "raise large.message.max.bytes to accept such payloads"
        ),
    ),
    (
        PayloadTooLargeError(PATH, None, 1_048_576),
        (
            "payload 's3://bucket/orders/id' is too large: over the limit of 1,048,576 bytes; "
            "raise large.message.max.bytes to accept such payloads"
        ),
    ),
    (
        KeyMissingError("orders"),
        "the record has no key, and topic orders is compacted, so it accepts only records with a key",
    ),
    (
        ValueTooLargeError(1_048_577, 1_048_576),
        (
            "the value has 1,048,577 bytes, and large.message.max.bytes is 1,048,576: readers with this limit would "
            "refuse its payload; to accept such values, raise it here and in the readers"
        ),
    ),
    (
        RecordTooLargeError("orders", 1_048_589, 1_048_588),
        (
            "the record has 1,048,589 bytes as a batch of one, topic orders accepts 1,048,588; "
            "raise max.message.bytes of topic orders"
        ),
    ),
    (
        PayloadStoreError("no such bucket"),
        "no such bucket",
    ),
    (
        PayloadStoreError("503 Slow Down", retriable=True),
        "503 Slow Down",
    ),
    (
        PayloadNotFoundError(PATH),
        "there is no payload at 's3://bucket/orders/id'",
    ),
    (
        ReferenceRefusedError("file:///etc/passwd", "file:///data"),
        "reference 'file:///etc/passwd' is refused: it is not below the store's root 'file:///data'",
    ),
    (
        ReferenceRefusedError("file:///data/../x", "file:///data", "'..' leads out of"),
        "reference 'file:///data/../x' is refused: '..' leads out of 'file:///data'",
    ),
    (
        HeaderNameError("a\udcff"),
        "the header name 'a\\\\xff' is not UTF-8, which Kafka requires, so clients cannot write it",
    ),
    (
        ReferenceClaimedError("value"),
        (
            "the record has the headers of a reference in place of its value that this pipeline did not write; "
            'if its producer is trusted, set offload.on.reference = "pass"'
        ),
    ),
    (
        ReferenceClaimedError("chunk"),
        (
            "the record has the headers of a chunk that this pipeline did not write; if its producer is trusted, "
            'put "assemble" first in transforms, or set offload.on.reference = "pass"'
        ),
    ),
    (
        SignatureError(PATH, "it has none"),
        (
            "reference 's3://bucket/orders/id' is refused: it has none; writers need large.message.signing.key, and "
            "readers the same key, there or in large.message.signing.previous.keys"
        ),
    ),
    (
        PayloadUnavailableError(1_000, 1_234.56, "503 Slow Down"),
        (
            "the store is up, but has failed 1,000 times in 1,234.6 s for this record alone, longer than "
            "errors.retry.timeout allows: 503 Slow Down"
        ),
    ),
    (
        SerializationError("orders", "key", "the store is down"),
        "the key of a record of topic orders cannot be serialized: the store is down",
    ),
    (
        SerializationError("orders", "value", "the store is down", deserializing=True),
        "the value of a record of topic orders cannot be deserialized: the store is down",
    ),
    (
        SerializationError("orders", "value", "the store is down", deserializing=True).at(3, 7),
        "the value of a record of topic orders partition 3 offset 7 cannot be deserialized: the store is down",
    ),
    (
        ResourceIdentifierTooLargeError("group-id", 32_768, 249),
        "the group-id has 32,768 characters, the limit is 249",
    ),
    (
        ResourceIdentifierTooLargeError("offset-metadata", 4_097, 4_096, "bytes"),
        "the offset-metadata has 4,097 bytes, the limit is 4,096",
    ),
]


def pickled(error: WideloadError) -> object:
    """What another process gets of the error."""
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes


@pytest.mark.parametrize(("error", "message"), MESSAGES)
def test_error_message(error: WideloadError, message: str) -> None:
    """Each error says what, where, what was found and what is allowed, in this one line."""
    assert str(error) == message


@pytest.mark.parametrize("error", [error for error, _ in MESSAGES])
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
def test_error_survives(error: WideloadError, again: Callable[[WideloadError], object]) -> None:
    """Each error can be copied and pickled, so an executor can hand it to its driver; nothing of it is lost."""
    error.add_note("partition 0, offset 7")
    same = again(error)
    assert type(same) is type(error)
    assert str(same) == str(error)
    assert same.__dict__ == error.__dict__


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
def test_serialization_error_survives_with_its_cause(again: Callable[[WideloadError], object]) -> None:
    """Who gets it from another process can still tell a store that is down from a payload that is gone."""
    error = SerializationError("orders", "value", "the store is down", deserializing=True).at(3, 7)
    error.__cause__ = PayloadStoreError("503 Slow Down", retriable=True)
    same = again(error)
    assert isinstance(same, RecordDeserializationError)
    assert str(same) == str(error)
    assert (same.partition, same.offset, same.retriable) == (3, 7, True)
    assert str(same.__cause__) == "503 Slow Down"


def test_serialization_error_survives_a_cause_that_does_not() -> None:
    """What a stage raised may be of any class, also one that cannot be pickled."""

    class Local(Exception):  # noqa: N818
        pass

    error = SerializationError("orders", "value", "item 1, raised Local")
    error.__cause__ = Local()
    assert str(pickled(error)) == str(error)


@pytest.mark.parametrize("text", ["", "s3://bucket/orders/id", "größe", "x" * 200])
def test_shown_short(text: str) -> None:
    """A text of up to 200 characters is shown whole, in quotes."""
    assert shown(text) == f"'{text}'"


def test_shown_long() -> None:
    """A longer text is cut in its middle."""
    assert shown("a" * 100 + "b" + "c" * 100) == "'" + "a" * 100 + "…" + "c" * 100 + "'"
    assert len(shown("x" * 1_000_000)) == 203


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\tb", "\x1b[2J", "\0", "\u202e", "\udc80", "\u2028"])
def test_shown_control_characters(text: str) -> None:
    """What would break a line, drive a terminal or not encode is shown as an escape."""
    assert shown(text).isprintable()
    assert shown(text).encode()


@pytest.mark.parametrize(
    "error",
    [
        MalformedReferenceError("value", "x\n" * 1_000_000, "a path"),
        PayloadCorruptError("x\n" * 1_000_000, "size", expected="1", found="2"),
        PayloadTooLargeError("x\n" * 1_000_000, 2, 1),
        PayloadNotFoundError("x\n" * 1_000_000),
        ReferenceRefusedError("x\n" * 1_000_000, "s3://bucket/"),
    ],
)
def test_error_message_short(error: WideloadError) -> None:
    """A path of two megabytes with line feeds makes a message of one short line, and is whole in the attribute."""
    assert len(str(error)) < 500
    assert str(error).isprintable()
    assert "x\n" * 1_000_000 in error.__dict__.values()


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (PayloadStoreError("x"), False),
        (PayloadStoreError("x", retriable=False), False),
        (PayloadStoreError("x", retriable=True), True),
        (PayloadNotFoundError(PATH), False),
        (ReferenceRefusedError(PATH, PATH), False),
    ],
)
def test_store_error_retriable(error: PayloadStoreError, *, retriable: bool) -> None:
    """A store's error says whether to try again; what is missing or refused stays so."""
    assert error.retriable is retriable
    assert PayloadStoreError.retriable is False


def test_store_errors_have_their_data() -> None:
    """Paths are whole, whatever the message shows of them; the key that is wrong is known where the store names it."""
    assert (PayloadStoreError("x").key, PayloadStoreError("x", key="s3.bucket").key) == (None, "s3.bucket")
    assert vars(PayloadNotFoundError(PATH)) == {"path": PATH}
    assert vars(ReferenceRefusedError(PATH, "s3://other/")) == {"path": PATH, "root": "s3://other/"}
    assert vars(PayloadUnavailableError(3, 0.5, "503")) == {"tries": 3, "seconds": 0.5, "reason": "503"}


def test_not_found_is_a_lookup_error() -> None:
    """Code that knows nothing of ours can catch a missing payload as a LookupError."""
    with pytest.raises(LookupError, match="there is no payload at"):
        raise PayloadNotFoundError(PATH)


def test_configuration_error_of_pipeline() -> None:
    """A configuration error of a key becomes the same error said of one pipeline."""
    with pytest.raises(ConfigurationError) as caught, of_pipeline("orders"):
        raise ConfigurationError("s3.bucket", "is missing")
    error = caught.value
    assert (error.key, error.reason, error.pipeline) == ("s3.bucket", "is missing", "orders")
    assert str(error) == "[pipeline.orders] s3.bucket: is missing"


def test_transform_errors_are_not_store_errors() -> None:
    """What no retry can mend is told from what the store could not do."""
    assert not issubclass(TransformError, PayloadStoreError)
    assert not issubclass(PayloadStoreError, TransformError)


def test_tree_is_that_of_the_docstring() -> None:
    """The tree in the module's docstring is that of the classes, whole and in order."""
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([│ ]*(?:[├└]── )?)(\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            drawn[found[2]] = above[depth - 1] if depth else "Exception"
    classes = {
        name: value.__bases__[0].__name__
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert drawn == classes
    assert list(drawn) == list(classes)
    assert sorted(drawn) == errors.__all__
