"""What is swept, what is read for it, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from app.config.settings import ClientSettings
from app.kafka.spans import TopicSpans, described, identified
from transforms.errors import ConfigurationError
from transforms.formats import FormatName

DEFAULT_GRACE = timedelta(hours=24)
"""The age that a payload must have: longer than any outage of the brokers that a worker may wait for."""

LEAST_GRACE = timedelta(hours=1)
"""A payload is older than its record: by a send and its retries, or by a worker's wait for a broker. A store call may
take a minute and a delivery two, so an hour covers the restart of a broker."""
DELIVERY = timedelta(minutes=2)  # Kafka's `delivery.timeout.ms`

DEFAULT_MAX_DELETE_FRACTION = 0.5
DEFAULT_RECORDS = 1_000
DEFAULT_TIME = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """What is swept.

    Attributes:
        client: how to reach the cluster.
        store: the configuration of the store; may hold secrets.
        topics: the topics whose payloads are swept, and whose records are read.
        deleted_topics: topics whose payloads are swept, and which must not exist in the cluster.
        carriers: more topics to read, as they may refer to those payloads: dead letters, copies.
        reference_format: how these topics refer to payloads, if `formats` does not name them.
        formats: the formats of single topics, by name.
        any_name: whether an object is swept even if its name is not one that this project's stores give to payloads.
        grace: how old a payload must be; with `newest_only` an overwritten record counts for as long.
        in_flight: the longest time from a payload to its record, as far as it is known.
        short_grace: whether the minimum age may be shorter than the time in flight.
        newest_only: whether overwritten records of compacted topics, which are still in the log, count only for as long
            as `grace`.
        max_delete_fraction: the largest part of a topic's payloads that may be removed, from 0 to 1.
        other_roots: beginnings of paths to other stores; any other path outside the root is refused.
        delete: whether to delete; else it is only reported what would be deleted.
        quarantined: some of the topics that are read. Their payloads are left alone, and those of their records that
            say that they are references, and cannot be read, are not a reason to refuse.
        ignored: names of topics, or patterns of them (`team-b-*`), whose references do not count.
        search_records: how many of the newest offsets of each partition of all other topics are searched for
            references; markers of transactions, and records that compaction removed, have offsets too.
        search_time: how long that may last.
        report: where all payloads are written, with their states, before any is removed; None for nowhere.
    """

    client: ClientSettings
    store: Mapping[str, object] = field(repr=False)
    topics: tuple[str, ...]
    deleted_topics: tuple[str, ...] = ()
    carriers: tuple[str, ...] = ()
    reference_format: FormatName = "wideload"
    formats: Mapping[str, FormatName] = field(default_factory=dict)
    any_name: bool = False
    grace: timedelta = DEFAULT_GRACE
    in_flight: timedelta = timedelta(0)
    short_grace: bool = False
    newest_only: bool = False
    max_delete_fraction: float = DEFAULT_MAX_DELETE_FRACTION
    other_roots: tuple[str, ...] = ()
    delete: bool = False
    quarantined: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    search_records: int = DEFAULT_RECORDS
    search_time: timedelta = DEFAULT_TIME
    report: str | None = None

    @property
    def read_topics(self) -> list[str]:
        """Every topic whose records are read."""
        return [*self.topics, *self.carriers]

    @property
    def swept_topics(self) -> list[str]:
        """Every topic whose payloads are swept."""
        return [name for name in (*self.topics, *self.deleted_topics) if name not in self.quarantined]

    def format_of(self, topic: str) -> FormatName:
        """How a topic refers to payloads."""
        return self.formats.get(topic, self.reference_format)

    def described(self) -> dict[str, TopicSpans]:
        """The topics that are read, as they are now."""
        return described(self.client, {"--topic": self.topics, "--carrier": self.carriers})

    def still_there(self) -> list[str]:
        """Which of the deleted topics exist."""
        found = identified(self.client, self.deleted_topics) if self.deleted_topics else {}
        for name in self.deleted_topics:
            if name not in found:
                raise ConfigurationError(
                    "--deleted-topic", f"these credentials may not describe {name}, which may exist; grant Describe"
                )
        return [name for name, identity in found.items() if identity is not None]
