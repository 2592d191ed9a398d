"""The keys themselves: each explains itself, and is Kafka's where its name is Kafka's."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS, SECURITY_KEYS
from app.config.secret import Secret
from app.config.settings import PIPELINE_KEYS, WORKER_KEYS
from stores.keys import REQUIRED, Key, Value, read
from stores.registry import STORE_NAMES, store_keys
from stores.store import COMMON_KEYS
from transforms.errors import ConfigurationError

STORE_KEYS = [key for name in STORE_NAMES for key in store_keys(name) or ()]
ALL_KEYS = [*WORKER_KEYS, *PIPELINE_KEYS, *CONSUMER_KEYS, *PRODUCER_KEYS, *COMMON_KEYS, *STORE_KEYS]

# Apache Kafka 4.1: ConsumerConfig, ProducerConfig, CommonClientConfigs, SaslConfigs, SslConfigs; Connect's
# WorkerConfig, ConnectorConfig, SinkConnectorConfig.
KAFKA: dict[str, Value | None] = {
    "auto.offset.reset": "latest",
    "check.crcs": True,
    "fetch.max.bytes": 52_428_800,
    "fetch.max.wait.ms": 500,
    "fetch.min.bytes": 1,
    "group.instance.id": None,
    "heartbeat.interval.ms": 3_000,
    "isolation.level": "read_uncommitted",
    "max.partition.fetch.bytes": 1_048_576,
    "max.poll.interval.ms": 300_000,
    "max.poll.records": 500,
    "metadata.max.age.ms": 300_000,
    "request.timeout.ms": 30_000,
    "retry.backoff.ms": 100,
    "session.timeout.ms": 45_000,
    "acks": "all",
    "batch.size": 16_384,
    "compression.type": "none",
    "delivery.timeout.ms": 120_000,
    "linger.ms": 5,
    "security.protocol": "PLAINTEXT",
    "sasl.mechanism": "GSSAPI",
    "ssl.endpoint.identification.algorithm": "https",
    "ssl.key.password": None,
    "task.shutdown.graceful.timeout.ms": 5_000,
    "offset.flush.interval.ms": 60_000,
    "errors.tolerance": "none",
    "errors.retry.delay.max.ms": 60_000,
    "errors.deadletterqueue.context.headers.enable": False,
    "topic.creation.enable": True,
}


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda key: key.name)
def test_default_is_one_that_may_stand_in_the_file(key: Key) -> None:
    """What the reference page gives as default can be written out, and means the same."""
    if key.default is not None and key.default is not REQUIRED:
        assert key.check(key.default) == key.default
    else:
        assert not key.allowed or "not set" in key.doc, "without a default, the doc says what holds then"


@pytest.mark.parametrize("key", ALL_KEYS, ids=lambda key: key.name)
def test_doc_is_whole_sentences(key: Key) -> None:
    """Every key explains itself: a capital or a quoted value first, a full stop last, no line breaks."""
    assert re.fullmatch(r"[A-Z`][^\n]{8,}\.", key.doc)


@pytest.mark.parametrize(
    "key", [key for key in ALL_KEYS if key.kind in ("int", "bytes", "float")], ids=lambda key: key.name
)
def test_number_has_a_least_value(key: Key) -> None:
    """No number may be negative by accident, and the one below the least is refused."""
    assert key.minimum is not None
    with pytest.raises(ConfigurationError, match=r"or more|\d to \d"):
        key.check(int(key.minimum) - 1)
    assert key.check(int(key.minimum)) == key.minimum


@pytest.mark.parametrize("key", [key for key in ALL_KEYS if key.maximum is not None], ids=lambda key: key.name)
def test_number_has_a_greatest_value(key: Key) -> None:
    """What Kafka's protocol has no room for is refused at start, not by an exception while it runs."""
    assert key.maximum is not None
    assert key.check(int(key.maximum)) == key.maximum
    with pytest.raises(ConfigurationError, match=f"allowed is .* {key.maximum:,}"):
        key.check(int(key.maximum) + 1)


@pytest.mark.parametrize("key", [*CONSUMER_KEYS, *PRODUCER_KEYS], ids=lambda key: key.name)
def test_number_of_a_client_fits_the_protocol(key: Key) -> None:
    """The clients send these as 32 bits."""
    assert key.kind not in ("int", "bytes") or key.maximum == 2**31 - 1


