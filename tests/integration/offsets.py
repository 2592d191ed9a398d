"""Where logs end and what groups have committed, over connections that stay open: tests ask many times a second."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any, TypeVar

from aiokafka.errors import GroupIdNotFound, for_code
from aiokafka.protocol.api import RequestHeader_v1
from aiokafka.protocol.commit import OffsetFetchRequest_v3
from aiokafka.protocol.coordination import FindCoordinatorRequest_v1
from aiokafka.protocol.metadata import MetadataRequest_v4
from aiokafka.protocol.offset import OffsetRequest_v2

_WAIT_S = 120  # a broker that moves gigabytes may leave a request unanswered until it times out
_ANSWER_S = 40
_PAUSE_S = 0.05
_CLUSTERS = 4  # whose connections are kept; a test that asks one again finds it here
_UNKNOWN_TOPIC = 3
_LATEST = -1
_SIZE = struct.Struct("!i")

_T = TypeVar("_T")
_Address = tuple[str, int]


class _NotYetError(Exception):
    """A broker says that it is to be asked again."""


class _Cluster:
    """The connections to the brokers of a cluster."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = [
            (host, int(port)) for host, _, port in (each.rpartition(":") for each in bootstrap.split(","))
        ]
        self._sockets: dict[_Address, socket.socket] = {}

    def close(self) -> None:
        """Closes them."""
        while self._sockets:
            self._sockets.popitem()[1].close()

    def leaders(self, topic: str) -> dict[int, _Address]:
        """Where the leader of each partition is; nothing if there is no such topic."""
        answer = self.ask_any(MetadataRequest_v4([topic], False))
        brokers = {node: (host, port) for node, host, port, _ in answer.brokers}
        ((code, _, _, partitions),) = answer.topics
        if code == _UNKNOWN_TOPIC:
            return {}
        _check([code, *(partition[0] for partition in partitions)], f"topic {topic}")
        leaders = {number: leader for _, number, leader, *_ in sorted(partitions, key=lambda each: each[1])}
        if gone := set(leaders.values()) - brokers.keys():
            raise _NotYetError(f"topic {topic}: brokers {gone} have gone")
        return {number: brokers[leader] for number, leader in leaders.items()}

    def coordinator(self, group: str) -> _Address:
        """Where the offsets of a group are."""
        answer = self.ask_any(FindCoordinatorRequest_v1(group, 0))
        _check([answer.error_code], f"group {group}")
        return answer.host, answer.port

    def ask_any(self, request: Any) -> Any:
        """The answer of the first broker that can be reached."""
        *others, last = self._bootstrap
        for address in others:
            with contextlib.suppress(OSError):
                return self.ask(address, request)
        return self.ask(last, request)

    def ask(self, address: _Address, request: Any) -> Any:
        """The answer of one broker."""
        connection = self._sockets.get(address)
        if connection is None:
            connection = self._sockets[address] = socket.create_connection(address, _ANSWER_S)
        message = RequestHeader_v1(request, 1, "tests").encode() + request.encode()
        try:
            connection.sendall(_SIZE.pack(len(message)) + message)
            answer = _read(connection, _SIZE.unpack(_read(connection, _SIZE.size))[0])
        except BaseException:  # an answer that came later would be taken for that to the next request
            self._sockets.pop(address).close()
            raise
        return request.RESPONSE_TYPE.decode(BytesIO(answer[4:]))  # behind the number of the request


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        some = connection.recv(size - len(data))
        if not some:
            raise ConnectionResetError("the broker has closed the connection")
        data += some
    return bytes(data)


def _check(codes: Iterable[int], what: str) -> None:
    for code in codes:
        if code:
            error = for_code(code)
            raise (_NotYetError if error.retriable else error)(f"{what}: {error.__name__}")


_lock = threading.Lock()
_clusters: dict[tuple[int, str], _Cluster] = {}


def _asked(bootstrap: str, question: Callable[[_Cluster], _T]) -> _T:
    deadline = time.monotonic() + _WAIT_S
    mine = (os.getpid(), bootstrap)
    while True:
        with _lock:
            if mine not in _clusters:
                _clusters[mine] = _Cluster(bootstrap)
            cluster = _clusters[mine] = _clusters.pop(mine)  # the last of them now
            while len(_clusters) > _CLUSTERS:
                _clusters.pop(next(iter(_clusters))).close()
            try:
                return question(cluster)
            except (OSError, _NotYetError):
                cluster.close()
                if time.monotonic() > deadline:
                    raise
        time.sleep(_PAUSE_S)


def end_offsets(bootstrap: str, topic: str, *, isolation: int = 0) -> dict[int, int]:
    """The end of the log of each partition; with an isolation of 1, that of what is committed."""

    def ask(cluster: _Cluster) -> dict[int, int]:
        leaders = cluster.leaders(topic)
        ends: dict[int, int] = {}
        for leader in dict.fromkeys(leaders.values()):
            partitions = [(number, _LATEST) for number, each in leaders.items() if each == leader]
            answer = cluster.ask(leader, OffsetRequest_v2(-1, isolation, [(topic, partitions)]))
            ((_, found),) = answer.topics
            _check((code for _, code, *_ in found), f"topic {topic}")
            ends.update({number: end for number, _, _, end in found})
        return {number: ends[number] for number in leaders}

    return _asked(bootstrap, ask)


def marks(bootstrap: str, group: str, topic: str) -> dict[int, tuple[int, str]]:
    """What is committed of each partition: the offset, 0 where there is none, and what stands beside it."""

    def ask(cluster: _Cluster) -> dict[int, tuple[int, str]]:
        numbers = list(cluster.leaders(topic))
        if not numbers:
            return {}
        answer = cluster.ask(cluster.coordinator(group), OffsetFetchRequest_v3(group, [(topic, numbers)]))
        if answer.error_code == GroupIdNotFound.errno:  # by kfake, of a group that has committed nothing
            return dict.fromkeys(numbers, (0, ""))
        _check([answer.error_code], f"group {group}")
        ((_, found),) = answer.topics
        _check((each[3] for each in found), f"group {group}")
        by_number = {number: (max(0, offset), metadata or "") for number, offset, metadata, _ in found}
        return {number: by_number[number] for number in numbers}

    return _asked(bootstrap, ask)


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """The committed offset of each partition; 0 where there is none."""
    return {number: offset for number, (offset, _) in marks(bootstrap, group, topic).items()}
