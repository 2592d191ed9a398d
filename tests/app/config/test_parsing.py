"""The configuration file: what it means, and one clear sentence for what cannot work."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from app.config.chunking import ChunkSettings
from app.config.guarantee import Guarantee
from app.config.parsing import load
from app.config.reference_scope import ReferenceScopeSettings
from app.config.secret import Secret
from app.config.settings import PipelineSettings
from app.config.wrapping import WrapperSettings
from tests.app.configurations import HEAD, ORDERS, OWN_CLASS, S3, STORE, only_pipeline, refusal_of, settings_of
from transforms.errors import ConfigurationError
from transforms.signing import Signing

# --- what the file means ---------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_design() -> None:
    """A file with the required keys alone gets the documented defaults."""
    settings = settings_of(HEAD + ORDERS)
    (pipeline,) = settings.pipelines
    assert settings.client.bootstrap_servers == "localhost:9092"
    assert settings.client.security["security.protocol"] == "PLAINTEXT"
    assert (settings.in_flight_bytes, settings.store_threads) == (268_435_456, 8)
    assert (settings.web_bind, settings.web_port) == ("127.0.0.1", 6066)
    assert pipeline == PipelineSettings(
        name="orders",
        topics=("raw",),
        output_topic="orders",
        transforms=("offload",),
        group_id="wideload-orders",
        threshold_bytes=1_048_576,
        compression="none",
        reference_format="wideload",
        guarantee=Guarantee(name="at_least_once", interval_ms=100, size=16_777_216, timeout_ms=60_000),
        chunks=ChunkSettings(
            splits=False,
            assembles=False,
            expects_chunks=False,
            strategy="offload",
            max_bytes=None,
            message_bytes=67_108_864,
            pending_messages=100,
            pending_bytes=134_217_728,
            expire_ms=60_000,
            drops_oldest=False,
        ),
        wrapper=WrapperSettings(unwraps=False, wraps=False, plain="fail", unmapped="fail", null="wrap"),
        store={"large.message.payload.store.class": "memory"},
        max_bytes=268_435_456,
        reference_scope=ReferenceScopeSettings(root="store", topics=()),
        signing=None,
        encryption=None,
        store_timeout_ms=60_000,
        errors_tolerance="none",
        dead_letter_topic=None,
        dead_letter_context=True,
        retry_delay_max_ms=60_000,
        flush_interval_ms=1_000,
        topic_creation=False,
        replication_factor=-1,
        consumer=pipeline.consumer,
        producer=pipeline.producer,
    )


def test_example_of_the_design_is_taken() -> None:
    """The configuration that the design shows means what it says."""
    pipeline = only_pipeline(
        """
        bootstrap.servers = "localhost:9092"

        [pipeline.orders-offload]
        topics = ["raw-large"]
        output.topic = "orders"
        transforms = ["offload"]
        large.message.payload.store.class = "s3"
        large.message.threshold.bytes = 1048576
        s3.bucket = "payloads"
        errors.tolerance = "all"
        errors.deadletterqueue.topic.name = "orders-dlq"
        """
    )
    assert (pipeline.errors_tolerance, pipeline.dead_letter_topic) == ("all", "orders-dlq")
    assert pipeline.store == {"large.message.payload.store.class": "s3", "s3.bucket": "payloads"}


@pytest.mark.parametrize(
    "keys",
    [
        "consumer.max.poll.records = 7",
        '"consumer.max.poll.records" = 7',
        'consumer."max.poll".records = 7',
        "consumer.max = {poll.records = 7}",
        "[pipeline.orders.consumer]\nmax.poll.records = 7",
        "[pipeline.orders.consumer.max]\n'poll.records' = 7",
    ],
)
def test_dotted_nested_and_quoted_names_mean_the_same(keys: str) -> None:
    """A dotted name may be written as TOML's dots, as tables, or in quotes."""
    assert only_pipeline(HEAD + ORDERS + keys).consumer["consumer.max.poll.records"] == 7


def test_client_keys_at_the_top_hold_for_all_pipelines() -> None:
    """A `consumer.` or `producer.` key of a pipeline goes before the same key at the top."""
    settings = settings_of(
        HEAD
        + "consumer.max.poll.records = 7\nproducer.batch.size = 8\n"
        + ORDERS
        + "consumer.max.poll.records = 9\n"
        + ORDERS.replace("pipeline.orders", "pipeline.more")
    )
    read = [pipeline.consumer["consumer.max.poll.records"] for pipeline in settings.pipelines]
    sent = [pipeline.producer["producer.batch.size"] for pipeline in settings.pipelines]
    assert (read, sent) == ([9, 7], [8, 8])


