"""One clear sentence for each configuration that cannot work."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from app.config.parsing import load
from tests.app.configurations import HEAD, ORDERS, OWN_CLASS, S3, STORE, only_pipeline, refusal_of
from transforms.errors import ConfigurationError

# Lines, then `→` and the sentence for each error; what is indented goes on in the line before it.

WORKERS = """
bootstrap.server = 'a:1'
→ bootstrap.server: unknown property; did you mean bootstrap.servers?
bootstrap.servers = ['a:1']
→ bootstrap.servers: found ['a:1'], allowed is a value of type string
web.prot = 1
→ web.prot: unknown property; did you mean web.port?
web.port = '80'
→ web.port: found '80', allowed is a value of type int
web.port = true
→ web.port: found true, allowed is a value of type int
web.port = 0
→ web.port: found 0, allowed is 1 to 65,535
in.flight.bytes = 0
→ in.flight.bytes: found 0, allowed is 1 or more
security.protocol = 'TLS'
→ security.protocol: found 'TLS', allowed is one of: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL
security.protocol = 'SASL_SSL'
→ sasl.username: is missing; security.protocol SASL_SSL with sasl.mechanism PLAIN requires it
→ sasl.password: is missing; security.protocol SASL_SSL with sasl.mechanism PLAIN requires it
security.protocol = 'SASL_PLAINTEXT'
sasl.username = 'u'
→ sasl.password: is missing; security.protocol SASL_PLAINTEXT with sasl.mechanism PLAIN requires it
security.protocol = 'SASL_SSL'
sasl.mechanism = 'OAUTHBEARER'
→ sasl.oauthbearer.token.endpoint.url: is missing; security.protocol SASL_SSL with sasl.mechanism OAUTHBEARER requires
  it
→ sasl.oauthbearer.client.credentials.client.id: is missing; security.protocol SASL_SSL with sasl.mechanism OAUTHBEARER
  requires it
→ sasl.oauthbearer.client.credentials.client.secret: is missing; security.protocol SASL_SSL with sasl.mechanism
  OAUTHBEARER requires it
sasl.oauthbearer.token.endpoint.url = 'https://ann:secret@login/token'
→ sasl.oauthbearer.token.endpoint.url: allowed is https://host/path, or http:// without TLS; without user and password
sasl.oauthbearer.token.endpoint.url = 'file:///etc/passwd'
→ sasl.oauthbearer.token.endpoint.url: found 'file:///etc/passwd', allowed is https://host/path, or http:// without TLS;
  without user and password
sasl.jaas.config = 'x'
→ sasl.jaas.config: unknown property; use instead: sasl.username and sasl.password
sasl.password = 1234
→ sasl.password: found ***, allowed is a value of type string
ssl.ca.location = '/no/such.pem'
→ ssl.ca.location: there is no file '/no/such.pem'
ssl.key.location = 'key.pem'
→ ssl.key.location: must be set together with ssl.certificate.location: set both or neither
producer.buffer.memory = 1
→ producer.buffer.memory: unknown property
producer.lingr.ms = 1
→ producer.lingr.ms: unknown property; did you mean producer.linger.ms?
topics = ['a']
→ topics: is a property of a pipeline; move it below a line [pipeline.NAME]
output.topic = 'a'
→ output.topic: is a property of a pipeline; move it below a line [pipeline.NAME]
group.id = 'a'
→ group.id: is a property of a pipeline; move it below a line [pipeline.NAME]
errors.tolerance = 'some'
→ errors.tolerance: found 'some', allowed is one of: none, all
s3.bukket = 'b'
→ s3.bukket: unknown property; did you mean s3.bucket?
consumer.group.id = 'g'
→ consumer.group.id: unknown property; use instead: group.id
consumer.group.protocol = 'consumer'
→ consumer.group.protocol: unknown property: the worker joins groups with the protocol classic, the only one that its
  client aiokafka supports; brokers of Kafka 4.0 and newer let it share a group with members that use the protocol
  consumer (KIP-848)
