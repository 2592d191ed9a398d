"""The keys of the Kafka clients: security, consumer, producer. The settings hold their values by name.

All other keys stand beside the field that holds their value (`app/config/settings.py`).
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
        "The protocol to the brokers.",
        default="PLAINTEXT",
        allowed=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    Key(
        "sasl.mechanism",
        "string",
        "How to log in with a SASL protocol. Kafka's default is GSSAPI, which needs an extra package. AWS_MSK_IAM "
        "signs with the AWS credentials of the process, and needs the extra `msk`.",
        default="PLAIN",
        allowed=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM"),
    ),
    Key("sasl.username", "string", "The user, for PLAIN and SCRAM."),
    Key("sasl.password", "string", "The password, for PLAIN and SCRAM.", secret=True),
    Key(
        "sasl.oauthbearer.token.endpoint.url",
        "string",
        "Where OAUTHBEARER asks for tokens (KIP-768). An https:// address; over http:// others can read the secret.",
    ),
    Key("sasl.oauthbearer.client.credentials.client.id", "string", "The client's id, for OAUTHBEARER."),
    Key(
        "sasl.oauthbearer.client.credentials.client.secret",
        "string",
        "The client's secret, for OAUTHBEARER.",
        secret=True,
    ),
    Key("sasl.oauthbearer.scope", "string", "The scope that OAUTHBEARER asks for; most providers need none."),
    Key(
        "sasl.aws.region",
        "string",
        "The region of the cluster, for AWS_MSK_IAM; by default the one in `bootstrap.servers`.",
    ),
    Key("sasl.kerberos.service.name", "string", "The brokers' Kerberos service, for GSSAPI.", default="kafka"),
    Key(
        "ssl.ca.location",
        "string",
        "PEM file with the certificate authorities to trust; by default those of the system.",
    ),
    Key("ssl.certificate.location", "string", "PEM file with the client's certificate and its chain."),
    Key("ssl.key.location", "string", "PEM file with the client's private key."),
    Key("ssl.key.password", "string", "The private key's password.", secret=True),
    Key(
        "ssl.endpoint.identification.algorithm",
        "string",
        "`https` checks that a broker's certificate has the name of its host; `none` does not.",
        default="https",
        allowed=("https", "none"),
    ),
)

CONSUMER_KEYS: Sequence[Key] = (
    Key(
        "consumer.auto.offset.reset",
        "string",
        "Where a group that has committed nothing begins. `earliest`: at the first record. `latest`, Kafka's default: "
        "behind the last. `none`: the pipeline stops. If it is not set, at the first record; but if the output topic "
        "was written to before, the worker does not start until it is set: a pipeline that was renamed would write its "
        "records again.",
        allowed=("earliest", "latest", "none"),
    ),
    Key("consumer.check.crcs", "boolean", "Whether the checksums of fetched batches are verified.", default=True),
    Key("consumer.client.rack", "string", "The rack of the worker, to read from the nearest replica (KIP-392)."),
    _bytes32(
        "consumer.fetch.max.bytes",
        52_428_800,
        "The most bytes of one fetch; a larger record is still returned. If a quarter of `in.flight.bytes` is less "
        "than the default, that is the default.",
    ),
    _int32(
        "consumer.fetch.max.wait.ms", 500, "The longest time that a broker waits before it answers a fetch.", minimum=0
    ),
    _bytes32("consumer.fetch.min.bytes", 1, "The least bytes that a broker waits for before it answers a fetch."),
    Key(
        "consumer.group.instance.id",
        "string",
        "The name of a static member (KIP-345): after its restart, partitions do not move. Each worker needs its own.",
    ),
    _int32("consumer.heartbeat.interval.ms", 3_000, "How often the worker sends a heartbeat to the group coordinator."),
    Key(
        "consumer.isolation.level",
        "string",
        "Whether records of transactions that are not committed are read. Unlike with Kafka's default "
        "(`read_uncommitted`), no aborted record is read.",
        default="read_committed",
        allowed=("read_committed", "read_uncommitted"),
    ),
    _bytes32(
        "consumer.max.partition.fetch.bytes",
        1_048_576,
        "The most bytes of one partition in a fetch; a larger record is still returned, alone.",
    ),
    _int32(
        "consumer.max.poll.interval.ms",
        300_000,
        "After this time without a poll, the worker loses its partitions to the group.",
    ),
    _int32(
        "consumer.max.poll.records",
        2_000,
        "The most records that are looked at one by one before other partitions have their turn. Kafka's default, "
        "500, is slower; `in.flight.bytes` bounds the bytes.",
    ),
    _int32(
        "consumer.metadata.max.age.ms",
        300_000,
        "How old the metadata of the cluster may get before it is asked for again.",
    ),
    _int32(
        "consumer.request.timeout.ms",
        40_000,
        "How long to wait for a response. Longer than Kafka's 30,000, as aiokafka has it. Only to join a group takes "
        "longer: up to `consumer.max.poll.interval.ms` and 5 s, as long as a rebalance may take.",
    ),
    _int32("consumer.retry.backoff.ms", 100, "The wait before a request is sent again.", minimum=0),
    _int32(
        "consumer.session.timeout.ms",
        45_000,
        "After this time without a heartbeat, the worker loses its partitions to the group.",
    ),
)

PRODUCER_KEYS: Sequence[Key] = (
    Key(
        "producer.acks",
        "string",
        "Which replicas must have a record before it counts as written; any other value than `all` could lose records.",
        default="all",
        allowed=("all", "-1"),
    ),
    _bytes32(
        "producer.batch.size",
        131_072,
        "The most bytes of a batch, estimated before it is compressed (see [batches.md](batches.md)); a larger record "
        "is sent alone. Under load, batches larger than Kafka's 16,384 save requests.",
    ),
    Key(
        "producer.compression.type",
        "string",
        "How batches to the sink are compressed. With `source`, each record leaves with the codec that it came with; "
        "Kafka's brokers call that `producer`.",
        default="source",
        allowed=("source", "none", *CODECS),
    ),
    _int32(
        "producer.delivery.timeout.ms",
        120_000,
        "The time in which a batch must be acknowledged. It begins with the batch's first record, or with the "
        "response to the batch before it in its partition. After it, the pipeline begins again at its committed "
        "offsets. At least the sum of `producer.linger.ms` and `producer.request.timeout.ms`.",
    ),
    _int32(
        "producer.linger.ms",
        0,
        "How long a batch that is not full waits for more records. It does not wait while `in.flight.bytes` is used "
        "up, nor when a transaction ends, nor when the pipeline stops or loses partitions. Kafka's default is 5; with "
        "0 a batch is filled while the one before it is being sent, and waits no longer.",
        minimum=0,
    ),
    _int32(
        "producer.metadata.max.age.ms",
        300_000,
        "How old the metadata of the cluster may get before it is asked for again.",
    ),
    _int32(
        "producer.request.timeout.ms",
        40_000,
        "How long to wait for a response. Longer than Kafka's 30,000: it also limits how long a batch waits for a "
        "leader of its partition.",
    ),
    _int32("producer.retry.backoff.ms", 100, "The wait before a request is sent again.", minimum=0),
    _int32(
        "producer.transaction.timeout.ms",
        60_000,
        "With `exactly_once`: after this time the brokers abort a transaction that was not ended, and readers go on. "
        "At most the brokers' `transaction.max.timeout.ms`.",
    ),
)