CHUNK = """
[pipeline.chunk]
topics = ["raw"]
output.topic = "chunks"
transforms = ["chunk"]
"""
DEFAULTS = """
bootstrap.servers = "localhost:9092"
processing.guarantee = "exactly_once"
errors.tolerance = "all"
errors.deadletterqueue.topic.name = "dead"
large.message.payload.store.class = "s3"
large.message.threshold.bytes = 7
large.message.max.bytes = 1000
'large.message.root' = "topic"
large.message.root.topics = ["mirrored"]
large.message.strategy = "auto"
s3.bucket = "payloads"
s3.secret.key = "${env:SECRET}"
s3.access.key = "a"
wrapper.header.7 = "seven"
transforms = ["inflate"]
[pipeline.a]
topics = ["x"]
output.topic = "y"
[pipeline.b]
topics = ["x"]
output.topic = "z"
errors.tolerance = "none"
processing.guarantee = "at_least_once"
transforms = ["offload"]
s3.bucket = "other"
"""


def test_any_key_of_a_pipeline_may_be_a_default() -> None:
    """Before the first table it holds for all pipelines; a pipeline's own value goes before it."""
    a, b = settings_of(DEFAULTS, {"SECRET": "hunter2"}).pipelines
    assert [each.guarantee.name for each in (a, b)] == ["exactly_once", "at_least_once"]
    assert [each.dead_letter_topic for each in (a, b)] == ["dead", None]
    assert [each.transforms for each in (a, b)] == [("inflate",), ("offload",)]
    assert [each.store["s3.bucket"] for each in (a, b)] == ["payloads", "other"]
    assert [each.store["s3.secret.key"] for each in (a, b)] == ["hunter2", "hunter2"]
    assert [(each.threshold_bytes, each.max_bytes, each.chunks.strategy) for each in (a, b)] == [(7, 1000, "auto")] * 2
    assert [each.wrapper.headers for each in (a, b)] == [{"wrapper.header.7": "seven"}] * 2


def test_default_is_passed_over_where_it_is_of_no_use() -> None:
    """What would be an error in the table of a pipeline without store or threshold may be meant for the others."""
    b, chunk, memory = settings_of(
        DEFAULTS.replace('transforms = ["inflate"]\n[pipeline.a]\ntopics = ["x"]\noutput.topic = "y"\n', "")
        + CHUNK
        + ORDERS,
        {"SECRET": "s"},
    ).pipelines
    assert b.reference_scope.topics == ()
    assert (chunk.store, chunk.chunks.strategy, chunk.threshold_bytes) == ({}, "offload", 1_048_576)
    assert memory.store == {"large.message.payload.store.class": "memory", "large.message.max.bytes": 1000}


def test_default_of_a_users_own_store_is_handed_to_it() -> None:
    """Where the class is a default, so may be any key; a pipeline with another store does not get them."""
    text = HEAD + 'large.message.payload.store.class = "shop.store.ShopStore"\nshop.url = "u"\n' + ORDERS
    own = text + ORDERS.replace("pipeline.orders", "pipeline.own").replace(STORE, "")
    orders, shop = settings_of(own).pipelines
    assert "shop.url" not in orders.store
    assert shop.store["shop.url"] == "u"


def test_wrong_default_is_one_error() -> None:
    """It is told once, where it stands, and not for each pipeline; nor is it missing anywhere."""
    text = f"{HEAD}s3.bucket = 7\ntransforms = ['deflate']\n"
    for name in ("a", "b"):
        text += f"[pipeline.{name}]\ntopics = ['raw']\noutput.topic = '{name}'\n"
        text += "large.message.payload.store.class = 's3'\n"
    assert refusal_of(text).splitlines() == [
        "s3.bucket: found 7, allowed is a value of type string",
        "transforms: found 'deflate', allowed are: offload, inflate, chunk, assemble, unwrap, wrap",
    ]


def test_dead_letter_topic_counts_only_with_tolerance() -> None:
    """Under `errors.tolerance = "none"` a record that can never succeed stops the pipeline, as in Connect."""
    pipeline = only_pipeline(HEAD + ORDERS + 'errors.deadletterqueue.topic.name = "dead"')
    assert pipeline.dead_letter_topic is None


def test_pipeline_name_with_dots_is_quoted() -> None:
    """A name with dots is legal; TOML wants quotes around it."""
    assert only_pipeline(HEAD + ORDERS.replace("pipeline.orders", 'pipeline."eu.orders"')).name == "eu.orders"