[pipelines.a]
topics = ['a']
output.topic = 'b'
→ pipelines.a.topics: unknown property; a pipeline is a table [pipeline.NAME]
'web.port' = 1
web.port = 2
→ web.port: is set twice: with and without quotes
pipeline = 3
→ pipeline: found a value, allowed are tables: [pipeline.NAME]
pipeline.topics = ['a']
→ pipeline: found a value, allowed are tables: [pipeline.NAME]
task.shutdown.graceful.timeout.ms = 300000
→ task.shutdown.graceful.timeout.ms: found 300,000, allowed is less than consumer.max.poll.interval.ms of pipeline
  orders, which is 300,000
web.control.enable = true
→ web.control.token: is missing; web.control.enable = true requires it
web.control.enable = true
web.control.token = ''
→ web.control.token: found 0 characters, allowed are 16 or more random ASCII characters without spaces, for example from
  `openssl rand -hex 32`
web.control.token = 'fifteen-letters'
→ web.control.token: found 15 characters, allowed are 16 or more random ASCII characters without spaces, for example
  from `openssl rand -hex 32`
web.control.token = 'sixteenletters-ü'
→ web.control.token: found 16 characters, allowed are 16 or more random ASCII characters without spaces, for example
  from `openssl rand -hex 32`
control.topic = ''
→ control.topic: found '', allowed are 1 to 249 characters of [a-zA-Z0-9._-]
control.topic = 5
→ control.topic: found 5, allowed is a value of type string
"""

# In the place of lines with the same key; `-KEY` takes one out.

PIPELINES = {
    ORDERS: """
-topics
→ topics: is missing; it is required: The topics to read.
-topics
topic = ["raw"]
→ topic: unknown property; did you mean topics?
topics = "raw"
→ topics: found 'raw', allowed is a list of strings
topics = [1]
→ topics: found [1], allowed is a list of strings
topics = []
→ topics: found an empty list, allowed is one topic or more
topics = ["a/b"]
→ topics: found 'a/b', allowed are 1 to 249 characters of [a-zA-Z0-9._-]
topics = [".."]
→ topics: found '..', allowed are 1 to 249 characters of [a-zA-Z0-9._-]
topics = ["a", "a"]
→ topics: found ['a', 'a'], which lists a topic twice
output.topic = ""
→ output.topic: found '', allowed are 1 to 249 characters of [a-zA-Z0-9._-]
output.topic = "raw"
→ output.topic: found 'raw', which is also in topics: the pipeline would feed itself
errors.tolerance = "all"
errors.deadletterqueue.topic.name = "raw"
→ errors.deadletterqueue.topic.name: found 'raw', which is also in topics: the pipeline would feed itself
errors.tolerance = "all"
errors.deadletterqueue.topic.name = "orders"
→ errors.deadletterqueue.topic.name: found 'orders', which is also output.topic: its consumers would read dead-letter
  records as ordinary ones
errors.tolerance = "all"
→ errors.deadletterqueue.topic.name: is missing; errors.tolerance = "all" requires a dead letter queue
transforms = []
→ transforms: found an empty list, allowed are: offload, inflate, chunk, assemble, unwrap, wrap
transforms = ["deflate"]
→ transforms: found 'deflate', allowed are: offload, inflate, chunk, assemble, unwrap, wrap
transforms = ["inflate", "inflate"]
→ transforms: found ['inflate', 'inflate'], which lists a transform twice
transforms = ["offload", "inflate"]
→ transforms: found ['offload', 'inflate']; inflate would restore what offload has just stored
group.id = ""
→ group.id: found '', allowed is a name; or leave the property out
-large.message.payload.store.class
→ large.message.payload.store.class: is missing; transforms ['offload'] need a store
large.message.payload.store.class = "memry"
→ large.message.payload.store.class: found 'memry', allowed are azure, filesystem, gcs, memory, s3, or a class as
  package.module.Class; did you mean memory?
zzz = 1
→ zzz: unknown property
s3.bucket = "b"
→ s3.bucket: is a property of store s3, but large.message.payload.store.class is 'memory'; correct one of them
large.message.treshold.bytes = 1
→ large.message.treshold.bytes: unknown property; did you mean large.message.threshold.bytes?
large.message.threshold.bytes = -1
→ large.message.threshold.bytes: found -1, allowed is 0 or more
large.message.store.timeout.ms = 300000
→ large.message.store.timeout.ms: found 300,000, allowed is less than consumer.max.poll.interval.ms, which is 300,000
consumer.session.timeout.ms = 3000
→ consumer.heartbeat.interval.ms: found 3,000, allowed is less than consumer.session.timeout.ms, which is 3,000
consumer.request.timeout.ms = 500
→ consumer.fetch.max.wait.ms: found 500, allowed is less than consumer.request.timeout.ms, which is 500
producer.delivery.timeout.ms = 40999
producer.linger.ms = 1000
→ producer.delivery.timeout.ms: found 40,999, allowed is at least the sum of producer.linger.ms and
  producer.request.timeout.ms, which is 41,000
