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


def test_keys_explain_themselves() -> None:
    """In whole sentences; a default can be written out, and without one the doc says what holds then."""
    for key in ALL_KEYS:
        assert re.fullmatch(r"[A-Z`][^\n]{8,}\.", key.doc), key.name
        if key.default is not None and key.default is not REQUIRED:
            assert key.check(key.default) == key.default, key.name
        else:
            assert not key.allowed or re.search("not set|Default: ", key.doc), key.name


def test_numbers_have_limits() -> None:
    """None is negative by accident; those of clients fit the protocol's 32 bits. What is beyond is refused at start."""
    numbers = [key for key in ALL_KEYS if key.kind in ("int", "bytes", "float")]
    assert [key.name for key in numbers if key.minimum is None] == []
    clients = [key for key in numbers if key in (*CONSUMER_KEYS, *PRODUCER_KEYS)]
    assert {key.maximum for key in clients} == {2**31 - 1}
    for key in numbers:
        for limit, step in ((key.minimum, -1), (key.maximum, 1)):
            if limit is not None:
                assert key.check(int(limit)) == limit
                with pytest.raises(ConfigurationError, match=rf"{key.name}: .* allowed is .*(?<!\d){limit:,}\b"):
                    key.check(int(limit) + step)


@pytest.mark.parametrize("name", KAFKA)
def test_default_is_kafkas_or_the_doc_says_why(name: str) -> None:
    """A user who knows Kafka finds its defaults, or a sentence that names Kafka's and the reason."""
    keys = [key for key in ALL_KEYS if key.name.removeprefix("consumer.").removeprefix("producer.") == name]
    assert keys
    for key in keys:
        assert key.default == KAFKA[name] or re.search(r"(Kafka|Connect)'s", key.doc), key.name


def test_names_are_unique_and_dotted() -> None:
    """Lower-case words with dots, as Kafka's are; TOML would take the beginning of another key for a table."""
    counts = Counter(key.name for key in ALL_KEYS)
    assert [name for name, count in counts.items() if count > 1] == []
    assert [name for name in counts if not re.fullmatch(r"[a-z0-9]+(\.[a-z0-9]+)*", name)] == []
    beginnings = {name for name in counts for other in counts if other.startswith(f"{name}.")}
    assert beginnings == {"large.message.root", "s3.sse"}, "need quotes beside the keys that begin with them"


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


OF_ANOTHER_FORM = ("1 megabyte", "1mb", "1Mb", "1M", "-1MB", "1e6", "1000000", "MB", "", "0.0001KB", "\u0661MB")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        *((text, f"'{text}'") for text in OF_ANOTHER_FORM),
        (1e6, "1000000.0"),
        (True, "true"),
        (Secret("1 megabyte"), "***"),
    ],
)
def test_size_of_another_form_is_refused(found: object, told: str) -> None:
    """The message shows the form that is allowed."""
    with pytest.raises(ConfigurationError) as refused:
        SIZE.check(found)
    allowed = 'allowed is a number of bytes, or a text such as "1MB" or "64KiB"'
    assert str(refused.value) == f"a.bytes: found {told}, {allowed}"


def test_only_sizes_take_units() -> None:
    """A text is as limited as a number, and is told as it was written; no time takes a unit."""
    assert {key.name for key in ALL_KEYS if key.kind == "bytes"} == {
        key.name for key in ALL_KEYS if key.name.endswith("bytes") or key.name == "producer.batch.size"
    }
    with pytest.raises(ConfigurationError, match="allowed is a value of type int"):
        Key("a.ms", "int", "A.").check("1KB")
    with pytest.raises(ConfigurationError, match=r"^a\.bytes: found '3GiB', allowed is 0 to 2,147,483,648$"):
        SIZE.check("3GiB")