def test_own_class_takes_any_key() -> None:
    """Keys that the project does not know are handed to a user's class as they stand."""
    keys = 'shop.url = "https://shop"\nshop.tries = 3\nshop.tags = ["a"]\nshop.rules = [{name = "b"}]\n'
    assert only_pipeline(HEAD + OWN_CLASS + keys).store == {
        "large.message.payload.store.class": "shop.store.ShopStore",
        "shop.url": "https://shop",
        "shop.tries": 3,
        "shop.tags": ["a"],
        "shop.rules": [{"name": "b"}],
    }


@pytest.mark.parametrize(
    "addresses", ["localhost:9092", "a:1,b:2", "a:1, b:65535", "10.0.0.1:9092", "[::1]:9092", "kafka_1.local:9092"]
)
def test_addresses_are_hosts_with_ports(addresses: str) -> None:
    """Names, IPv4 and bracketed IPv6 addresses are taken, with spaces behind commas or without."""
    assert settings_of(f'bootstrap.servers = "{addresses}"\n{ORDERS}').client.bootstrap_servers == addresses


# --- refusals --------------------------------------------------------------------------------------------------------

BAD_WORKERS = [
    (
        "",
        "bootstrap.servers: is missing; it is required: Brokers to connect to first: `host:port`, separated by commas.",
    ),
    ("bootstrap.server = 'a:1'", "bootstrap.server: is not a key that is known here; did you mean bootstrap.servers?"),
    ("bootstrap.servers = ['a:1']", "bootstrap.servers: found ['a:1'], allowed is a value of type string"),
    *(
        (
            f"bootstrap.servers = '{found}'",
            f"bootstrap.servers: found '{found}', allowed is host:port, several separated by commas",
        )
        for found in ("", "localhost", "a:1,", "a:x", "a:0", "a:65536", "PLAINTEXT://a:1", "a b:1", "::1:9092")
    ),
    (HEAD + "web.prot = 1", "web.prot: is not a key that is known here; did you mean web.port?"),
    (HEAD + "zzz = 1", "zzz: is not a key that is known here"),
    (HEAD + "web.port = '80'", "web.port: found '80', allowed is a value of type int"),
    (HEAD + "web.port = true", "web.port: found true, allowed is a value of type int"),
    (HEAD + "web.port = 80.0", "web.port: found 80.0, allowed is a value of type int"),
    (HEAD + "web.port = 0", "web.port: found 0, allowed is 1 to 65,535"),
    (HEAD + "web.port = 65536", "web.port: found 65536, allowed is 1 to 65,535"),
    (HEAD + "in.flight.bytes = 0", "in.flight.bytes: found 0, allowed is 1 or more"),
    (
        HEAD + "security.protocol = 'TLS'",
        "security.protocol: found 'TLS', allowed is one of: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
    ),
    (
        HEAD + "security.protocol = 'SASL_SSL'",
        (
            "sasl.username: is missing; security.protocol SASL_SSL needs it, with sasl.mechanism PLAIN\n"
            "sasl.password: is missing; security.protocol SASL_SSL needs it, with sasl.mechanism PLAIN"
        ),
    ),
    (
        HEAD + "security.protocol = 'SASL_PLAINTEXT'\nsasl.username = 'u'",
        "sasl.password: is missing; security.protocol SASL_PLAINTEXT needs it, with sasl.mechanism PLAIN",
    ),
    (
        HEAD + "security.protocol = 'SASL_SSL'\nsasl.mechanism = 'OAUTHBEARER'",
        (
            "sasl.oauthbearer.token.endpoint.url: is missing; security.protocol SASL_SSL needs it, with sasl.mechanism "
            "OAUTHBEARER\n"
            "sasl.oauthbearer.client.credentials.client.id: is missing; security.protocol SASL_SSL needs it, with "
            "sasl.mechanism OAUTHBEARER\n"
            "sasl.oauthbearer.client.credentials.client.secret: is missing; security.protocol SASL_SSL needs it, with "
            "sasl.mechanism OAUTHBEARER"
        ),
    ),
    (
        HEAD + "sasl.oauthbearer.token.endpoint.url = 'https://ann:secret@login/token'",
        (
            "sasl.oauthbearer.token.endpoint.url: allowed is https://host/path, or http:// without TLS; without user "
            "and password"
        ),
    ),
    (
        HEAD + "sasl.oauthbearer.token.endpoint.url = 'file:///etc/passwd'",
        (
            "sasl.oauthbearer.token.endpoint.url: found 'file:///etc/passwd', allowed is https://host/path, or http:// "
            "without TLS; without user and password"
        ),
    ),
    (
        HEAD + "sasl.jaas.config = 'x'",
        "sasl.jaas.config: is not a key that is known here; use instead: sasl.username and sasl.password",
    ),
    (HEAD + "sasl.password = 1234", "sasl.password: found ***, allowed is a value of type string"),
    (HEAD + "ssl.ca.location = '/no/such.pem'", "ssl.ca.location: there is no file '/no/such.pem'"),
    (HEAD + f"ssl.ca.location = '{'x' * 5000}'", f"ssl.ca.location: there is no file '{'x' * 100}…{'x' * 100}'"),
    (
        HEAD + "ssl.key.location = 'key.pem'",
        "ssl.key.location: goes with ssl.certificate.location: give both or neither",
    ),
    (
        HEAD + "consumer.max.pol.records = 1",
        "consumer.max.pol.records: is not a key that is known here; did you mean consumer.max.poll.records?",
    ),
    (HEAD + "producer.buffer.memory = 1", "producer.buffer.memory: is not a key that is known here"),
    (
        HEAD + "producer.lingr.ms = 1",
        "producer.lingr.ms: is not a key that is known here; did you mean producer.linger.ms?",
    ),
    *(
        (HEAD + f"{name} = {value}", f"{name}: belongs to a pipeline: it goes below the line [pipeline.NAME]")
        for name, value in (("topics", "['a']"), ("output.topic", "'a'"), ("group.id", "'a'"))
    ),
    (
        HEAD + "errors.tolerence = 'all'",
        "errors.tolerence: is not a key that is known here; did you mean errors.tolerance?",
    ),
    (HEAD + "s3.bukket = 'b'", "s3.bukket: is not a key that is known here; did you mean s3.bucket?"),
    (HEAD + "errors.tolerance = 'some'", "errors.tolerance: found 'some', allowed is one of: none, all"),
    (HEAD + "consumer.group.id = 'g'", "consumer.group.id: is not a key that is known here; use instead: group.id"),
    (
        HEAD + "consumer.group.protocol = 'consumer'",
        (
            "consumer.group.protocol: is not a key that is known here: the worker is a member by the protocol classic, "
            "as its client aiokafka has no other; brokers of Kafka 4.0 and newer let it share a group with members of "
            "the protocol consumer (KIP-848)"
        ),
    ),
    (
        HEAD + "[pipelines.a]\ntopics = ['a']",
        "pipelines.a.topics: is not a key that is known here; a pipeline is a table [pipeline.NAME]",
    ),
    (HEAD + "'web.port' = 1\nweb.port = 2", "web.port: is given twice: with quotes and without"),
    (HEAD, "pipeline: there is none; a worker needs at least one table [pipeline.NAME]"),
    (HEAD + "pipeline = 3", "pipeline: found a value, allowed are tables: [pipeline.NAME]"),
    (HEAD + "[[pipeline]]\ntopics = ['a']", "pipeline: found a value, allowed are tables: [pipeline.NAME]"),
    (HEAD + "pipeline.topics = ['a']", "pipeline: found a value, allowed are tables: [pipeline.NAME]"),
    (
        HEAD + "task.shutdown.graceful.timeout.ms = 300000" + ORDERS,
        (
            "task.shutdown.graceful.timeout.ms: found 300,000, allowed is less than consumer.max.poll.interval.ms of "
            "pipeline orders, which is 300,000"
        ),
    ),
]