producer.acks = "1"
→ producer.acks: found '1', allowed is one of: all, -1
large.message.compression.type = "brotli"
→ large.message.compression.type: found 'brotli', allowed is one of: none, gzip, snappy, lz4, zstd
web.control.token = "token-of-who-may-steer-1"
→ web.control.token: is a property of the worker; move it above the first line [pipeline.NAME]
processing.guarantee = "exactly_once"
consumer.isolation.level = "read_uncommitted"
→ consumer.isolation.level: found 'read_uncommitted', allowed with processing.guarantee = "exactly_once" is
  "read_committed": otherwise the results of aborted records would be committed
processing.guarantee = "exactly_once"
transaction.boundary.interval.ms = 60000
→ transaction.boundary.interval.ms: found 60,000, allowed is less than producer.transaction.timeout.ms, which is 60,000:
  the brokers would abort transactions before they are committed
reference.format = "bakdata"
→ reference.format: found 'bakdata', allowed is one of: wideload, bakdata-headers, bakdata-flag
reference.format = "bakdata-flag"
→ large.message.payload.store.class: found 'memory'; the readers of reference.format = 'bakdata-flag' require 's3',
  'gcs' or 'azure'
large.message.root = "topic"
→ large.message.root: found 'topic', which requires inflate; transforms are ['offload']
large.message.root.topics = ["x"]
→ large.message.root.topics: has no effect unless large.message.root is "topic"
transforms = ["inflate", "assemble"]
→ transforms: found ['inflate', 'assemble']; assemble must be first, as it assembles the chunks of the source topic
transforms = ["chunk", "offload"]
→ transforms: found ['chunk', 'offload']; chunk must be last, as a transform after it would receive pieces of values
large.message.strategy = "auto"
transforms = ["offload", "chunk"]
→ large.message.strategy: found 'auto', which cannot be used with 'chunk' in transforms
large.message.threshold.bytes = 10
large.message.strategy = "chunk"
→ large.message.threshold.bytes: has no effect, as nothing is offloaded; chunk.max.bytes, or else the limit of the
  output topic, determines which values are split
large.message.encryption.key.id = "one"
→ large.message.encryption.key.id: also requires large.message.encryption.key.secret
large.message.strategy = "chunk"
large.message.encryption.type = "aes-256-gcm"
large.message.encryption.key.id = "one"
large.message.encryption.key.secret = "${env:KEY}"
→ large.message.encryption.type: found 'aes-256-gcm', but this pipeline stores no payloads: chunks and other values stay
  in Kafka unencrypted; leave it out, or use offload with a large.message.strategy other than 'chunk'
""",
    S3: """
-
→ s3.bucket: is missing; it is required: The bucket. It must exist.
s3.bukket = "b"
→ s3.bukket: unknown property; did you mean s3.bucket?
s3.bucket = 3
→ s3.bucket: found 3, allowed is a value of type string
s3.bucket = "b"
s3.secret.key = 3
→ s3.secret.key: found ***, allowed is a value of type string
s3.bucket = "b"
reference.format = "bakdata-flag"
large.message.strategy = "auto"
→ large.message.strategy: found 'auto'; readers of reference.format 'bakdata-flag' do not support chunks
s3.bucket = "pay_loads"
reference.format = "bakdata-headers"
→ s3.bucket: found 'pay_loads'; the readers of reference.format = 'bakdata-headers' require a name that Java accepts as
  a host name: no '_', no digit after the last '.'
s3.bucket = "pay.2024"
reference.format = "bakdata-flag"
→ s3.bucket: found 'pay.2024'; the readers of reference.format = 'bakdata-flag' require a name that Java accepts as a
  host name: no '_', no digit after the last '.'
