"""Checks, while a pipeline runs, whether its payloads are kept as long as the records that refer to them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence

from app.cluster.expiry import GROWS, TopicExpiry, ask_in_background, references
from app.cluster.preflight import Plan
from app.config.settings import ClientSettings, PipelineSettings
from app.kafka.clients import ClusterError, admin
from app.kafka.topics import topics
from stores.store import Lifecycle, PayloadStore
from transforms.errors import ConfigurationError
from transforms.logger_name import logger_name

log = logging.getLogger(logger_name(__name__))

_AGAIN_S = 3_600.0


class ExpiryWatch:
    """Reads the retention from the cluster and the rules from the store: immediately, and then every hour.

    Warnings are one line in the log, which is repeated only when it changes.

    Args:
        client: how to reach the cluster.
        pipeline: the pipeline.
        report: called in another thread with the margins, in seconds by topic; see `TopicExpiry.margin_s`.
    """

    def __init__(
        self, client: ClientSettings, pipeline: PipelineSettings, report: Callable[[Mapping[str, float]], None]
    ) -> None:
        self._client = client
        self._pipeline = pipeline
        self._report = report
        self._logged = ""

    async def follow(self, plan: Plan, store: PayloadStore) -> None:
        """Watches until it is cancelled."""
        while True:
            self.look(plan, store)
            await asyncio.sleep(_AGAIN_S)
            plan = await self._renewed(plan)

    def look(self, plan: Plan, store: PayloadStore) -> None:
        """Asks the store once; does not wait for the answer. A store without rules is logged once."""
        if not isinstance(store, Lifecycle) and not self._logged and any(references(self._pipeline)):
            self._logged = GROWS
            log.info("pipeline %s: its store has no expiry rules: %s", self._pipeline.name, GROWS)
        ask_in_background(self._pipeline, plan, store, self._tell)

    def _tell(self, expiries: Sequence[TopicExpiry]) -> None:
        self._report({each.topic: each.margin_s for each in expiries if each.margin_s is not None})
        warnings = "; ".join(warning for each in expiries for warning in each.warnings)
        if warnings and warnings != self._logged:
            log.warning("pipeline %s: %s", self._pipeline.name, warnings)
        self._logged = warnings

    async def _renewed(self, plan: Plan) -> Plan:
        """The plan with the current retention of its topics; unchanged if the cluster does not report it."""
        wanted = (*plan.sources, plan.sink, *([plan.dead_letters] if plan.dead_letters else []))
        try:
            async with admin(self._client) as connection:
                found = await topics(connection, [each.name for each in wanted])
        except (ClusterError, ConfigurationError) as exc:
            log.debug("pipeline %s: the retention of its topics is not known: %s", self._pipeline.name, exc)
            return plan
        return dataclasses.replace(
            plan,
            sources=tuple(found.get(each.name, each) for each in plan.sources),
            sink=found.get(plan.sink.name, plan.sink),
            dead_letters=plan.dead_letters and found.get(plan.dead_letters.name, plan.dead_letters),
        )