@pytest.mark.parametrize(("text", "expected"), BAD_WORKERS)
def test_worker_that_cannot_work(text: str, expected: str) -> None:
    """The message has the key, what was found and what is allowed."""
    complete = text == HEAD or "pipeline" in text
    assert refusal_of(text if complete else text + ORDERS) == expected


TOLERANT = 'errors.tolerance = "all"\nerrors.deadletterqueue.topic.name = '
TOPIC_RULE = "allowed are 1 to 249 characters of [a-zA-Z0-9._-]"

BAD_PIPELINES = [
    (
        ORDERS.replace('topics = ["raw"]\n', ""),
        "topics: is missing; it is required: The topics to read.",
    ),
    (ORDERS.replace("topics =", "topic ="), "topic: is not a key that is known here; did you mean topics?"),
    (ORDERS.replace('["raw"]', '"raw"'), "topics: found 'raw', allowed is a list of strings"),
    (ORDERS.replace('["raw"]', "[1]"), "topics: found [1], allowed is a list of strings"),
    (ORDERS.replace('["raw"]', "[]"), "topics: found an empty list, allowed is one topic or more"),
    (ORDERS.replace('["raw"]', '["a/b"]'), f"topics: found 'a/b', {TOPIC_RULE}"),
    (ORDERS.replace('["raw"]', '[".."]'), f"topics: found '..', {TOPIC_RULE}"),
    (ORDERS.replace('["raw"]', '["a", "a"]'), "topics: found ['a', 'a'], which has a topic twice"),
    (ORDERS.replace('"orders"', '""'), f"output.topic: found '', {TOPIC_RULE}"),
    (
        ORDERS.replace('"orders"', f'"{"x" * 250}"'),
        "output.topic: the topic name has 250 characters, allowed are 249; shorten it",
    ),
    (
        ORDERS.replace('"orders"', '"raw"'),
        "output.topic: found 'raw', which is also in topics: the pipeline would feed itself",
    ),
    (
        ORDERS + TOLERANT + '"raw"',
        "errors.deadletterqueue.topic.name: found 'raw', which is also in topics: the pipeline would feed itself",
    ),
    (
        ORDERS + TOLERANT + '"orders"',
        (
            "errors.deadletterqueue.topic.name: found 'orders', which is also output.topic: its readers would "
            "take dead "
            "letters for records"
        ),
    ),
    (
        ORDERS + 'errors.tolerance = "all"',
        'errors.deadletterqueue.topic.name: is missing; errors.tolerance = "all" needs a dead-letter topic',
    ),
    (ORDERS + "errors.tolerance = 'some'", "errors.tolerance: found 'some', allowed is one of: none, all"),
    (
        ORDERS.replace('["offload"]', "[]"),
        "transforms: found an empty list, allowed are: offload, inflate, chunk, assemble, unwrap, wrap",
    ),
    (
        ORDERS.replace('["offload"]', '["deflate"]'),
        "transforms: found 'deflate', allowed are: offload, inflate, chunk, assemble, unwrap, wrap",
    ),
    (
        ORDERS.replace('["offload"]', '["inflate", "inflate"]'),
        "transforms: found ['inflate', 'inflate'], which has a transform twice",
    ),
    (
        ORDERS.replace('["offload"]', '["offload", "inflate"]'),
        "transforms: found ['offload', 'inflate'], where inflate would undo offload",
    ),
    (ORDERS + "group.id = ''", "group.id: found '', allowed is a name; or leave the key out"),
    (
        ORDERS.replace(STORE, ""),
        "large.message.payload.store.class: is missing; transforms ['offload'] need a store",
    ),
    (
        ORDERS.replace("memory", "memry"),
        (
            "large.message.payload.store.class: found 'memry', allowed are azure, filesystem, gcs, memory, s3, or a "
            "class as package.module.Class; did you mean memory?"
        ),
    ),
    (S3, "s3.bucket: is missing; it is required: The bucket. It must exist."),
    (S3 + "s3.bukket = 'b'", "s3.bukket: is not a key that is known here; did you mean s3.bucket?"),
    (S3 + "s3.bucket = 3", "s3.bucket: found 3, allowed is a value of type string"),
    (S3 + "s3.bucket = 'b'\ns3.secret.key = 3", "s3.secret.key: found ***, allowed is a value of type string"),
    (ORDERS + "zzz = 1", "zzz: is not a key that is known here"),
    (
        ORDERS + "s3.bucket = 'b'",
        ("s3.bucket: is a key of the store s3, and large.message.payload.store.class is 'memory'; correct one of them"),
    ),
    (
        ORDERS + "consumer.group.id = 'g'",
        "consumer.group.id: is not a key that is known here; use instead: group.id",
    ),
    (
        ORDERS + "large.message.treshold.bytes = 1",
        "large.message.treshold.bytes: is not a key that is known here; did you mean large.message.threshold.bytes?",
    ),
    (
        OWN_CLASS + "errors.tolerence = 'all'",
        (
            "errors.tolerence: is not a key that is known here; did you mean errors.tolerance?; if a custom class "
            "has this key, list it in its KEYS"
        ),
    ),
    (
        OWN_CLASS + "large.message.what = 1",
        (
            "large.message.what: is not a key that is known here; did you mean large.message.root?; if a custom "
            "class has this key, list it in its KEYS"
        ),
    ),
    (
        OWN_CLASS + "transaction.boundary = 'interval'",
        "transaction.boundary: is not a key that is known here; use instead: transaction.boundary.type",
    ),
    (
        OWN_CLASS + "consumer.max.pol.records = 1",
        "consumer.max.pol.records: is not a key that is known here; did you mean consumer.max.poll.records?",
    ),
    (
        OWN_CLASS + "producer.batchsize = 1",
        "producer.batchsize: is not a key that is known here; did you mean producer.batch.size?",
    ),
    (
        OWN_CLASS + "sasl.username = 'u'",
        "sasl.username: belongs to the worker: it goes above the first line [pipeline.NAME]",
    ),
    (
        ORDERS.replace("pipeline.orders", "pipeline.orders.eu"),
        'eu.topics: is not a key; a name with dots is quoted: [pipeline."orders.eu"]',
    ),
    (
        ORDERS + "large.message.threshold.bytes = -1",
        "large.message.threshold.bytes: found -1, allowed is 0 or more",
    ),
    (
        ORDERS + "large.message.store.timeout.ms = 300000",
        (
            "large.message.store.timeout.ms: found 300,000, allowed is less than "
            "consumer.max.poll.interval.ms, which is "
            "300,000"
        ),
    ),
    (
        ORDERS + "consumer.session.timeout.ms = 3000",
        "consumer.heartbeat.interval.ms: found 3,000, allowed is less than consumer.session.timeout.ms, which is 3,000",
    ),
    (
        ORDERS + "consumer.request.timeout.ms = 500",
        "consumer.fetch.max.wait.ms: found 500, allowed is less than consumer.request.timeout.ms, which is 500",
    ),
    (
        ORDERS + "producer.delivery.timeout.ms = 40999\nproducer.linger.ms = 1000",
        (
            "producer.delivery.timeout.ms: found 40,999, allowed is at least producer.linger.ms and "
            "producer.request.timeout.ms together, which are 41,000"
        ),
    ),
    (
        ORDERS + "consumer.fetch.max.bytes = 2147483648",
        "consumer.fetch.max.bytes: found 2147483648, allowed is 1 to 2,147,483,647",
    ),
    (ORDERS + "producer.acks = '1'", "producer.acks: found '1', allowed is one of: all, -1"),
    (
        ORDERS + "large.message.compression.type = 'brotli'",
        "large.message.compression.type: found 'brotli', allowed is one of: none, gzip, snappy, lz4, zstd",
    ),
]