@pytest.mark.parametrize("name", KAFKA)
def test_default_is_kafkas_or_the_doc_says_why(name: str) -> None:
    """A user who knows Kafka finds its defaults, or a sentence that names Kafka's and the reason."""
    keys = [key for key in ALL_KEYS if key.name.removeprefix("consumer.").removeprefix("producer.") == name]
    assert keys
    for key in keys:
        if key.default != KAFKA[name]:
            assert re.search(r"(Kafka|Connect)'s", key.doc), key.name


def test_names_are_unique_and_dotted() -> None:
    """Nothing is defined twice; names are lower-case words with dots, as Kafka's are."""
    counts = Counter(key.name for key in ALL_KEYS)
    assert [name for name, count in counts.items() if count > 1] == []
    assert [name for name in counts if not re.fullmatch(r"[a-z0-9]+(\.[a-z0-9]+)*", name)] == []


def test_names_are_no_tables_of_others() -> None:
    """No key is the beginning of another one: TOML would take it for a table, and refuse the two beside each other."""
    with_quotes = {"large.message.root", "s3.sse"}  # need quotes beside the keys that begin with them
    names = {key.name for key in ALL_KEYS} - with_quotes
    assert [name for name in names for other in names if other.startswith(f"{name}.")] == []


def test_passwords_are_secret() -> None:
    """Whatever is called password, secret or token does not print."""
    told = [key.name for key in ALL_KEYS if re.search("password|secret$|token$", key.name) and not key.secret]
    assert told == []
    assert [key.name for key in SECURITY_KEYS if key.secret] == [
        "sasl.password",
        "sasl.oauthbearer.client.credentials.client.secret",
        "ssl.key.password",
    ]


def test_read_fills_in_defaults_and_leaves_other_keys() -> None:
    """`read` gives a value for each key, and none for what it does not know."""
    keys = [Key("a", "int", "A.", default=1), Key("b", "string", "B.")]
    assert read(keys, {"a": 2, "c": 3}) == {"a": 2, "b": None}
    assert read(keys, {}) == {"a": 1, "b": None}


SIZE = Key("a.bytes", "bytes", "A.", minimum=0, maximum=2**31)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1KB", 1_000),
        ("1kB", 1_000),
        ("1MB", 1_000_000),
        ("2GB", 2_000_000_000),
        ("64KiB", 65_536),
        ("1 MiB", 1_048_576),
        ("2GiB", 2**31),
        ("1.5KiB", 1_536),
        ("0.001KB", 1),
        (" 1MB ", 1_000_000),
    ],
)
def test_size_is_a_text_with_a_unit(text: str, size: int) -> None:
    """Decimal and binary units, from a file and from a map of strings alike."""
    assert (SIZE.check(text), SIZE.coerce(text), SIZE.check(size)) == (size, size, size)
    assert (SIZE.coerce(str(size)), SIZE.coerce(Secret(text))) == (size, size)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ("1 megabyte", "'1 megabyte'"),
        ("1mb", "'1mb'"),
        ("1Mb", "'1Mb'"),
        ("1M", "'1M'"),
        ("-1MB", "'-1MB'"),
        ("1e6", "'1e6'"),
        ("1000000", "'1000000'"),
        ("MB", "'MB'"),
        ("", "''"),
        ("0.0001KB", "'0.0001KB'"),
        ("\u0661MB", "'\u0661MB'"),
        (1e6, "1000000.0"),
        (True, "true"),
        (Secret("1 megabyte"), "***"),
    ],
)
def test_size_of_another_form_is_refused(found: object, told: str) -> None:
    """The message shows the form that is allowed."""
    with pytest.raises(ConfigurationError) as refused:
        SIZE.check(found)
    assert str(refused.value) == (
        f'a.bytes: found {told}, allowed is a number of bytes, or a text such as "1MB" or "64KiB"'
    )


def test_size_has_limits() -> None:
    """A text is as limited as a number, and is told as it was written."""
    with pytest.raises(ConfigurationError, match=r"^a\.bytes: found '3GiB', allowed is 0 to 2,147,483,648$"):
        SIZE.check("3GiB")


def test_only_sizes_take_units() -> None:
    """Every key that counts bytes takes a unit, but those that clients of other projects read too; no time does."""
    assert {key.name for key in ALL_KEYS if key.kind == "bytes"} == {
        key.name for key in ALL_KEYS if key.name.endswith("bytes") or key.name == "producer.batch.size"
    }
    with pytest.raises(ConfigurationError, match="allowed is a value of type int"):
        Key("a.ms", "int", "A.").check("1KB")
