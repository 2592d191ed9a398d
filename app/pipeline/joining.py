"""The joining of a group: what a flow waits for before it is given partitions, and until when at the latest."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

from app.config.settings import PipelineSettings

SOON_S = 3.0
"""Joining a group without other members takes less."""


def awaited(settings: PipelineSettings, began_s: float, lasted_s: float) -> str:
    """What the coordinator lets a joining member wait for.

    A worker that was killed has not left the group: it is missed when its session ends. A worker that is at work may
    finish that first.

    Args:
        settings: of the pipeline; other members are taken to have the same.
        began_s: when the flow has asked to join, in seconds since 1970.
        lasted_s: how long ago that is.
    """
    if lasted_s < SOON_S:
        return f"joins group {settings.group_id}"
    session_ms = cast("int", settings.consumer["consumer.session.timeout.ms"])
    poll_ms = cast("int", settings.consumer["consumer.max.poll.interval.ms"])
    return (
        f"waits since {_time(began_s)} for other members of group {settings.group_id}: for one that was killed until "
        f"{_time(began_s + session_ms / 1000)} at the latest (consumer.session.timeout.ms), for one that finishes its "
        f"records until {_time(began_s + poll_ms / 1000)} (consumer.max.poll.interval.ms)"
    )


def _time(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="seconds")