@pytest.mark.parametrize(("table", "expected"), BAD_PIPELINES)
def test_pipeline_that_cannot_work(table: str, expected: str) -> None:
    """The message has the pipeline, too."""
    assert refusal_of(HEAD + table) == f"[pipeline.orders] {expected}"


def test_all_errors_are_told_in_the_order_of_the_file() -> None:
    """Errors of the worker, of each pipeline, and between pipelines: a line for each, and none that only follows."""
    text = """
        web.prot = 6066
        in.flight.bytes = -1
        consumer.max.poll.records = 0
        [pipeline.a]
        transforms = ["deflate"]
        topics = ["raw"]
        output.topic = "or ders"
        errors.tolerance = "some"
        s3.bucket = "${env:NONE}"
        large.message.payload.store.class = "s3"
        [pipeline.b]
        topics = ["raw"]
        transforms = ["chunk"]
        errors.tolerance = "all"
        max.pending.chunked.message = 0
        [pipeline.c]
        topics = ["raw"]
        output.topic = "x"
        transforms = ["chunk"]
        group.id = "g"
        [pipeline.d]
        topics = ["y"]
        output.topic = "raw"
        transforms = ["chunk"]
        group.id = "g"
        zzz = 1
        [pipeline.e]
        topics = ["y"]
        output.topic = "raw"
        transforms = ["chunk"]
        group.id = "g"
        consumer.request.timeout.ms = 500
        consumer.session.timeout.ms = 3000
    """
    assert [each.split(": ")[0] for each in refusal_of(text).splitlines()] == [
        "web.prot",
        "in.flight.bytes",
        "consumer.max.poll.records",
        "bootstrap.servers",
        "[pipeline.a] transforms",
        "[pipeline.a] output.topic",
        "[pipeline.a] errors.tolerance",
        "[pipeline.a] s3.bucket",
        "[pipeline.b] max.pending.chunked.message",
        "[pipeline.b] output.topic",
        "[pipeline.b] errors.deadletterqueue.topic.name",
        "[pipeline.d] zzz",
        "[pipeline.e] consumer.heartbeat.interval.ms",
        "[pipeline.e] consumer.fetch.max.wait.ms",
    ]


