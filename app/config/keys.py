"""The keys of the Kafka clients: security, consumer, producer. The settings hold their values by name.

All other keys stand beside the field that holds their value (`app/config/settings.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from stores.keys import Key
from transforms.compression import CODECS

__all__ = ["CONSUMER_KEYS", "PRODUCER_KEYS", "SECURITY_KEYS"]

_INT32 = 2_147_483_647  # the greatest number that Kafka's protocol has room for in these fields

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
        "How to log in with a SASL protocol. Kafka's default is GSSAPI, which needs an extra package.",
        default="PLAIN",
        allowed=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"),
    ),
    Key("sasl.username", "string", "The user, for PLAIN and SCRAM."),
    Key("sasl.password", "string", "The password, for PLAIN and SCRAM.", secret=True),
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
        "Where a group without committed offsets begins. Unlike with Kafka's default (`latest`), no record is skipped.",
        default="earliest",
        allowed=("earliest", "latest", "none"),
    ),
    Key("consumer.check.crcs", "boolean", "Whether the checksums of fetched batches are verified.", default=True),
    Key("consumer.client.rack", "string", "The rack of the worker, to read from the nearest replica (KIP-392)."),
    Key(
        "consumer.fetch.max.bytes",
        "int",
        "The most bytes of one fetch; a larger record is still returned. If a quarter of `in.flight.bytes` is less "
        "than the default, that is the default.",
        default=52_428_800,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.fetch.max.wait.ms",
        "int",
        "The longest time that a broker waits before it answers a fetch.",
        default=500,
        minimum=0,
        maximum=_INT32,
    ),
    Key(
        "consumer.fetch.min.bytes",
        "int",
        "The least bytes that a broker waits for before it answers a fetch.",
        default=1,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.group.instance.id",
        "string",
        "The name of a static member (KIP-345): after its restart, partitions do not move.",
    ),
    Key(
        "consumer.heartbeat.interval.ms",
        "int",
        "How often the worker sends a heartbeat to the group coordinator.",
        default=3_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.isolation.level",
        "string",
        "Whether records of transactions that are not committed are read. Unlike with Kafka's default "
        "(`read_uncommitted`), no aborted record is read.",
        default="read_committed",
        allowed=("read_committed", "read_uncommitted"),
    ),
    Key(
        "consumer.max.partition.fetch.bytes",
        "int",
        "The most bytes of one partition in a fetch; a larger record is still returned, alone.",
        default=1_048_576,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.max.poll.interval.ms",
        "int",
        "After this time without a poll, the worker loses its partitions to the group.",
        default=300_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.max.poll.records",
        "int",
        "The most records of one poll. Kafka's default, 500, is slower; `in.flight.bytes` bounds the bytes.",
        default=2_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.metadata.max.age.ms",
        "int",
        "How old the metadata of the cluster may get before it is asked for again.",
        default=300_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "consumer.request.timeout.ms",
        "int",
        "How long to wait for a response. Longer than Kafka's 30,000: to join a group is one request, and it waits "
        "while other members finish their records, for up to `task.shutdown.graceful.timeout.ms`.",
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
        "After this time without a heartbeat, the worker loses its partitions to the group.",
        default=45_000,
        minimum=1,
        maximum=_INT32,
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
    Key(
        "producer.batch.size",
        "int",
        "The most bytes of a batch, estimated before it is compressed (see [batches.md](batches.md)); a larger record "
        "is sent alone. Under load, batches larger than Kafka's 16,384 save requests.",
        default=131_072,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "producer.compression.type",
        "string",
        "How batches to the sink are compressed.",
        default="none",
        allowed=("none", *CODECS),
    ),
    Key(
        "producer.delivery.timeout.ms",
        "int",
        "The time in which a batch must be acknowledged. It begins with the batch's first record, or with the "
        "response to the batch before it in its partition. After it, the pipeline begins again at its committed "
        "offsets. At least the sum of `producer.linger.ms` and `producer.request.timeout.ms`.",
        default=120_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "producer.linger.ms",
        "int",
        "How long a batch that is not full waits for more records. It does not wait while `in.flight.bytes` is used "
        "up, nor when the pipeline stops or loses partitions. Kafka's default is 5; with 0 a batch is filled while "
        "the one before it is being sent, and waits no longer.",
        default=0,
        minimum=0,
        maximum=_INT32,
    ),
    Key(
        "producer.metadata.max.age.ms",
        "int",
        "How old the metadata of the cluster may get before it is asked for again.",
        default=300_000,
        minimum=1,
        maximum=_INT32,
    ),
    Key(
        "producer.request.timeout.ms",
        "int",
        "How long to wait for a response. Longer than Kafka's 30,000: it also limits how long a batch waits for a "
        "leader of its partition.",
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
    Key(
        "producer.transaction.timeout.ms",
        "int",
        "With `exactly_once`: after this time the brokers abort a transaction that was not ended, and readers go on. "
        "At most the brokers' `transaction.max.timeout.ms`.",
        default=60_000,
        minimum=1,
        maximum=_INT32,
    ),
)