s3.bucket = "b"
s3.prefix = "a b"
reference.format = "bakdata-flag"
transforms = ["inflate", "offload"]
→ s3.prefix: found 'a b'; the readers of reference.format = 'bakdata-flag' require characters of a-z, A-Z, 0-9 and
  ._~!$&'()*+,;=:@/-
s3.bucket = "b"
s3.prefix = "a%20b"
reference.format = "bakdata-headers"
→ s3.prefix: found 'a%20b'; the readers of reference.format = 'bakdata-headers' require characters of a-z, A-Z, 0-9 and
  ._~!$&'()*+,;=:@/-
s3.bucket = "b"
reference.format = "bakdata-headers"
large.message.signing.key = "${env:KEY}"
→ large.message.signing.key: cannot be combined with reference.format = 'bakdata-headers', which has no signatures
large.message.payload.store.class = "gcs"
gcs.bucket = "pay_loads"
reference.format = "bakdata-flag"
→ gcs.bucket: found 'pay_loads'; the readers of reference.format = 'bakdata-flag' require a name that Java accepts as a
  host name: no '_', no digit after the last '.'
""",
    OWN_CLASS: """
errors.tolerence = "all"
→ errors.tolerence: unknown property; did you mean errors.tolerance?; if a custom class has this property, list it in
  its KEYS
large.message.what = 1
→ large.message.what: unknown property; did you mean large.message.root?; if a custom class has this property, list it
  in its KEYS
transaction.boundary = "interval"
→ transaction.boundary: unknown property; use instead: transaction.boundary.type
consumer.max.pol.records = 1
→ consumer.max.pol.records: unknown property; did you mean consumer.max.poll.records?
producer.batchsize = 1
→ producer.batchsize: unknown property; did you mean producer.batch.size?
sasl.username = "u"
→ sasl.username: is a property of the worker; move it above the first line [pipeline.NAME]
reference.format = "bakdata-headers"
large.message.encryption.type = "aes-256-gcm"
large.message.encryption.key.id = "one"
large.message.encryption.key.secret = "${env:KEY}"
→ large.message.encryption.type: found 'aes-256-gcm', which cannot be combined with reference.format =
  'bakdata-headers', whose readers cannot decrypt; leave it out, or set reference.format = 'wideload'
""",
    ORDERS.replace(STORE, "").replace("offload", "chunk"): """
transforms = ["chunk", "assemble"]
→ transforms: found ['chunk', 'assemble']; assemble must be first, as it assembles the chunks of the source topic
large.message.strategy = "chunk"
→ large.message.strategy: found 'chunk', which requires offload or inflate; transforms are ['chunk']
large.message.threshold.bytes = 10
→ large.message.threshold.bytes: has no effect, as nothing is offloaded; chunk.max.bytes, or else the limit of the
  output topic, determines which values are split
large.message.max.bytes = 10
→ large.message.max.bytes: is a property of a store, but transforms ['chunk'] need no store
chunk.max.byte = 10
→ chunk.max.byte: unknown property; did you mean chunk.max.bytes?; if a custom class has this property, list it in its
  KEYS
transforms = ["assemble"]
max.pending.chunked.bytes = 268435457
→ max.pending.chunked.bytes: found 268,435,457, allowed is no more than in.flight.bytes, which is 268,435,456
transforms = ["assemble"]
chunk.max.message.bytes = 134217729
→ chunk.max.message.bytes: found 134,217,729, allowed is no more than max.pending.chunked.bytes, which is 134,217,728
transforms = ["assemble"]
max.pending.chunked.message = 0
→ max.pending.chunked.message: found 0, allowed is 1 or more
large.message.encryption.type = "aes-256-gcm"
large.message.encryption.key.id = "one"
large.message.encryption.key.secret = "${env:KEY}"
→ large.message.encryption.type: found 'aes-256-gcm', but this pipeline stores no payloads: chunks and other values stay
  in Kafka unencrypted; leave it out, or use offload with a large.message.strategy other than 'chunk'
