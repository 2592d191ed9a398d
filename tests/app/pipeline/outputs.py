"""The parts of a flow of which no broker hears, and an output of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from aiokafka import TopicPartition

from app.cluster.preflight import Plan
from app.config.parsing import parse
from app.config.settings import ClientSettings, PipelineSettings
from app.kafka.broker_health import BrokerHealth
from app.kafka.flow_clients import FlowClients
from app.kafka.topics import Topic
from app.kafka.troubles import Troubles
from app.pipeline.budget import Budget, Share
from app.pipeline.lane_assembler import LaneAssembler
from app.pipeline.lanes import Lanes
from app.pipeline.offset_reset import OffsetReset
from app.pipeline.output import Output
from app.pipeline.parts import Parts
from app.pipeline.stats import PipelineStats
from app.pipeline.termination import Termination

LETTERS = Topic("dlq", 1, 1_000_000, "delete")


def assembling_settings(**keys: Any) -> PipelineSettings:
    """A pipeline that assembles, with these keys beside."""
    return _parsed(keys)[1]


def _parsed(keys: dict[str, Any]) -> tuple[ClientSettings, PipelineSettings]:
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": ["assemble"]}
    settings = parse({"bootstrap.servers": "nowhere:1", "pipeline": {"p": table | keys}})
    return settings.client, settings.pipelines[0]


def parts_of(
    source: object = None,
    *,
    partitions: Sequence[int] = (),
    letters: Topic | None = LETTERS,
    limit: int = 10_000_000,
    assembler: LaneAssembler | None = None,
    **keys: Any,
) -> Parts:
    """The parts of a pipeline that assembles, with such a consumer, lanes, dead letters, budget and keys."""
    client, settings = _parsed(keys)
    plan = Plan("p", (), Topic("orders", 1, 1_000_000, "delete"), letters)
    clients, consumer, stats = FlowClients(client, settings), cast(Any, source), PipelineStats()
    clients._source = consumer
    share = Share(Budget(limit))
    lanes = Lanes(share, assembler)
    for number in partitions:
        lanes.open(TopicPartition("raw", number), 0)
    brokers = BrokerHealth(["orders"], 1.0, Troubles("p"))
    reset = OffsetReset(consumer, settings, lanes, stats=stats, renewed=())
    termination = Termination("p", lambda: None)
    return Parts(settings, plan, clients, consumer, brokers, lanes, reset, share, stats, termination, time.time)


def output_over(outbox: Callable[..., Any], give: Callable[[int], None], topic: str = "orders") -> Output:
    """The output of a pipeline whose writer makes outboxes so; each record keeps the codec that it came with."""
    parts = parts_of(letters=None)
    clients = cast(Any, SimpleNamespace(writer=lambda *_, **__: SimpleNamespace(outbox=outbox)))
    plan = replace(parts.plan, sink=replace(parts.plan.sink, name=topic))
    return Output(replace(parts, clients=clients, plan=plan), give, lambda: None)
