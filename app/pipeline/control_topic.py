"""The requests in `control.topic` for the groups of a worker, and those that this worker writes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import deque
from collections.abc import Callable
from typing import Never
from weakref import WeakValueDictionary

from app.config.settings import Settings
from app.kafka.clients import ClusterError
from app.kafka.topic_log import TopicLog
from app.pipeline.runtime import random_id
from transforms.control_record import ControlRecords, Request, TargetState, TargetStateRequest, record_of
from transforms.errors import MalformedError
from transforms.logger_name import logger_name
from transforms.record import SourceRecord
from transforms.text import printable

log = logging.getLogger(logger_name(__name__))

_READ_S = 60.0
_REMEMBERED = 1_000  # restarts; a request counts as new if none of these has its id


class ControlTopic:
    """The topic, as far as it concerns the groups of this worker. Used on one event loop at a time.

    Args:
        name: `control.topic`.
        settings: of the worker.
        make_id: makes a unique id for each request.

    Attributes:
        name: of the topic.
        targets: by group, the requested state of its pipelines; a group without requests is not in it.
        listener: gets each request from now on. If the topic was recreated or cut, it gets its
            new content, once that was read to its end: the last state of each group, and restarts that are new.
    """

    def __init__(self, name: str, settings: Settings, make_id: Callable[[], str] = random_id) -> None:
        self.name = name
        self.targets: dict[str, TargetState] = {}
        self.listener: Callable[[Request], None] | None = None
        self._make_id = make_id
        self._records = ControlRecords([pipeline.group_id for pipeline in settings.pipelines])
        self._log = TopicLog(settings.client, name, self._take, self._skip)
        self._broken: set[bytes | None] = set()
        self._read_again: dict[tuple[type[Request], str], Request] = {}
        self._awaited_again: list[asyncio.Event] = []
        self._restarts: deque[str] = deque(maxlen=_REMEMBERED)
        self._awaited: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()

    async def read(self) -> None:
        """Reads all that is in the topic now. Requests to restart that came before are ignored.

        Raises:
            ConfigurationError: a certificate or key cannot be used, or a package is missing.
            ClusterError: it cannot be read, or not within a minute.
        """
        try:
            await self._log.read(_READ_S)
        except ClusterError as exc:
            told = f"control.topic cannot be read, so it is unknown which pipelines should run: {exc}"
            raise ClusterError(told, retriable=exc.retriable, forbidden=exc.forbidden) from exc

    async def follow(self, ready: Callable[[], None]) -> Never:
        """Takes what comes, until it is cancelled; see `TopicLog.follow`.

        Raises:
            ConfigurationError: a certificate or key cannot be used, or a package is missing.
            ClusterError: it cannot be read; to be called again.
        """

        def reached() -> None:
            self._obey_again()
            ready()

        await self._log.follow(reached)

    async def write(self, request: Request) -> asyncio.Event:
        """Writes a request, and returns once all replicas that are in sync have it.

        Returns:
            What is set once the request was read, and `listener` has it.

        Raises:
            ConfigurationError: a certificate or key cannot be used, or a package is missing.
            UnacknowledgedError: no broker has acknowledged it.
            ClusterError: it was not written.
        """
        named = dataclasses.replace(request, id=self._make_id())
        self._awaited[named.id] = read = asyncio.Event()
        await self._log.append(*record_of(named))
        return read

    def _take(self, record: SourceRecord, former: bool) -> None:  # noqa: FBT001
        try:
            request = self._records.read(record.key, record.value)
        except MalformedError as exc:
            self._skip(f"offset {record.offset}, key {printable(record.key)}: {exc}", record.key)
            return
        if request is None:
            return
        self._broken.discard(record.key)
        awaited = self._awaited.get(request.id)
        if former and self.listener is not None:
            self._read_again[type(request), request.group] = request
            if awaited is not None:
                self._awaited_again.append(awaited)
        else:
            self._obey(request)
            if awaited is not None:
                awaited.set()

    def _obey_again(self) -> None:
        again, self._read_again = self._read_again, {}
        for request in again.values():
            if isinstance(request, TargetStateRequest) or (request.id and request.id not in self._restarts):
                self._obey(request)
        awaited, self._awaited_again = self._awaited_again, []
        for each in awaited:
            each.set()

    def _obey(self, request: Request) -> None:
        if isinstance(request, TargetStateRequest):
            self.targets[request.group] = request.state
        elif request.id:
            self._restarts.append(request.id)
        if self.listener is not None:
            self.listener(request)

    def _skip(self, what: str, key: bytes | None = None) -> None:
        if key in self._broken:
            return  # a client that writes such records writes many
        self._broken.add(key)
        log.warning("control.topic %s has a record that is skipped: %s", self.name, what)