→ large.message.encryption.key.id: is a property of a store, but transforms ['chunk'] need no store
→ large.message.encryption.key.secret: is a property of a store, but transforms ['chunk'] need no store
transforms = ["offload", "unwrap"]
→ transforms: found ['offload', 'unwrap']; unwrap must come before offload, which needs the unwrapped value
transforms = ["assemble", "inflate", "unwrap"]
→ transforms: found ['assemble', 'inflate', 'unwrap']; unwrap must come before inflate, which needs the unwrapped value
transforms = ["wrap", "unwrap"]
→ transforms: found ['wrap', 'unwrap']; unwrap must come before wrap, which needs the unwrapped value
transforms = ["wrap", "offload"]
→ transforms: found ['wrap', 'offload']; wrap must come after offload, which would otherwise receive wrapped values
transforms = ["wrap", "inflate", "chunk"]
→ transforms: found ['wrap', 'inflate', 'chunk']; wrap must come after inflate, which would otherwise receive wrapped
  values
transforms = ["unwrap", "assemble"]
→ transforms: found ['unwrap', 'assemble']; assemble must be first, as it assembles the chunks of the source topic
transforms = ["chunk", "wrap"]
→ transforms: found ['chunk', 'wrap']; chunk must be last, as a transform after it would receive pieces of values
transforms = ["chunk", "unwrap"]
→ transforms: found ['chunk', 'unwrap']; chunk must be last, as a transform after it would receive pieces of values
transforms = ["unwrap"]
unwrap.on.plain.value = "skip"
→ unwrap.on.plain.value: found 'skip', allowed is one of: fail, pass
wrap.on.nul.value = "pass"
→ wrap.on.nul.value: unknown property; did you mean wrap.on.null.value?; if a custom class has this property, list it in
  its KEYS
wraper.header.1 = "a"
→ wraper.header.1: unknown property; did you mean wrapper.header.NUMBER?
wrapper.headers.1 = "a"
→ wrapper.headers.1: unknown property; did you mean wrapper.header.NUMBER?
wrapper.header = "a"
→ wrapper.header: unknown property; did you mean wrapper.header.NUMBER?
wrapper.header.one = "a"
→ wrapper.header.one: found 'one', allowed after wrapper.header. is a number from 0 to 2,147,483,647, without leading
  zeros
wrapper.header.01 = "a"
→ wrapper.header.01: found '01', allowed after wrapper.header. is a number from 0 to 2,147,483,647, without leading
  zeros
wrapper.header.-1 = "a"
→ wrapper.header.-1: found '-1', allowed after wrapper.header. is a number from 0 to 2,147,483,647, without leading
  zeros
wrapper.header.99999999999 = "a"
→ wrapper.header.99999999999: found '99999999999', allowed after wrapper.header. is a number from 0 to 2,147,483,647,
  without leading zeros
