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
    Key(
        "producer.transaction.timeout.ms",
        "int",
        "With `exactly_once`: after so long the brokers abort a transaction that was not ended, and let readers go on; "
        "no more than their `transaction.max.timeout.ms`.",
        default=60_000,
        minimum=1,
        maximum=_INT32,
    ),
)
