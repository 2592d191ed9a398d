"""A flow and its sink against a real broker, without the process around them: what they do when things break."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from aiokafka.producer import message_accumulator
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from app.batches import Batches
from app.budget import Budget, Share
from app.ending import RecordError
from app.flow import Flow
from app.preflight import plan_pipeline
from app.settings import parse
from app.sink import Sink
from app.stages import Chain, Stage
from app.stats import PipelineStats
from app.tracker import OffsetTracker
from tests.integration.topics import end_offsets, send
from tests.integration.way import MakeTopic
from transforms.record import Header, RecordLike


@dataclass(frozen=True)
class Written:
    """A record to write."""

    key: bytes | None
    value: bytes | None = b"v"
    headers: tuple[Header, ...] = ()
    timestamp: int = 1_700_000_000_000


def test_sink_refused_first_batch_stops_the_next(broker: str, make_topic: MakeTopic) -> None:
    """No record passes one that the broker refused, though the producer had written nothing before."""
    topic = make_topic(1, **{"cleanup.policy": "compact"})  # which takes no record without a key

    async def write() -> tuple[list[BaseException], int]:
        failures: list[BaseException] = []
        failed = asyncio.Event()

        def fail(error: BaseException, at: str) -> None:
            assert at == topic
            failures.append(error)
            failed.set()

        tracker = OffsetTracker(0)
        async with AIOKafkaProducer(bootstrap_servers=broker, acks="all", enable_idempotence=True) as producer:
            batches = Batches(producer, halts=True, failed=fail)
            sink = Sink(batches, topic, Share(Budget(1_000)), acknowledged=lambda records, size: None)
            for offset, key in enumerate((None, b"behind")):
                sink.append(0, Written(key), tracker, offset, 1)
                sink.flush()
                await asyncio.sleep(0)
            async with asyncio.timeout(20):
                await failed.wait()
            sink.flush()
            await asyncio.sleep(0)
            with contextlib.suppress(KafkaError):
                await producer.flush()
        return failures, tracker.safe()

    failures, safe = asyncio.run(write())
    assert failures
    assert safe == 0
    assert end_offsets(broker, topic) == {0: 0}


class Careless:
    """A stage with a defect: what it makes cannot be written."""

    name = "careless"

    def wants(self, record: RecordLike) -> bool:
        """Every record."""
        return True

    def moves(self, record: RecordLike) -> bool:
        """None."""
        return False

    blocks = moves

    def reserve_bytes(self, record: RecordLike) -> int:
        """None."""
        return 0

    def apply(self, record: RecordLike, _source: RecordLike) -> Sequence[RecordLike]:
        """A record whose timestamp is no number."""
        return (Written(record.key, record.value, timestamp=cast(int, "now")),)


def test_flow_unwritable_result_stops(broker: str, make_topic: MakeTopic, tmp_path: Path) -> None:
    """A result that cannot be put into a batch stops the flow with the record's place; it does not wait for ever."""
    source, sink = make_topic(1), make_topic(1)
    send(broker, source, [(0, b"k", b"v", [], 1_700_000_000_000)])
    with pytest.raises(RecordError, match=f"topic {source}, partition 0, offset 0: an integer"):
        run_flow(broker, source, sink, tmp_path, [Careless()])


def run_flow(broker: str, source: str, sink: str, folder: Path, stages: list[Stage]) -> None:
    """Runs a flow of these stages until it fails, at most 20 seconds."""
    table = {
        "topics": [source],
        "output.topic": sink,
        "transforms": ["offload"],
        "large.message.payload.store.class": "filesystem",
        "filesystem.root": str(folder),
    }
    settings = parse({"bootstrap.servers": broker, "pipeline": {"p": table}})
    (pipeline,) = settings.pipelines

    async def run() -> None:
        plan = await plan_pipeline(settings.client, pipeline)
        with ThreadPoolExecutor(2) as executor:
            flow = Flow(
                settings.client,
                pipeline,
                plan,
                Chain(stages, sink, plan.sink.max_message_bytes),
                budget=Budget(1_000_000),
                executor=executor,
                stats=PipelineStats(),
                graceful_timeout_s=1.0,
                joined=lambda: None,
            )
            async with asyncio.timeout(20):
                await flow.run()

    asyncio.run(run())


class Latin(str):
    """A header name as a producer without UTF-8 writes it."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        """Bytes that are no UTF-8."""
        return b"\xfc"


def test_flow_header_name_not_utf8_stops(
    broker: str, make_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header name that is not UTF-8, which cannot be read, stops the flow with the record's place."""
    source, sink = make_topic(1), make_topic(1)
    send(broker, source, [(0, b"k", b"v", [], 1_700_000_000_000)] * 3)
    with monkeypatch.context() as patched:
        # aiokafka's builder in C takes exact strings only.
        patched.setattr(message_accumulator, "DefaultRecordBatchBuilder", _DefaultRecordBatchBuilderPy)
        patched.setattr(
            message_accumulator.BatchBuilder,
            "_set_producer_state",
            lambda batch, *state: batch._builder.set_producer_state(*state),
        )
        send(broker, source, [(0, b"bad", b"v", [(Latin("u"), b"")], 1_700_000_000_000)])
    with pytest.raises(RecordError, match=f"topic {source}, partition 0, offset 3: .*header.*UTF-8"):
        run_flow(broker, source, sink, tmp_path, [])
