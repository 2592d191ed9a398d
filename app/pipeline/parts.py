"""The parts of a flow that most others work with, handed to them in one piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.cluster.preflight import Plan
from app.config.settings import PipelineSettings
from app.kafka.broker_health import BrokerHealth
from app.kafka.consumer import GroupConsumer
from app.kafka.flow_clients import FlowClients
from app.pipeline.budget import Share
from app.pipeline.lanes import Lanes
from app.pipeline.offset_reset import OffsetReset
from app.pipeline.stats import PipelineStats
from app.pipeline.termination import Termination


@dataclass(frozen=True, slots=True)
class Parts:
    """What one flow has, for those that work on its records."""

    settings: PipelineSettings
    plan: Plan
    clients: FlowClients
    source: GroupConsumer
    brokers: BrokerHealth
    lanes: Lanes
    offset_reset: OffsetReset
    share: Share
    stats: PipelineStats
    termination: Termination
    clock: Callable[[], float]
    """Seconds since 1970."""


def whole_bytes(settings: PipelineSettings, plan: Plan) -> int:
    """The longest batch that is forwarded whole: neither the output topic nor a transaction accepts a longer one."""
    limit, guarantee = plan.sink.max_message_bytes, settings.guarantee
    return min(limit, guarantee.size) if guarantee.exactly_once else limit