def test_errors_between_pipelines_are_told_with_the_rest() -> None:
    """Pipelines that are right by themselves are compared, whatever else is wrong."""
    chunk = "topics = ['x']\noutput.topic = 'y'\ntransforms = ['chunk']\ngroup.id = 'g'\n"
    whole = "topics = ['y']\noutput.topic = 'x'\ntransforms = ['unwrap']\ngroup.id = 'g'\n"
    text = f"{HEAD}web.port = 0\n[pipeline.a]\n{chunk}[pipeline.b]\n{whole}[pipeline.c]\ntopics = 1\n{STORE}"
    assert [each.split(": ")[0] for each in refusal_of(text).splitlines()] == [
        "web.port",
        "[pipeline.b] output.topic",
        "[pipeline.b] transforms",
        "[pipeline.b] group.id",
        "[pipeline.c] topics",
        "[pipeline.c] output.topic",
        "[pipeline.c] transforms",
    ]


@pytest.mark.parametrize("name", ["", "a b", "ä", "a/b", "x" * 201])
def test_pipeline_name_is_of_the_alphabet_of_groups_and_ids(name: str) -> None:
    """A name becomes part of a group, of a client id and of labels."""
    message = refusal_of(HEAD + ORDERS.replace("pipeline.orders", f'pipeline."{name}"'))
    assert message.endswith(f"pipeline: found the name {name!r}, allowed are 1 to 200 of [a-zA-Z0-9._-]")


