"""The properties of the Kafka clients: security, consumer, producer. The settings hold their values by name.

All other properties are defined with the field that holds their value (`app/config/settings.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from stores.keys import Key, Kind
from transforms.compression import CODECS

_INT32 = 2_147_483_647  # the greatest number that Kafka's protocol has room for in these fields


def _int32(name: str, default: int, doc: str, minimum: int = 1, kind: Kind = "int") -> Key:
    return Key(name, kind, doc, default=default, minimum=minimum, maximum=_INT32)


def _bytes32(name: str, default: int, doc: str) -> Key:
    return _int32(name, default, doc, kind="bytes")


SECURITY_KEYS: Sequence[Key] = (
    Key(
        "security.protocol",
        "string",
        "The protocol used to communicate with the brokers.",
        default="PLAINTEXT",
        allowed=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    Key(
        "sasl.mechanism",
        "string",
        "The SASL mechanism used to authenticate. `GSSAPI`, Kafka's default, requires the package `gssapi`. "
        "`AWS_MSK_IAM` signs with the AWS credentials of the process, and requires the extra `msk`.",
        default="PLAIN",
        allowed=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM"),
    ),
    Key("sasl.username", "string", "The user name for PLAIN and SCRAM."),
    Key("sasl.password", "string", "The password for PLAIN and SCRAM.", secret=True),
    Key(
        "sasl.oauthbearer.token.endpoint.url",
        "string",
        "The URL from which OAUTHBEARER obtains tokens (KIP-768). Use `https://`; over `http://` the secret could be "
        "intercepted.",
    ),
    Key("sasl.oauthbearer.client.credentials.client.id", "string", "The client id for OAUTHBEARER."),
    Key(
        "sasl.oauthbearer.client.credentials.client.secret",
        "string",
        "The client secret for OAUTHBEARER.",
        secret=True,
    ),
    Key("sasl.oauthbearer.scope", "string", "The scope that OAUTHBEARER requests. Most providers need none."),
    Key(
        "sasl.aws.region",
        "string",
        "The region of the cluster for AWS_MSK_IAM. Default: the region in `bootstrap.servers`.",
    ),
    Key(
        "sasl.kerberos.service.name", "string", "The Kerberos service name of the brokers, for GSSAPI.", default="kafka"
    ),
    Key(
        "ssl.ca.location",
        "string",
        "The location of a PEM file with the certificate authorities to trust. Default: those of the system.",
    ),
    Key(
        "ssl.certificate.location", "string", "The location of a PEM file with the client's certificate and its chain."
    ),
    Key("ssl.key.location", "string", "The location of a PEM file with the client's private key."),
    Key("ssl.key.password", "string", "The password of the private key.", secret=True),
    Key(
        "ssl.endpoint.identification.algorithm",
        "string",
        "How the host name of a broker is verified. `https`: it must match the broker's certificate. `none`: it is "
        "not verified.",
        default="https",
        allowed=("https", "none"),
    ),
)

CONSUMER_KEYS: Sequence[Key] = (
    Key(
        "consumer.auto.offset.reset",
        "string",
        "Where a group without committed offsets starts. `earliest`: at the first record. `latest` (Kafka's default): "
        "after the last record. `none`: the pipeline stops. If it is not set, the group starts at the first record; "
        "but if the output topic already contains records, the worker does not start until it is set, since a renamed "
        "pipeline would write its records again.",
        allowed=("earliest", "latest", "none"),
    ),
    Key("consumer.check.crcs", "boolean", "Whether to verify the checksums of fetched batches.", default=True),
    Key(
        "consumer.client.rack",
        "string",
        "The rack of the worker, so that it fetches from the nearest replica (KIP-392).",
    ),
    _bytes32(
        "consumer.fetch.max.bytes",
        52_428_800,
        "The maximum size in bytes of a fetch response; a larger batch is still returned. The default is lower if a "
        "quarter of `in.flight.bytes` is.",
    ),
    _int32(
        "consumer.fetch.max.wait.ms",
        500,
        "The maximum time in milliseconds that a broker waits before it answers a fetch that has less than "
        "`consumer.fetch.min.bytes`.",
        minimum=0,
    ),
    _bytes32(
        "consumer.fetch.min.bytes", 1, "The minimum size in bytes for which a broker waits before it answers a fetch."
    ),
    Key(
        "consumer.group.instance.id",
        "string",
        "The id of a static group member (KIP-345), whose partitions are not reassigned when it restarts. Each worker "
        "needs a different id.",
    ),
    _int32(
        "consumer.heartbeat.interval.ms",
        3_000,
        "The interval in milliseconds between heartbeats to the group coordinator.",
    ),
    Key(
        "consumer.isolation.level",
        "string",
        "Whether to read records of transactions that are not committed. Unlike with Kafka's default of "
        "`read_uncommitted`, aborted records are not read.",
        default="read_committed",
        allowed=("read_committed", "read_uncommitted"),
    ),
    _bytes32(
        "consumer.max.partition.fetch.bytes",
        1_048_576,
        "The maximum size in bytes of the records of one partition in a fetch response; a larger batch is still "
        "returned, alone.",
    ),
    _int32(
        "consumer.max.poll.interval.ms",
        300_000,
        "The maximum time in milliseconds between two polls. If it is exceeded, the group reassigns the worker's "
        "partitions.",
    ),
    _int32(
        "consumer.max.poll.records",
        2_000,
        "The maximum number of records that are decoded before other partitions get their turn. Kafka's default of "
        "500 is slower; `in.flight.bytes` limits the bytes.",
    ),
    _int32(
        "consumer.metadata.max.age.ms",
        300_000,
        "The maximum time in milliseconds before the metadata of the cluster is refreshed.",
    ),
    _int32(
        "consumer.request.timeout.ms",
        40_000,
        "The maximum time in milliseconds to wait for a response. The default is longer than Kafka's 30,000, as in "
        "aiokafka. Joining a group may take up to `consumer.max.poll.interval.ms` plus 5 seconds, as a rebalance may "
        "take that long.",
    ),
    _int32(
        "consumer.retry.backoff.ms", 100, "The time in milliseconds to wait before a request is retried.", minimum=0
    ),
    _int32(
        "consumer.session.timeout.ms",
        45_000,
        "The maximum time in milliseconds between two heartbeats. If it is exceeded, the group reassigns the worker's "
        "partitions.",
    ),
)

PRODUCER_KEYS: Sequence[Key] = (
    Key(
        "producer.acks",
        "string",
        "Which replicas must acknowledge a record before it counts as written. Only `all` (or its synonym `-1`) is "
        "supported, as other values could lose records.",
        default="all",
        allowed=("all", "-1"),
    ),
    _bytes32(
        "producer.batch.size",
        131_072,
        "The maximum size in bytes of a batch, estimated before it is compressed ([batches](batches.md)). A larger "
        "record is sent alone. Under load, batches larger than Kafka's default of 16,384 save requests.",
    ),
    Key(
        "producer.compression.type",
        "string",
        "The compression codec of batches to the output topic. With `source`, each record keeps the codec of the "
        "batch that it was read from, as Kafka's brokers do with `producer`. The default of Kafka's producer is "
        "`none`.",
        default="source",
        allowed=("source", "none", *CODECS),
    ),
    _int32(
        "producer.delivery.timeout.ms",
        120_000,
        "The maximum time in milliseconds for a batch to be acknowledged, from its first record or from the response "
        "to the preceding batch of its partition. If it is exceeded, the pipeline restarts at its committed offsets. "
        "It must be at least the sum of `producer.linger.ms` and `producer.request.timeout.ms`.",
    ),
    _int32(
        "producer.linger.ms",
        0,
        "The maximum time in milliseconds that a batch that is not full waits for more records. Batches are sent "
        "immediately while `in.flight.bytes` is exhausted, when a transaction ends, and when the pipeline stops or "
        "loses partitions. Kafka's default is 5. With 0, a batch is filled while the preceding one is being sent, and "
        "does not wait longer.",
        minimum=0,
    ),
    _int32(
        "producer.metadata.max.age.ms",
        300_000,
        "The maximum time in milliseconds before the metadata of the cluster is refreshed.",
    ),
    _int32(
        "producer.request.timeout.ms",
        40_000,
        "The maximum time in milliseconds to wait for a response. The default is longer than Kafka's 30,000, as it "
        "also limits how long a batch waits for a leader of its partition.",
    ),
    _int32(
        "producer.retry.backoff.ms", 100, "The time in milliseconds to wait before a request is retried.", minimum=0
    ),
    _int32(
        "producer.transaction.timeout.ms",
        60_000,
        "The maximum time in milliseconds that a transaction may stay open with `exactly_once`. After that, the "
        "brokers abort it, and consumers continue with the records after it. It must not exceed the brokers' "
        "`transaction.max.timeout.ms`.",
    ),
)
