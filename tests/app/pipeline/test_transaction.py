"""The transactions of a lane: what each record costs that goes through them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from app.cluster.preflight import Plan
from app.config.parsing import parse
from app.kafka.batches.bounds import Bounds
from app.kafka.broker_health import BrokerHealth
from app.kafka.producer import ProducerControls
from app.kafka.topics import Topic
from app.pipeline import transaction as module
from app.pipeline.budget import Budget, Share
from app.pipeline.lanes import Lanes
from app.pipeline.output import Destination
from app.pipeline.stats import PipelineStats
from app.pipeline.termination import Termination
from app.pipeline.transaction import Transaction
from transforms.record import Record


async def test_a_record_that_passes_looks_no_state_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record comes through `append`, and two look-ups in an Enum take as long as a fifth of the whole way."""
    monkeypatch.setattr(ProducerControls, "begin_transaction", lambda _: None)
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": ["assemble"]}
    guarantee = {"processing.guarantee": "exactly_once"}
    settings = parse({"bootstrap.servers": "nowhere:1", "pipeline": {"p": {**table, **guarantee}}})
    plan = Plan("p", (), Topic("orders", 1, 1_000_000, "delete"), None)
    brokers, termination = BrokerHealth(["orders"], 1.0), Termination("p", lambda: None)
    destination = Destination(settings.client, settings.pipelines[0], plan, brokers, PipelineStats(), termination)
    share = Share(Budget(100_000))
    lanes = Lanes(share, None)
    lanes.open(TopicPartition("raw", 0), 0)
    (lane,) = lanes
    transaction = Transaction(destination, share, lane, lanes, Bounds())
    try:
        transaction.append(Record(b"k", b"v", (), 1), 0, 1, 0)
        with monkeypatch.context() as without:
            without.setattr(module, "State", SimpleNamespace())
            transaction.append(Record(b"k", b"v", (), 1), 1, 1, 0)
        assert lane.tracker is not None
        assert (lane.tracker.released, lane.waiting) == (2, 0)
    finally:
        transaction.discard()
        await transaction.output.stop()
