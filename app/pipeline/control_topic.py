"""What `control.topic` says of the groups of a worker, and what this worker writes there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Never

from app.config.settings import Settings
from app.kafka.clients import ClusterError
from app.kafka.topic_log import Entry, TopicLog
from transforms.control_record import ControlRecords, Request, Restart, TargetState, record_of
from transforms.errors import MalformedError
from transforms.text import printable

__all__ = ["ControlTopic"]

log = logging.getLogger(__name__)

_READ_S = 60.0


class ControlTopic:
    """The topic, as far as it concerns the groups of this worker. Used on one event loop at a time.

    Args:
        name: `control.topic`.
        settings: of the worker.

    Attributes:
        name: of the topic.
        targets: by group, what its pipelines are to be; a group that nobody has asked anything of is not in it.
        listener: gets each request that comes from now on.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.targets: dict[str, TargetState] = {}
        self.listener: Callable[[Request], None] | None = None
        self._records = ControlRecords([pipeline.group_id for pipeline in settings.pipelines])
        self._log = TopicLog(settings.client, name, self._take, self._skip)
        self._broken: set[bytes | None] = set()

    async def read(self) -> None:
        """Reads all that stands there now. Requests to begin anew, which came before, are not obeyed.

        Raises:
            ConfigurationError: a certificate or key cannot be used, or a package is missing.
            ClusterError: it cannot be read, or not within a minute.
        """
        try:
            await self._log.read(_READ_S)
        except ClusterError as exc:
            told = f"control.topic cannot be read, so it is not known which pipelines are to run: {exc}"
            raise ClusterError(told, retriable=exc.retriable, forbidden=exc.forbidden) from exc

    async def follow(self, ready: Callable[[], None]) -> Never:
        """Takes what comes, until it is cancelled; see `TopicLog.follow`.

        Raises:
            ConfigurationError: a certificate or key cannot be used, or a package is missing.
            ClusterError: it cannot be read; to be called again.
        """
        await self._log.follow(ready)

    async def write(self, request: Request) -> int:
        """Writes a request, and returns its offset once all replicas that are in sync have it.

        Raises:
            ConfigurationError: a certificate or key cannot be used, or a package is missing.
            ClusterError: no broker has acknowledged it.
        """
        return await self._log.append(*record_of(request))

    async def taken(self, offset: int) -> None:
        """Waits until the request at this offset was read, and `listener` has it."""
        await self._log.reach(offset)

    def _take(self, entry: Entry) -> None:
        try:
            request = self._records.read(entry.key, entry.value)
        except MalformedError as exc:
            self._skip(f"offset {entry.offset}, key {printable(entry.key)}: {exc}", entry.key)
            return
        if request is None or (isinstance(request, Restart) and entry.former):
            return
        self._broken.discard(entry.key)
        if not isinstance(request, Restart):
            self.targets[request.group] = request.state
        if self.listener is not None:
            self.listener(request)

    def _skip(self, what: str, key: bytes | None = None) -> None:
        if key in self._broken:
            return  # whoever writes such records writes many
        self._broken.add(key)
        log.warning("control.topic %s has a record that is skipped: %s", self.name, what)
