"""What a pipeline guarantees of how often a record comes out, and the keys that say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stores.keys import Key
from transforms.errors import ConfigurationError

__all__ = ["GUARANTEE_KEYS", "INTERVAL", "TIMEOUT", "TIMEOUT_KEY", "Guarantee", "guarantee_of"]

_GUARANTEE = "processing.guarantee"
INTERVAL = "transaction.boundary.interval.ms"
_BYTES = "transaction.boundary.bytes"
TIMEOUT = "producer.transaction.timeout.ms"
_ISOLATION = "consumer.isolation.level"

GUARANTEE_KEYS: Sequence[Key] = (
    Key(
        _GUARANTEE,
        "string",
        "`exactly_once`: results, dead letters and committed offsets of a source partition go in one transaction, so "
        "readers with `isolation.level` = `read_committed` see each result once, whatever fails (see "
        "[reliability.md](reliability.md#exactly-once)).",
        default="at_least_once",
        allowed=("at_least_once", "exactly_once"),
    ),
    Key(
        INTERVAL,
        "int",
        "How old a transaction gets before it is committed; readers see its records then. Connect's default is that of "
        "`offset.flush.interval.ms`; this is what Kafka Streams takes as `commit.interval.ms` with exactly once.",
        default=100,
        minimum=1,
        maximum=2_147_483_647,
    ),
    Key(
        _BYTES,
        "int",
        "A transaction whose records take so many bytes (keys, values, headers, and 400 for each record) is committed "
        "before its time. What comes of one record, such as the chunks of a value, is never divided.",
        default=16_777_216,
        minimum=1,
    ),
)

TIMEOUT_KEY = Key(
    TIMEOUT,
    "int",
    "With `exactly_once`: after so long the brokers abort a transaction that was not ended, and let readers go on; no "
    "more than their `transaction.max.timeout.ms`.",
    default=60_000,
    minimum=1,
    maximum=2_147_483_647,
)


@dataclass(frozen=True, slots=True)
class Guarantee:
    """How often a record comes out.

    Attributes:
        exactly_once: with transactions; else at least once, without.
        interval_ms: how old a transaction gets.
        size: the bytes of records with which one is committed before that.
        timeout_ms: after which brokers abort one.
    """

    exactly_once: bool
    interval_ms: int
    size: int
    timeout_ms: int

    @property
    def name(self) -> str:
        """As `processing.guarantee` has it."""
        return "exactly_once" if self.exactly_once else "at_least_once"

    def values(self) -> dict[str, object]:
        """The values of `GUARANTEE_KEYS`, by name."""
        return {_GUARANTEE: self.name, INTERVAL: self.interval_ms, _BYTES: self.size}


def guarantee_of(values: Mapping[str, Any]) -> Guarantee:
    """What the values of a pipeline's keys come to.

    Raises:
        ConfigurationError: some do not go together.
    """
    guarantee = Guarantee(values[_GUARANTEE] == "exactly_once", values[INTERVAL], values[_BYTES], values[TIMEOUT])
    if not guarantee.exactly_once:
        return guarantee
    if values[_ISOLATION] != "read_committed":
        raise ConfigurationError(
            _ISOLATION,
            f'found {values[_ISOLATION]!r}, allowed is "read_committed": {_GUARANTEE} = "exactly_once" cannot take '
            "back what it has made of a record that its producer takes back",
        )
    if guarantee.interval_ms >= guarantee.timeout_ms:
        raise ConfigurationError(
            INTERVAL,
            f"found {guarantee.interval_ms:,}, allowed is less than {TIMEOUT}, which is {guarantee.timeout_ms:,}: the "
            "brokers would abort transactions before they end",
        )
    return guarantee
