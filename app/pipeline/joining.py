"""The joining of a group: what a flow waits for before it is given partitions, and until when at the latest."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

from app.config.settings import PipelineSettings

__all__ = ["Joining"]


class Joining:
    """The time in which a flow joins its group. Belongs to one event loop.

    The coordinator lets a group wait for members that it knows. A worker that was killed has not left the group: it is
    missed when its session ends. A worker that is at work may finish that first.

    Args:
        settings: of the pipeline; other members are taken to have the same.
        clock: seconds since 1970.
    """

    def __init__(self, settings: PipelineSettings, clock: Callable[[], float]) -> None:
        self._group_id = settings.group_id
        self._session_s = cast("int", settings.consumer["consumer.session.timeout.ms"]) / 1000
        self._poll_s = cast("int", settings.consumer["consumer.max.poll.interval.ms"]) / 1000
        self._clock = clock
        self._began_s: float | None = None
        self._lasts = False

    def begin(self) -> None:
        """Takes in that the flow asks to join now."""
        self._began_s, self._lasts = self._clock(), False

    def last(self) -> None:
        """Takes in that this takes longer than in a group without other members."""
        self._lasts = True

    def end(self) -> None:
        """Takes in that the flow has joined, or has given up."""
        self._began_s = None

    @property
    def awaited(self) -> str | None:
        """What the flow waits for, and until when at the latest; None if it does not wait."""
        began_s = self._began_s
        if began_s is None:
            return None
        if not self._lasts:
            return f"joins group {self._group_id}"
        killed, at_work = _time(began_s + self._session_s), _time(began_s + self._poll_s)
        return (
            f"waits since {_time(began_s)} for other members of group {self._group_id}: for one that was killed until "
            f"{killed} at the latest (consumer.session.timeout.ms), for one that finishes its records until {at_work} "
            "(consumer.max.poll.interval.ms)"
        )


def _time(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="seconds")
