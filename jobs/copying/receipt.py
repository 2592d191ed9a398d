"""What a transaction of a backfill says of the range that it wrote: committed or aborted with the range itself.

It is the metadata of an offset, which the transaction commits for a group with the name of its transactional id. So
a run that repeats the range learns that it is done, also where nobody could note it in the checkpoint any more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import cast

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient

from app.kafka.offset_fetches import FetchOffsets, OffsetFetches, ask_coordinator
from jobs.copying.forms import FORMS, Mark, Tally

_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Receipt:
    """A range that was written.

    Attributes:
        checkpoint: the id of the checkpoint.
        start: the first offset of the range.
        next: all records from there up to this offset are done.
        tally: what was read and written.
        end: a partition of the output topic that was written to, and the offset behind the last record; None if none
            was.
        mark: the mark of the last record that was read, if that is done.
    """

    checkpoint: str
    start: int
    next: int
    tally: Tally = field(default_factory=Tally)
    end: tuple[int, int] | None = None
    mark: Mark | None = None

    def text(self) -> str:
        """The receipt as metadata: some 300 bytes; by default brokers take 4,096."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Receipt | None:
        """The receipt in the metadata of an offset; None if that is anything else."""
        try:
            found = json.loads(text)
            forms = {form: list(_pair(*pair)) for form, pair in found["tally"].pop("forms").items()}
            counts = dict(zip(found["tally"], _counts(*found["tally"].values()), strict=True))
            end, mark = (None if found[name] is None else _pair(*found[name]) for name in ("end", "mark"))
            start, after = _pair(found["start"], found["next"])
            if isinstance(found["checkpoint"], str) and forms.keys() <= set(FORMS):
                return cls(found["checkpoint"], start, after, Tally(forms, **counts), end, mark)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            pass
        return None

    def is_ahead(self, checkpoint: str, offset: int) -> bool:
        """Whether this checkpoint has records behind this offset that are done."""
        return self.checkpoint == checkpoint and self.next > offset


def _counts(*found: object) -> Sequence[int]:
    if all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in found):
        return cast("Sequence[int]", found)
    raise ValueError(found)


def _pair(*found: object) -> tuple[int, int]:
    first, second = _counts(*found)
    return first, second


async def committed(client: AIOKafkaClient, group: str, place: TopicPartition) -> Receipt | None:
    """The receipt that the group has for a partition, once no open transaction can change it (KIP-447; Kafka 2.5).

    It waits until the coordinator has all that was committed: after a kill of all brokers its first answers are older.

    Raises:
        aiokafka.errors.KafkaError: the coordinator refuses.
    """
    OffsetFetches(client, _RETRY_S)
    request = FetchOffsets(group, [place], stable=True)
    found = await ask_coordinator(client, group, request, request.commits, _RETRY_S)
    return Receipt.read(found[place].metadata) if place in found else None
