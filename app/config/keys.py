"""Every key of the configuration file but those of the stores: name, type, default, meaning.

The names are Kafka's, Kafka Connect's or librdkafka's wherever one of them has the thing.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.config.chunking import CHUNK_KEYS
from app.config.guarantee import GUARANTEE_KEYS, TIMEOUT_KEY
from app.config.reference_scope import REFERENCE_SCOPE_KEYS
from app.config.wrapping import WRAPPER_KEYS
from stores.keys import REQUIRED, Key
from transforms.compression import CODECS
from transforms.formats import FORMATS
from transforms.identifiers import LIMIT_KEY
from transforms.inflate import DEFAULT_MAX_BYTES
from transforms.offload import DEFAULT_THRESHOLD_BYTES

__all__ = [
    "CONNECTION_KEYS",
    "CONSUMER_KEYS",
    "PIPELINE_KEYS",
    "PRODUCER_KEYS",
    "SECURITY_KEYS",
    "WORKER_KEYS",
]

_INT32 = 2_147_483_647  # the greatest number that Kafka's protocol has room for in these fields

SECURITY_KEYS: Sequence[Key] = (
    Key(
        "security.protocol",
        "string",
        "How to talk to the brokers.",
        default="PLAINTEXT",
        allowed=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    Key(
        "sasl.mechanism",
        "string",
        "How to log in, where the protocol is a SASL one. Kafka's default is GSSAPI, which needs a package of its own.",
        default="PLAIN",
        allowed=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"),
    ),
    Key("sasl.username", "string", "The user, for PLAIN and SCRAM."),
    Key("sasl.password", "string", "The password, for PLAIN and SCRAM.", secret=True),
    Key("sasl.kerberos.service.name", "string", "The brokers' Kerberos service, for GSSAPI.", default="kafka"),
    Key("ssl.ca.location", "string", "PEM file with the authorities to trust; without it the system's own."),
    Key("ssl.certificate.location", "string", "PEM file with the client's certificate and its chain."),
    Key("ssl.key.location", "string", "PEM file with the client's private key."),
    Key("ssl.key.password", "string", "The private key's password.", secret=True),
    Key(
        "ssl.endpoint.identification.algorithm",
        "string",
        "`https` checks that a broker's certificate names its host; `none` does not.",
        default="https",
        allowed=("https", "none"),
    ),
)

CONNECTION_KEYS: Sequence[Key] = (
    Key("bootstrap.servers", "string", "Brokers to begin with: `host:port`, separated by commas.", default=REQUIRED),
    Key("client.id", "string", "The name by which the brokers' logs and quotas know the worker.", default="wideload"),
    Key(
        LIMIT_KEY,
        "boolean",
        "Whether names are held to the limits of Kafka 5.0 before a request is made (docs/limits.md). `false` lets "
        "pass what brokers of Kafka 4.x take, as their property of this name does; topic names have their limit in any "
        "case.",
        default=True,
    ),
    *SECURITY_KEYS,
)

WORKER_KEYS: Sequence[Key] = (
    *CONNECTION_KEYS,
    Key(
        "in.flight.bytes",
        "int",
        "The most bytes of records that all pipelines together hold; one record of each may go over. When it is spent, "
        "pipelines stop reading and go on by themselves.",
        default=DEFAULT_MAX_BYTES,
        minimum=1,
    ),
    Key(
        "store.threads",
        "int",
        "How many calls of its store each pipeline may have under way at once.",
        default=8,
        minimum=1,
    ),
    Key("web.bind", "string", "The address on which the pages are served.", default="127.0.0.1"),
    Key(
        "web.port",
        "int",
        "The port of the pages: /health, /pipelines, /metrics.",
        default=6066,
        minimum=1,
        maximum=65_535,
    ),
    Key(
        "task.shutdown.graceful.timeout.ms",
        "int",
        "How long a pipeline that stops, or loses partitions, may take to finish what it holds. What is not finished "
        "then is read again later. Connect's default, 5,000, is short for large payloads; 25,000 leaves a container "
        "five of its 30 seconds to stop.",
        default=25_000,
        minimum=0,
    ),
)

PIPELINE_KEYS: Sequence[Key] = (
    Key("topics", "list", "The topics to read.", default=REQUIRED),
    Key("output.topic", "string", "The topic to write, the sink.", default=REQUIRED),
    Key(
        "transforms",
        "list",
        "What is done to a record, in order: `assemble` (always first), `unwrap`, `inflate`, `offload`, `wrap`, "
        "`chunk` (always last).",
        default=REQUIRED,
    ),
    Key(
        "group.id",
        "string",
        "The consumer group, another one for each pipeline; `wideload-` and the pipeline's name where it is not given.",
    ),
    Key(
        "large.message.threshold.bytes",
        "int",
        "A value longer than this is offloaded; so is a record that the sink topic's `max.message.bytes` would refuse.",
        default=DEFAULT_THRESHOLD_BYTES,
        minimum=0,
    ),
    Key(
        "large.message.compression.type",
        "string",
        "How payloads are compressed in the store.",
        default="none",
        allowed=("none", *CODECS),
    ),
    Key(
        "reference.format",
        "string",
        "How `inflate` reads records and `offload` writes them. `bakdata-headers`, `bakdata-flag`: as bakdata's "
        "kafka-large-message-serde has them, with and without its `large.message.use.headers`.",
        default="wideload",
        allowed=tuple(FORMATS),
    ),
    Key(
        "large.message.payload.store.class",
        "string",
        "Where payloads live: `filesystem`, `s3`, `memory`, or a class of your own as `package.module.Class`. Needed "
        "by `offload` and `inflate`. Keys that are not listed here are handed to the store.",
    ),
    *REFERENCE_SCOPE_KEYS,
    *GUARANTEE_KEYS,
    *CHUNK_KEYS,
    *WRAPPER_KEYS,
    Key(
        "errors.tolerance",
        "string",
        "What a record that can never succeed does. `none`: it stops the pipeline. `all`: it goes to the dead-letter "
        "topic, so that the records behind it pass.",
        default="none",
        allowed=("none", "all"),
    ),
    Key(
        "errors.deadletterqueue.topic.name",
        "string",
        "The dead-letter topic; required where `errors.tolerance` is `all`, not used where it is `none`.",
    ),
    Key(
        "errors.deadletterqueue.context.headers.enable",
        "boolean",
        "Whether dead letters carry the headers `__connect.errors.*`. Connect's default is no; without them a dead "
        "letter does not say what is wrong with it.",
        default=True,
    ),
    Key(
        "errors.retry.delay.max.ms",
        "int",
        "The longest wait between two tries of what may yet succeed: store calls, and the connection to the brokers.",
        default=60_000,
        minimum=1,
    ),
    Key(
        "offset.flush.interval.ms",
        "int",
        "How often offsets are committed. After `kill -9` at most this much is done again, so it is shorter than "
        "Connect's 60,000.",
        default=1_000,
        minimum=1,
    ),
    Key(
        "topic.creation.enable",
        "boolean",
        "Whether the sink and the dead-letter topic are created where they are missing, with as many partitions as "
        "the source has. Connect's default is yes; here a name that is misspelt shall not become a topic.",
        default=False,
    ),
    Key(
        "topic.creation.default.replication.factor",
        "int",
        "Replicas of topics that are created; -1 for the cluster's default.",
        default=-1,
        minimum=-1,
        maximum=32_767,
    ),
)

CONSUMER_KEYS: Sequence[Key] = (
    Key(
        "consumer.auto.offset.reset",
        "string",
        "Where a group without committed offsets begins. Unlike Kafka's default (`latest`) nothing is passed over.",
        default="earliest",
        allowed=("earliest", "latest", "none"),
    ),
    Key("consumer.check.crcs", "boolean", "Whether the checksums of batches that are read are verified.", default=True),
    Key("consumer.client.rack", "string", "The rack, to read from the nearest replica (KIP-392)."),
    Key(
        "consumer.fetch.max.bytes",
        "int",
        "The most bytes of one fetch; a larger record still comes. Where a quarter of `in.flight.bytes` is less than "
        "the default, it is that.",
        default=52_428_800,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.fetch.max.wait.ms",
        "int",
        "The longest that a broker may hold a fetch back.",
        default=500,
        minimum=0,
        maximum=_INT32,
    ),
    Key(
        "consumer.fetch.min.bytes",
        "int",
        "The least bytes for which a broker answers a fetch.",
        default=1,
        minimum=1,
        maximum=_INT32,
    ),
    Key("consumer.group.instance.id", "string", "Static membership (KIP-345): a restart moves no partitions."),
    Key(
        "consumer.heartbeat.interval.ms",
        "int",
        "How often the group hears of the worker.",
        default=3_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.isolation.level",
        "string",
        "Whether records of transactions that are not committed are read. Unlike Kafka's default (`read_uncommitted`) "
        "no aborted record is passed on.",
        default="read_committed",
        allowed=("read_committed", "read_uncommitted"),
    ),
    Key(
        "consumer.max.partition.fetch.bytes",
        "int",
        "The most bytes of one partition in a fetch; a larger record still comes, alone.",
        default=1_048_576,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.max.poll.interval.ms",
        "int",
        "After so long without a poll the group takes the partitions away.",
        default=300_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.max.poll.records",
        "int",
        "The most records of one poll. Kafka's default, 500, is slower; bytes are bounded by `in.flight.bytes`.",
        default=2_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.metadata.max.age.ms",
        "int",
        "How old the picture of the cluster may get.",
        default=300_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.request.timeout.ms",
        "int",
        "How long to wait for an answer. Longer than Kafka's 30,000: the wait for the rest of the group to join is one "
        "too, and the others may drain for `task.shutdown.graceful.timeout.ms`.",
        default=40_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.retry.backoff.ms",
        "int",
        "The wait before a request is sent again.",
        default=100,
        minimum=0,
        maximum=_INT32,
    ),
    Key(
        "consumer.session.timeout.ms",
        "int",
        "After so long without a heartbeat the group takes the partitions away.",
        default=45_000,
        minimum=1,
        maximum=_INT32,
    ),
)

PRODUCER_KEYS: Sequence[Key] = (
    Key(
        "producer.acks",
        "string",
        "Which replicas must have a record; anything but `all` could lose some.",
        default="all",
        allowed=("all", "-1"),
    ),
    Key(
        "producer.batch.size",
        "int",
        "The most bytes of a batch, as far as that can be told before it is compressed (see [batches.md](batches.md)); "
        "a larger record travels alone. Under load, more than Kafka's 16,384 in one saves requests.",
        default=131_072,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "producer.compression.type",
        "string",
        "How batches are compressed on the way to the sink.",
        default="none",
        allowed=("none", *CODECS),
    ),
    Key(
        "producer.delivery.timeout.ms",
        "int",
        "How long after its first record, or after the answer to the batch before it in its partition, a batch must "
        "have been acknowledged. After that the pipeline begins again at its committed offsets. At least "
        "`producer.linger.ms` and `producer.request.timeout.ms` together.",
        default=120_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "producer.linger.ms",
        "int",
        "How long a batch that is not full waits for more records; not while `in.flight.bytes` is spent, nor when the "
        "pipeline stops or the group takes partitions away. Kafka's default is 5; with 0 a batch fills while the one "
        "before it is on its way, and waits no longer.",
        default=0,
        minimum=0,
        maximum=_INT32,
    ),
    Key(
        "producer.metadata.max.age.ms",
        "int",
        "How old the picture of the cluster may get.",
        default=300_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "producer.request.timeout.ms",
        "int",
        "How long to wait for an answer. Longer than Kafka's 30,000: a batch whose partition has no leader waits no "
        "longer than this for one.",
        default=40_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "producer.retry.backoff.ms",
        "int",
        "The wait before a request is sent again.",
        default=100,
        minimum=0,
        maximum=_INT32,
    ),
    TIMEOUT_KEY,
)
