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
        "`exactly_once`: results, dead letters and committed offsets of a source partition are in one transaction. "
        "Readers with `isolation.level` = `read_committed` see each result once, whatever fails (see "
        "[exactly-once.md](exactly-once.md)).",
        default="at_least_once",
        allowed=("at_least_once", "exactly_once"),
    )
    boundary: Literal["poll", "interval"] = keyed(
        _BOUNDARY,
        "string",
        "`poll`: a transaction is committed as soon as all that is at hand is written in it: the source partition is "
        "read to its end, and no stage works on its records. In each worker a pipeline ends up to 150 transactions a "
        "second this way; `producer.linger.ms` does not delay them. `interval`: only age and size count, which makes "
        "fewer transactions. The values are those of Connect's `transaction.boundary`.",
        default="poll",
        allowed=("poll", "interval"),
    )
    interval_ms: int = keyed(
        INTERVAL,
        "int",
        "The age at which a transaction is committed at the latest; only then do readers see its records. Connect's "
        "default is that "
        "of `offset.flush.interval.ms`; this default is that of `commit.interval.ms` in Kafka Streams with exactly "
        "once.",
        default=100,
        minimum=1,
        maximum=2_147_483_647,
    )
    size: int = keyed(
        _BYTES,
        "bytes",
        "A transaction with this many bytes of records (keys, values, headers, and 400 for each record) is committed "
        "earlier. The results of one record, such as the chunks of a value, are never divided.",
        default=16_777_216,
        minimum=1,
    )
    timeout_ms: int

    @property
    def exactly_once(self) -> bool:
        """Whether there are transactions."""
        return self.name == "exactly_once"


def guarantee_of(values: Mapping[str, Any]) -> Guarantee:
    """The guarantee from the values of a pipeline's keys.

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