# --- values from elsewhere -------------------------------------------------------------------------------------------


def test_typed_keys_take_strings_from_placeholders() -> None:
    """A variable is a string; it is taken as a number, a boolean or a list where the key wants one, as Kafka does."""
    text = HEAD + 'web.port = "${env:PORT}"' + ORDERS.replace('["raw"]', '"${env:TOPICS}"')
    text += 'topic.creation.enable = "${env:CREATE}"\nlarge.message.max.bytes = "${env:MAX}"\n'
    settings = settings_of(text, {"PORT": "8080", "TOPICS": "a, b", "CREATE": "TRUE", "MAX": "5"})
    (pipeline,) = settings.pipelines
    assert (settings.web_port, pipeline.topics, pipeline.topic_creation) == (8080, ("a", "b"), True)
    assert (pipeline.max_bytes, pipeline.store["large.message.max.bytes"]) == (5, 5)


def test_sizes_have_units() -> None:
    """Sizes of the worker, a pipeline, its clients and its store may have a unit, also in what comes from elsewhere."""
    keys = """
        large.message.threshold.bytes = "64KiB"
        large.message.max.bytes = "100 MB"
        consumer.fetch.max.bytes = "${env:SIZE}"
        producer.batch.size = 1000
    """
    settings = settings_of(HEAD + 'in.flight.bytes = "128MiB"\n' + ORDERS + keys, {"SIZE": "1.5MB"})
    (pipeline,) = settings.pipelines
    assert settings.in_flight_bytes == 134_217_728
    assert (pipeline.threshold_bytes, pipeline.max_bytes) == (65_536, 100_000_000)
    assert pipeline.store["large.message.max.bytes"] == 100_000_000
    assert pipeline.consumer["consumer.fetch.max.bytes"] == 1_500_000
    assert pipeline.producer["producer.batch.size"] == 1_000


def test_keys_of_a_store_take_strings_from_placeholders() -> None:
    """The keys of a built-in store are typed likewise before they are handed on."""
    keys = 's3.bucket = "${env:BUCKET}"\ns3.path.style = "${env:STYLE}"\n'
    store = only_pipeline(HEAD + S3 + keys, {"BUCKET": "b", "STYLE": "false"}).store
    assert (store["s3.bucket"], store["s3.path.style"]) == ("b", False)


@pytest.mark.parametrize(
    ("keys", "value", "expected"),
    [
        ('web.port = "${env:X}"', "eighty", "web.port: found ***, allowed is a value of type int"),
        ('web.port = "${env:X}"', "", "web.port: found ***, allowed is a value of type int"),
        ('web.port = "${env:X}"', "1_0", "web.port: found ***, allowed is a value of type int"),
        ('security.protocol = "${env:X}"', "hunter2", "security.protocol: found ***, allowed is one of: PLAINTEXT"),
        ('bootstrap.servers = "${env:X}"', "hunter2", "bootstrap.servers: found ***, allowed is host:port"),
        ('ssl.ca.location = "${env:X}"', "/hunter2", "ssl.ca.location: there is no file ***"),
        ('ssl.ca.location = "${env:Y}"', "", "ssl.ca.location: the environment variable Y is not set"),
    ],
)
def test_refused_placeholder_shows_no_value(keys: str, value: str, expected: str) -> None:
    """What came from elsewhere is not shown, whatever is wrong with it."""
    head = "" if "bootstrap" in keys else HEAD
    assert refusal_of(head + keys + ORDERS, {"X": value}).startswith(expected)


def test_missing_variable_of_a_pipeline_names_it() -> None:
    """A placeholder that cannot be filled in is said of its pipeline."""
    expected = "[pipeline.orders] topics: the environment variable X is not set"
    assert refusal_of(HEAD + ORDERS.replace('"raw"', '"${env:X}"')) == expected


# --- secrets ---------------------------------------------------------------------------------------------------------

PASSWORD = "hunter2"
KEPT = [
    ("sasl.password = 'hunter2'\n", ORDERS, ""),
    ("sasl.password = '${env:PASSWORD}'\n", ORDERS, ""),
    ("ssl.key.password = 'hunter2'\n", ORDERS, ""),
    ("", S3, "s3.bucket = 'b'\ns3.access.key = 'a'\ns3.secret.key = 'hunter2'\n"),
    ("", S3, "s3.bucket = 'b'\ns3.session.token = 'hunter2'\n"),
    ("", OWN_CLASS, "shop.password = 'hunter2'\n"),
    ("", OWN_CLASS, "shop.passwords = ['hunter2', 'hunter2']\nshop.users = [{password = 'hunter2'}]\n"),
    ("", OWN_CLASS, "shop.users = [{password = '${env:PASSWORD}'}]\n"),
]


