"""The processing guarantee of a pipeline: at least once, or exactly once with transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.config.fields import keyed, settings_of
from transforms.errors import ConfigurationError

_GUARANTEE = "processing.guarantee"
INTERVAL = "transaction.boundary.interval.ms"
_BOUNDARY = "transaction.boundary.type"
_BYTES = "transaction.boundary.bytes"
TIMEOUT = "producer.transaction.timeout.ms"
_ISOLATION = "consumer.isolation.level"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """The guarantee, and the bounds of a transaction.

    Attributes:
        size: bytes of records.
        timeout_ms: the brokers abort a transaction that is older.
    """

    name: Literal["at_least_once", "exactly_once"] = keyed(
        _GUARANTEE,
        "string",
        "The processing guarantee. With `exactly_once`, the results, dead-letter records and committed offsets of a "
        "source partition are written in one transaction, so that consumers with `isolation.level` = `read_committed` "
        "read each result once, regardless of failures ([exactly-once](exactly-once.md)).",
        default="at_least_once",
        allowed=("at_least_once", "exactly_once"),
    )
    boundary: Literal["poll", "interval"] = keyed(
        _BOUNDARY,
        "string",
        "When transactions are committed, as with Connect's `transaction.boundary`. `poll`: as soon as all available "
        "records are written, that is, the source partition is read to its end and no transform is still working on "
        "its records. A pipeline then commits up to 150 transactions per second in each worker, and "
        "`producer.linger.ms` does not delay them. `interval`: when the transaction reaches its maximum age or size, "
        "which results in fewer transactions.",
        default="poll",
        allowed=("poll", "interval"),
    )
    interval_ms: int = keyed(
        INTERVAL,
        "int",
        "The maximum age in milliseconds of a transaction before it is committed. Consumers see its records only "
        "then. Connect's default is `offset.flush.interval.ms`; this default is that of `commit.interval.ms` in Kafka "
        "Streams with exactly-once.",
        default=100,
        minimum=1,
        maximum=2_147_483_647,
    )
    size: int = keyed(
        _BYTES,
        "bytes",
        "The size in bytes at which a transaction is committed before its maximum age: keys, values and headers, plus "
        "400 bytes per record. The results of one record, such as the chunks of a value, are never split between "
        "transactions.",
        default=16_777_216,
        minimum=1,
    )
    timeout_ms: int

    @property
    def exactly_once(self) -> bool:
        """Whether there are transactions."""
        return self.name == "exactly_once"


def guarantee_of(values: Mapping[str, Any]) -> Guarantee:
    """The guarantee from the values of a pipeline's properties.

    Raises:
        ConfigurationError: some values contradict each other.
    """
    guarantee = settings_of(Guarantee, values, timeout_ms=values[TIMEOUT])
    if not guarantee.exactly_once:
        return guarantee
    if values[_ISOLATION] != "read_committed":
        raise ConfigurationError(
            _ISOLATION,
            f'found {values[_ISOLATION]!r}, allowed with {_GUARANTEE} = "exactly_once" is "read_committed": otherwise '
            "the results of aborted records would be committed",
        )
    if guarantee.interval_ms >= guarantee.timeout_ms:
        raise ConfigurationError(
            INTERVAL,
            f"found {guarantee.interval_ms:,}, allowed is less than {TIMEOUT}, which is {guarantee.timeout_ms:,}: the "
            "brokers would abort transactions before they are committed",
        )
    return guarantee
