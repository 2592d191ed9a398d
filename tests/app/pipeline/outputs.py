"""An output of which no broker hears."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from app.cluster.preflight import Plan
from app.config.parsing import parse
from app.kafka.topics import Topic
from app.pipeline.budget import Budget, Share
from app.pipeline.lanes import Lanes
from app.pipeline.output import Output
from app.pipeline.parts import Parts
from app.pipeline.stats import PipelineStats
from app.pipeline.termination import Termination


def output_over(outbox: Callable[..., Any], give: Callable[[int], None], topic: str = "orders") -> Output:
    """The output of a pipeline whose writer makes outboxes so; each record keeps the codec that it came with."""
    table = {"topics": ["raw"], "output.topic": topic, "transforms": ["assemble"]}
    settings = parse({"bootstrap.servers": "nowhere:1", "pipeline": {"p": {**table}}})
    plan = Plan("p", (), Topic(topic, 1, 1_000_000, "delete"), None)
    clients = SimpleNamespace(writer=lambda *_, **__: SimpleNamespace(outbox=outbox))
    (pipeline,) = settings.pipelines
    stats, termination, nobody = PipelineStats(), Termination("p", lambda: None), cast(Any, None)
    writer, lanes, share = cast(Any, clients), Lanes(Share(Budget(1)), None), Share(Budget(1))
    parts = Parts(pipeline, plan, writer, nobody, nobody, lanes, nobody, share, stats, termination, lambda: 0.0)
    return Output(parts, give, lambda: None)