wrapper.header.2147483648 = "a"
→ wrapper.header.2147483648: found 2147483648, allowed are 0 to 2,147,483,647
wrapper.header.1 = 2
→ wrapper.header.1: found 2, allowed is a value of type string
wrapper.header.1 = ""
→ wrapper.header.1: found '', allowed is a name that does not begin with wrapper.header.
wrapper.header.1 = "a"
wrapper.header.2 = "a"
→ wrapper.header.2: found 'a', which is already the name of key 1
""",
}


def rows(table: str) -> list[tuple[str, str]]:
    """The lines and the sentences of each row of a table."""
    found: list[tuple[list[str], list[str]]] = []
    for line in table.strip().splitlines():
        if line.startswith("→ "):
            found[-1][1].append(line[2:])
        elif line.startswith("  "):
            found[-1][1][-1] += " " + line.strip()
        else:
            if not found or found[-1][1]:
                found.append(([], []))
            found[-1][0].append(line)
    return [("\n".join(lines), "\n".join(told)) for lines, told in found]


def pipeline(base: str, lines: str) -> str:
    """The table of a pipeline with other lines."""
    given = lines.splitlines()
    keys = {line.removeprefix("-").partition(" = ")[0] for line in given}
    kept = [line for line in base.splitlines() if line.partition(" = ")[0] not in keys]
    return "\n".join([*kept, *(line for line in given if not line.startswith("-")), ""])


# No backslash in an id that is given: `make mutants` collects twice in one process, and pytest escapes it each time.
@pytest.mark.parametrize(
    ("lines", "told"), rows(WORKERS), ids=[ascii(lines).replace("\\", "~") for lines, _ in rows(WORKERS)]
)
def test_worker_that_cannot_work(lines: str, told: str) -> None:
    """The message has the key, what was found and what is allowed."""
    head = "" if "bootstrap" in lines else HEAD
    assert refusal_of(head + lines if "pipeline" in lines else head + lines + ORDERS) == told


@pytest.mark.parametrize(
    ("base", "lines", "told"),
    [pytest.param(base, *row, id=row[0]) for base, table in PIPELINES.items() for row in rows(table)],
)
def test_pipeline_that_cannot_work(base: str, lines: str, told: str) -> None:
    """The message has the pipeline, too."""
    found = refusal_of(HEAD + pipeline(base, lines), {"KEY": "1f" * 32})
    assert found == "\n".join(f"[pipeline.orders] {line}" for line in told.splitlines())
    assert "1f1f" not in found


ADDRESSES = "allowed is host:port, several separated by commas"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            ORDERS,
            (
                "bootstrap.servers: is missing; it is required: The brokers for the initial connection to the cluster, "
                "as a comma-separated list of `host:port`. The list need not contain all brokers."
            ),
        ),
        (HEAD, "pipeline: is missing; a worker needs at least one table [pipeline.NAME]"),
        *(
            (f"bootstrap.servers = '{found}'{ORDERS}", f"bootstrap.servers: found '{found}', {ADDRESSES}")
            for found in ("", "localhost", "a:1,", "a:x", "a:0", "a:65536", "PLAINTEXT://a:1", "a b:1", "::1:9092")
        ),
        (
            f"{HEAD}ssl.ca.location = '{'x' * 5000}'{ORDERS}",
            f"ssl.ca.location: there is no file '{'x' * 100}…{'x' * 100}'",
        ),
        (
            HEAD + ORDERS.replace("pipeline.orders", "pipeline.orders.eu"),
            '[pipeline.orders] eu.topics: unknown property; a name with dots must be quoted: [pipeline."orders.eu"]',
        ),
        (
            HEAD + ORDERS.replace('"raw"', '"${env:X}"'),
            "[pipeline.orders] topics: the environment variable X is not set",
        ),
        *(
            (
                HEAD + ORDERS.replace("pipeline.orders", f'pipeline."{name}"'),
                f"{place}pipeline: found the name {name!r}, allowed are 1 to 200 characters of [a-zA-Z0-9._-]",
            )
            for name in ("", "a b", "ä", "a/b", "x" * 201)
            for place in (f"[pipeline.{name}] " if name else "",)
        ),
    ],
)
def test_file_that_cannot_work(text: str, told: str) -> None:
    """What is missing as a whole, and names and addresses of the wrong form."""
    assert refusal_of(text) == told


@pytest.mark.parametrize(
    ("keys", "value", "told"),
    [
        *(
            ('web.port = "${env:X}"', each, "web.port: found ***, allowed is a value of")
            for each in ("eighty", "", "1_0")
        ),
        ('security.protocol = "${env:X}"', "hunter2", "security.protocol: found ***, allowed is one of: PLAINTEXT"),
        ('bootstrap.servers = "${env:X}"', "hunter2", "bootstrap.servers: found ***, allowed is host:port"),
        ('ssl.ca.location = "${env:X}"', "/hunter2", "ssl.ca.location: there is no file ***"),
        ('ssl.ca.location = "${env:Y}"', "", "ssl.ca.location: the environment variable Y is not set"),
    ],
)
def test_refused_placeholder_shows_no_value(keys: str, value: str, told: str) -> None:
    """What came from elsewhere is not shown, whatever is wrong with it."""
    assert refusal_of(("" if "bootstrap" in keys else HEAD) + keys + ORDERS, {"X": value}).startswith(told)


# --- several errors --------------------------------------------------------------------------------------------------

CHUNK = "transforms = ['chunk']\ngroup.id = 'g'"
ALL = f"""
web.prot = 6066
in.flight.bytes = -1
consumer.max.poll.records = 0
[pipeline.a]
transforms = ["deflate"]
topics = ["raw"]
output.topic = "or ders"
errors.tolerance = "some"
s3.bucket = "${{env:NONE}}"
large.message.payload.store.class = "s3"
[pipeline.b]
topics = ["raw"]
transforms = ["chunk"]
errors.tolerance = "all"
max.pending.chunked.message = 0
[pipeline.c]
topics = ["raw"]
output.topic = "x"
{CHUNK}
[pipeline.d]
topics = ["y"]
output.topic = "raw"
{CHUNK}
zzz = 1
[pipeline.e]
topics = ["y"]
output.topic = "raw"
{CHUNK}
consumer.request.timeout.ms = 500
consumer.session.timeout.ms = 3000
"""
BETWEEN = f"""{HEAD}web.port = 0
[pipeline.a]
topics = ["x"]
output.topic = "y"
{CHUNK}
[pipeline.b]
topics = ["y"]
output.topic = "x"
transforms = ["unwrap"]
group.id = "g"
[pipeline.c]
topics = 1
{STORE}"""


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (
            ALL,
            {
                "": "web.prot in.flight.bytes consumer.max.poll.records bootstrap.servers",
                "[pipeline.a] ": "transforms output.topic errors.tolerance s3.bucket",
                "[pipeline.b] ": "max.pending.chunked.message output.topic errors.deadletterqueue.topic.name",
                "[pipeline.d] ": "zzz",
                "[pipeline.e] ": "consumer.heartbeat.interval.ms consumer.fetch.max.wait.ms",
            },
        ),
        (
            BETWEEN,
            {
                "": "web.port",
                "[pipeline.b] ": "output.topic transforms group.id",
                "[pipeline.c] ": "topics output.topic transforms",
            },
        ),
    ],
    ids=["of each", "between pipelines"],
)
def test_all_errors_are_told_in_the_order_of_the_file(text: str, keys: dict[str, str]) -> None:
    """Errors of the worker, of each pipeline, and between pipelines: a line for each, and none that only follows."""
    expected = [place + key for place, named in keys.items() for key in named.split()]
    assert [each.split(": ")[0] for each in refusal_of(text).splitlines()] == expected


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


LOW = "consumer.max.poll.interval.ms = 30000\ntask.shutdown.graceful.timeout.ms = 10000\n"
WRITES_CHUNKS, SUMS = (ORDERS.replace(STORE, "").replace("offload", name) for name in ("chunk", "assemble"))


@pytest.mark.parametrize(
    ("taken", "refused"),
    [
        (LOW + WRITES_CHUNKS, LOW + ORDERS),  # where no store is asked, no time for it is needed
        (
            ORDERS.replace('"offload"', '"inflate", "chunk"') + "chunk.max.message.bytes = 200_000_000",
            SUMS + "chunk.max.message.bytes = 200_000_000",  # a limit for what is expected
        ),
        (ORDERS + 'consumer.isolation.level = "read_uncommitted"', None),
        (ORDERS + "transaction.boundary.interval.ms = 60000", None),
        (ORDERS + "producer.delivery.timeout.ms = 41000\nproducer.linger.ms = 1000", None),
        *(
            (S3.replace("offload", "inflate") + f's3.bucket = "{bucket}"\nreference.format = "{name}"', None)
            for bucket, name in itertools.product(("pay_loads", "pay.2024"), ("bakdata-headers", "bakdata-flag"))
        ),
        (S3 + 's3.bucket = "2-pay.loads"\ns3.prefix = "a/b-c~1"\nreference.format = "bakdata-flag"', None),
        (OWN_CLASS + 'reference.format = "bakdata-flag"', None),
        (ORDERS.replace("offload", "inflate") + 'reference.format = "bakdata-headers"', None),
    ],
)
def test_what_does_not_matter_refuses_nothing(taken: str, refused: str | None) -> None:
    """A value that could not work elsewhere is taken where it is of no concern."""
    only_pipeline(HEAD + taken)
    assert refused is None or refusal_of(HEAD + refused)


# --- the file itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a = ", "is not TOML: Invalid value (at end of document)"),
        (b"a = 1\nb b", "is not TOML: Expected '=' after a key in a key/value pair (at line 2, column 3)"),
        (b"a = '\xff'", "is not UTF-8, which TOML requires"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_file_that_is_no_configuration(tmp_path: Path, content: bytes | None, told: str) -> None:
    """The message names the file, and the line where there is one."""
    path = tmp_path / "wideload.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert str(caught.value) == f"{path}: {told}"
