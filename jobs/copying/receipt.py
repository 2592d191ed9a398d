"""What a transaction of a backfill says of the range that it wrote: committed or aborted with the range itself.

It is the metadata of an offset, which the transaction commits for a group with the name of its transactional id. So
whoever does the range again learns that it is done, also where nobody could note it in the checkpoint any more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import aiokafka.errors as kafka_errors
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from jobs.copying.forms import FORMS, Mark, Tally

__all__ = ["Receipt", "committed"]

_RETRY_S = 0.1
_UNSTABLE = 88  # UNSTABLE_OFFSET_COMMIT, which aiokafka does not know
_OFFSETS = "__consumer_offsets"
_LATEST = -1
_BEHIND = (5, 78)  # OFFSET_NOT_AVAILABLE, which was LEADER_NOT_AVAILABLE before version 5 of the request


@dataclass(frozen=True, slots=True)
class Receipt:
    """A range that was written.

    Attributes:
        checkpoint: the id of the checkpoint.
        start: the first offset of the range.
        next: all records from there up to this offset are done.
        tally: what was read and written.
        end: a partition of the sink that was written to, and the offset behind the last record; None if none was.
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
    while True:
        try:
            node = await client.coordinator_lookup(CoordinationType.GROUP, group)
            if await _is_behind(client, node):
                await asyncio.sleep(_RETRY_S)
                continue
            response = await client.send(node, _FetchOffset(group, place), group=ConnectionGroup.COORDINATION)
            _raise(response.error_code)
            ((_, ((_, _, _, metadata, code, _),), _),) = response.topics
            if code != _UNSTABLE:
                _raise(code)
                return Receipt.read(metadata or "")
        except kafka_errors.KafkaError as exc:
            if not exc.retriable:
                raise
        await asyncio.sleep(_RETRY_S)


async def _is_behind(client: AIOKafkaClient, node: object) -> bool:
    """Whether a coordinator refuses to tell the latest offset of a partition of `__consumer_offsets` (KIP-207).

    Its high watermark is then older than what was committed. False if the user may not describe that topic.
    """
    request = MetadataRequest([_OFFSETS], allow_auto_topic_creation=False)
    ((*_, partitions),) = (await client.send(node, request, group=ConnectionGroup.COORDINATION)).topics
    wanted = [(_OFFSETS, [(number, _LATEST) for number in range(len(partitions))])]
    if not partitions:
        return False
    answer = await client.send(node, OffsetRequest(-1, 0, wanted), group=ConnectionGroup.COORDINATION)
    return any(code in _BEHIND for _, found in answer.topics for _, code, *_ in found)


def _raise(code: int) -> None:
    if code:
        raise kafka_errors.for_code(code)


def _rows(*fields: tuple[str, Any]) -> CompactArray:
    return CompactArray(*fields, ("tags", TaggedFields))


class _Answer(Response):  # type: ignore[misc]  # aiokafka tells no types
    """OffsetFetch, version 7, as in Apache Kafka's `clients/src/main/resources/common/message`."""

    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            _rows(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    _rows(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                    ),
                ),
            ),
        ),
        ("error_code", Int16),
    )


class _Request(RequestStruct):  # type: ignore[misc]
    API_KEY = 9
    API_VERSION = 7
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(
        ("group_id", CompactString("utf-8")),
        ("topics", _rows(("topic", CompactString("utf-8")), ("partitions", CompactArray(Int32)))),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class _FetchOffset:
    """The request for the committed offset of one partition, as `AIOKafkaClient.send` takes requests."""

    def __init__(self, group: str, place: TopicPartition) -> None:
        self._group = group
        self._place = place

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> RequestStruct:
        least, most = versions.get(_Request.API_KEY, (0, -1))
        if not least <= _Request.API_VERSION <= most:
            raise kafka_errors.IncompatibleBrokerVersion("backfill needs brokers of Kafka 2.5 or newer")
        return _Request(self._group, [(self._place.topic, [self._place.partition], {})], True, {})