@pytest.mark.parametrize(("top", "table", "keys"), KEPT)
def test_secret_is_kept_but_not_printed(top: str, table: str, keys: str) -> None:
    """Secrets reach clients and stores as they are; the settings print as ***, however they were written."""
    settings = settings_of(HEAD + top + table + keys, {"PASSWORD": PASSWORD})
    printed = f"{settings!r} {settings} {settings.pipelines!r} {dict(settings.pipelines[0].store)} {settings.client}"
    assert PASSWORD not in printed
    assert "***" in printed
    held = [*settings.client.security.values(), *_leaves(dict(settings.pipelines[0].store))]
    assert PASSWORD in held


def _leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, list) else [value]


@pytest.mark.parametrize(("top", "table", "keys"), KEPT)
@pytest.mark.parametrize(
    "fault", ["zzzz.zzzz = 1", "large.message.threshold.bytes = 'x'", "topic = []", "group.id = ''"]
)
def test_secret_is_in_no_error(top: str, table: str, keys: str, fault: str) -> None:
    """Whatever else is wrong with a file, the error and its causes do not show the secrets in it."""
    text = HEAD + top + table + keys + fault
    try:
        settings_of(text, {"PASSWORD": PASSWORD})
    except ConfigurationError as exc:
        told = f"{exc} {exc!r} {exc.__cause__!r} {exc.__context__!r}"
    else:
        assert table is OWN_CLASS, "a class of the user takes any key"
        return
    assert PASSWORD not in told


def test_settings_are_frozen() -> None:
    """Settings are read once; nothing changes them afterwards."""
    settings = settings_of(HEAD + ORDERS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.web_port = 1  # type: ignore[misc]


# --- the file itself -------------------------------------------------------------------------------------------------


def test_file_is_read_with_or_without_byte_order_mark(tmp_path: Path) -> None:
    """Editors on Windows put a mark before the text."""
    path = tmp_path / "wideload.toml"
    path.write_bytes(b"\xef\xbb\xbf" + (HEAD + ORDERS).encode())
    marked = load(path)
    path.write_text(HEAD + ORDERS)
    assert load(path) == marked


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a = ", "is not TOML: Invalid value (at end of document)"),
        (b"a = 1\nb b", "is not TOML: Expected '=' after a key in a key/value pair (at line 2, column 3)"),
        (b"a = '\xff'", "is not UTF-8, which TOML must be"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_file_that_is_no_configuration(tmp_path: Path, content: bytes | None, expected: str) -> None:
    """The message names the file, and the line where there is one."""
    path = tmp_path / "wideload.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {expected}"


def test_secret_compares_as_what_it_is() -> None:
    """Only printing hides a secret: clients and stores use it like any string."""
    secret = Secret("pa ss")
    assert (secret == "pa ss", secret.encode(), f"{secret}", len(secret)) == (True, b"pa ss", "pa ss", 5)


def test_signing_needs_our_format() -> None:
    """bakdata's formats have no signatures; the key is not shown."""
    key = f'large.message.signing.key = "{"s" * 32}"\n'
    told = refusal_of(HEAD + S3 + 's3.bucket = "b"\nreference.format = "bakdata-headers"\n' + key)
    assert "large.message.signing.key: stands beside reference.format = 'bakdata-headers', which has no" in told
    assert "ssss" not in told


def test_signing_key_is_hidden() -> None:
    """Neither the settings nor what the store is opened with shows a key."""
    keys = f'large.message.signing.key = "{"s" * 32}"\nlarge.message.signing.previous.keys = ["{"p" * 32}"]\n'
    pipeline = only_pipeline(HEAD + ORDERS + keys)
    assert pipeline.signing == Signing("s" * 32, ("p" * 32,))
    assert "ssss" not in repr(pipeline)
    assert "pppp" not in repr(pipeline)


def test_store_time_is_of_no_concern_without_a_store() -> None:
    """A pipeline that asks no store need not make room for one in `consumer.max.poll.interval.ms`."""
    chunk = ORDERS.replace(STORE, "").replace("offload", "chunk")
    interval = "consumer.max.poll.interval.ms = 30000\ntask.shutdown.graceful.timeout.ms = 10000\n"
    assert only_pipeline(HEAD + interval + chunk).store == {}
    assert "large.message.store.timeout.ms" in refusal_of(HEAD + interval + ORDERS)
