"""A cluster: brokers, topics and their logs, the coordinators; answers the requests of aiokafka and of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from tests.simulation.answers import refused
from tests.simulation.clock import BEGAN_S
from tests.simulation.groups import TOPIC as OFFSETS
from tests.simulation.groups import Commit, Groups, OffsetsLog
from tests.simulation.loop import SimulatedLoop
from tests.simulation.partition_log import Isolation, PartitionLog
from tests.simulation.transactions import INVALID_EPOCH, Transactions

NOT_LEADER, UNKNOWN_TOPIC, OUT_OF_RANGE, NOT_COORDINATOR, LOADING, FENCED_EPOCH, UNKNOWN_EPOCH = 6, 3, 1, 16, 14, 74, 75
NOT_AVAILABLE, LEADER_NOT_AVAILABLE, NOT_ENOUGH_REPLICAS = 15, 5, 19

_HEARTBEAT = 12
# By request: whether a group or a transaction has the coordinator, and which field has the name.
_COORDINATED = {11: (0, "group"), 12: (0, "group"), 13: (0, "group"), 14: (0, "group")} | dict.fromkeys(
    (22, 24, 25, 26), (1, "transactional_id")
)
Reply = Callable[..., None]
_DEFAULTS = {
    "max.message.bytes": "1048588",
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "segment.ms": "604800000",
    "compression.type": "producer",
    "min.insync.replicas": "1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.after.max.ms": "9223372036854775807",
}


@dataclass(slots=True, eq=False)
class Broker:
    """One broker. `connections` are those that it knows; `silent`: nothing answers in its place while it is down."""

    number: int
    up: bool = True
    silent: bool = False
    connections: dict[Any, None] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return 9000 + self.number


@dataclass(slots=True, eq=False)
class Topic:
    """A topic. `id` tells it from a later one of its name."""

    name: str
    id: int
    logs: list[PartitionLog]
    config: dict[str, str]


class Cluster:
    def __init__(self, loop: SimulatedLoop, chance: Random, release: str) -> None:
        self._loop = loop
        self._chance = chance
        self.brokers = {number: Broker(number) for number in (1, 2, 3)}
        self.topics: dict[str, Topic] = {}
        self.groups = Groups(loop.call_later)
        self.offsets_log = OffsetsLog(loop)
        self.isolation = Isolation(loop)
        self.transactions = Transactions(loop.call_later, self._marking_s, self._mark, self._end_offsets)
        self._coordinators: dict[tuple[int, str], int] = {}
        self._loading: dict[tuple[int, str], float] = {}
        self._topic_ids = 0
        self.throttle_ms = 0  # how long the answers to Produce and Fetch say that the client has to wait
        self.release = release  # of Kafka, which the brokers have
        self.late_offsets: dict[str, Any] = {}  # by transactional id; see `_Connection`
        self.committed: Callable[[str, Mapping[Any, Commit]], None] = lambda *_: None

    def create(self, name: str, partitions: int, **config: str) -> Topic:
        """Creates a topic; names of properties have underscores in place of dots."""
        self._topic_ids += 1
        nodes = sorted(self.brokers)
        logs = [PartitionLog(self._chance.choice(nodes)) for _ in range(partitions)]
        own = _DEFAULTS | {key.replace("_", "."): value for key, value in config.items()}
        self.topics[name] = Topic(name, self._topic_ids, logs, own)
        return self.topics[name]

    def logs(self, topic: str) -> list[PartitionLog]:
        return self.topics[topic].logs if topic in self.topics else []

    def grow(self, topic: str) -> None:
        self.topics[topic].logs.append(PartitionLog(self._chance.choice(sorted(self.brokers))))

    def delete(self, topic: str) -> Topic:
        gone = self.topics.pop(topic)
        self.groups.forget(topic)
        for log in gone.logs:
            log.wake()
        return gone

    def log(self, topic: str, partition: int) -> PartitionLog:
        return self.topics[topic].logs[partition]

    @property
    def now_ms(self) -> int:
        return int((BEGAN_S + self._loop.time()) * 1000)

    def move_leader(self, log: PartitionLog) -> None:
        """Another broker leads the partition; the same one again if no other is up."""
        others = [each for each in self.brokers.values() if each.number != log.node]
        up = [each.number for each in others if each.up and not self.isolation.of(each.number)]
        log.elect(self._chance.choice(up or [log.node]))
        log.wake()

    def move_coordinator(self, key: tuple[int, str]) -> None:
        """Another broker coordinates a group, or a transactional id; it loads first."""
        up = [each.number for each in self.brokers.values() if each.up and not self.isolation.of(each.number)]
        if not up:
            return
        self._coordinators[key] = self._chance.choice(up)
        self._loading[key] = self._loop.time() + self._chance.random() * 0.5

    @property
    def coordinated(self) -> list[tuple[int, str]]:
        """What has a coordinator: 0 and a group, or 1 and a transactional id."""
        return [*self._coordinators]

    def stop(self, broker: Broker, *, silent: bool = False) -> None:
        """The broker goes down; others lead and coordinate in its place."""
        broker.up, broker.silent = False, silent
        for connection in [*broker.connections]:
            if not silent:
                connection.cut("the broker went down")
        broker.connections.clear()
        self._pass_on(broker.number)

    def _pass_on(self, number: int) -> None:
        """Others lead and coordinate in the place of a broker."""
        for topic in self.topics.values():
            for log in topic.logs:
                if log.node == number:
                    self.move_leader(log)
        for key, node in [*self._coordinators.items()]:
            if node == number:
                self.move_coordinator(key)

    def isolate(self, node: int, seconds: float) -> None:
        """A broker is cut off from the others, which lead and coordinate in its place; see `Isolation`."""
        self.isolation.begin(node, seconds, self.topics.values())
        self._pass_on(node)

    def kill_all(self, down_s: float, lag_s: float, behind_s: float) -> None:
        """All brokers are killed at once, and are back after a while; see `OffsetsLog`."""
        back_s = self._loop.time() + down_s
        self.offsets_log.fall_behind(lag_s, back_s + behind_s)
        for broker in self.brokers.values():
            broker.up = False
            for connection in [*broker.connections]:
                connection.cut("the broker was killed")
            self._loop.call_later(down_s, setattr, broker, "up", True)
        for topic in self.topics.values():
            for log in topic.logs:
                log.elect(log.node)
                log.wake()
        for key in self._coordinators:
            self._loading[key] = back_s + self._chance.random() * 0.2

    def _marking_s(self) -> float:
        return self.offsets_log.left_s + self._chance.random() * 0.05

    def handle(self, node: int, request: Any, reply: Reply) -> None:
        """Answers a request by `reply`, now or later, with the fields of the response."""
        kind, field = _COORDINATED.get(request.API_KEY, (0, ""))
        name = getattr(request, field) if field else None
        code = 0 if name is None else self._coordinates(node, kind, name)
        if request.API_KEY == _HEARTBEAT and code == LOADING:
            reply(error_code=0)  # as `GroupCoordinatorService.heartbeat` does
        elif code:
            reply(**refused(request, code))
        else:
            handlers[request.API_KEY](self, node, request, reply)

    def _metadata(self, node: int, request: Any, reply: Reply) -> None:
        flexible = request.FLEXIBLE_VERSION
        wanted = request.topics
        names = [*self.topics] if wanted is None else [each[2] if flexible else each for each in wanted]
        rows = []
        for name in names:
            topic = self.topics.get(name)
            if name == OFFSETS:
                topic = Topic(name, 0, [PartitionLog(node)], {})
            row: dict[str, Any] = {"topic": name, "name": name, "id_high": 0, "id_low": 0}
            if topic is None:
                row |= {"error_code": UNKNOWN_TOPIC, "partitions": []}
            else:
                row |= {
                    "id_low": topic.id,
                    "partitions": [
                        self._partition_row(number, self.isolation.known(node, name, number) or log)
                        for number, log in enumerate(topic.logs)
                    ],
                }
                row["error_code"] = 0
            rows.append(row)
        brokers = [
            {"node_id": each.number, "host": "broker", "port": each.port} for each in self.brokers.values() if each.up
        ]
        reply(brokers=brokers, controller_id=brokers[0]["node_id"] if brokers else -1, topics=rows)

    def _partition_row(self, number: int, log: PartitionLog) -> dict[str, Any]:
        replicas = sorted(self.brokers)
        isr = [log.node] if log.alone else [each for each in replicas if self.brokers[each].up]
        up = self.brokers[log.node].up
        return {
            "error_code": 0 if up else LEADER_NOT_AVAILABLE,
            "partition": number,
            "leader": log.node if up else -1,
            "leader_epoch": log.epoch,
            "replicas": replicas,
            "isr": isr,
        }

    def _found(self, node: int, topic: str, partition: int, epoch: int = -1) -> tuple[PartitionLog | None, int]:
        found = self.topics.get(topic)
        if found is None or partition >= len(found.logs):
            return None, UNKNOWN_TOPIC
        log = self.isolation.known(node, topic, partition) or found.logs[partition]
        if log.node != node:
            return None, NOT_LEADER
        if epoch >= 0 and epoch != log.epoch:
            return None, FENCED_EPOCH if epoch < log.epoch else UNKNOWN_EPOCH
        return log, 0

    def _produce(self, node: int, request: Any, reply: Reply) -> None:
        rows = []
        for topic, partitions in request.topics:
            parts = []
            for number, data in partitions:
                log, code = self._found(node, topic, number)
                base = -1
                if log is not None:
                    octets = bytes(data)
                    producer_id, epoch = _stamp(octets)
                    if request.transactional_id is not None:
                        code = self.transactions.allows(request.transactional_id, producer_id, epoch, (topic, number))
                    if log.alone and code == 0 and request.required_acks == -1:
                        code = NOT_ENOUGH_REPLICAS
                    if code == 0:
                        produced = log.append(octets, int(self.topics[topic].config["max.message.bytes"]))
                        code, base = produced.code, produced.base
                parts.append({"partition": number, "error_code": code, "offset": base, "timestamp": -1})
            rows.append({"topic": topic, "partitions": parts})
        reply(topics=rows)

    def _fetch(self, node: int, request: Any, reply: Reply) -> None:
        until_s = self._loop.time() + request.max_wait_time / 1000
        wanted = [
            (topic, row[0], row[1] if len(row) > 3 else -1, row[2] if len(row) > 3 else row[1], row[-1])
            for topic, partitions in request.topics
            for row in partitions
        ]
        committed = request.isolation_level == 1
        state: dict[str, Any] = {"done": False, "timer": None}

        def look(last: bool = False) -> None:  # noqa: FBT001, FBT002
            if state["done"]:
                return
            rows, size, ready = self._fetched(node, wanted, committed=committed, most=request.max_bytes)
            if size >= request.min_bytes or ready or last or self._loop.time() >= until_s:
                state["done"] = True
                if state["timer"] is not None:
                    state["timer"].cancel()
                reply(topics=rows)
                return
            if state["timer"] is None:
                state["timer"] = self._loop.call_later(until_s - self._loop.time(), look, True)
            for topic, number, *_ in wanted:
                self.log(topic, number).waiters.append(look)

        look()

    def _fetched(self, node: int, wanted: Any, *, committed: bool, most: int) -> tuple[Any, int, bool]:
        by_topic: dict[str, list[Any]] = {}
        size, failed = 0, False
        for topic, number, epoch, offset, limit in wanted:
            log, code = self._found(node, topic, number, epoch)
            row: dict[str, Any] = {"partition": number, "error_code": code, "highwater_offset": -1}
            row |= {"last_stable_offset": -1, "message_set": b""}
            if log is not None:
                until = log.stable if committed else log.end
                row |= {"highwater_offset": log.end, "last_stable_offset": log.stable, "log_start_offset": log.start}
                if not log.start <= offset <= log.end:
                    row["error_code"] = OUT_OF_RANGE
                elif size < most:
                    row["message_set"] = data = log.read(offset, until, min(limit, max(1, most - size)))
                    row["aborted_transactions"] = [
                        {"producer_id": producer, "first_offset": first}
                        for producer, first in (log.aborted_from(offset, until) if committed else ())
                    ]
                    size += len(data)
            failed = failed or row["error_code"] != 0
            by_topic.setdefault(topic, []).append(row)
        return [{"topics": topic, "partitions": rows} for topic, rows in by_topic.items()], size, failed

    def _list_offsets(self, node: int, request: Any, reply: Reply) -> None:
        rows = []
        for topic, partitions in request.topics:
            parts = []
            for number, *_, time_ms in partitions:
                log, code = self._found(node, topic, number)
                if topic == OFFSETS:
                    code = self.offsets_log.refusal(request.API_VERSION)
                row: dict[str, Any] = {"partition": number, "error_code": code, "timestamp": -1, "offset": -1}
                row |= {"leader_epoch": -1, "offsets": []}
                if log is not None:
                    row["leader_epoch"] = log.epoch
                    if time_ms == -2:
                        row["offset"] = log.start
                    elif time_ms == -1:
                        committed = getattr(request, "isolation_level", 0) == 1
                        row["offset"] = log.stable if committed else log.end
                    else:
                        row["offset"], row["timestamp"] = log.offset_at(time_ms)
                parts.append(row)
            rows.append({"topic": topic, "partitions": parts})
        reply(topics=rows)

    def _epoch_ends(self, node: int, request: Any, reply: Reply) -> None:
        rows = []
        for topic, partitions in request.topics:
            parts = []
            for number, leader_epoch, epoch in partitions:
                log, code = self._found(node, topic, number, leader_epoch)
                found, end = (-1, -1) if log is None else log.epoch_end(epoch)
                parts.append({"error_code": code, "partition": number, "leader_epoch": found, "end_offset": end})
            rows.append({"topic": topic, "partitions": parts})
        reply(topics=rows)

    def _find_coordinator(self, node: int, request: Any, reply: Reply) -> None:
        key = (
            getattr(request, "coordinator_type", 0),
            getattr(request, "coordinator_key", None) or request.consumer_group,
        )
        if key not in self._coordinators:
            self._coordinators[key] = self._chance.choice([each.number for each in self.brokers.values() if each.up])
        number = self._coordinators[key]
        reply(coordinator_id=number, host="broker", port=9000 + number)

    def _coordinates(self, node: int, kind: int, name: str) -> int:
        """0 if the broker coordinates it, or the code."""
        key = kind, name
        if self._coordinators.get(key) != node:
            return NOT_COORDINATOR
        return LOADING if self._loading.get(key, 0) > self._loop.time() else 0

    def _describe_groups(self, node: int, request: Any, reply: Reply) -> None:
        codes = {name: self._coordinates(node, 0, name) for name in request.groups}
        reply(groups=[{**self.groups.described(name), "error_code": code} for name, code in codes.items()])

    def _commit(self, node: int, request: Any, reply: Reply) -> None:
        if self.offsets_log.left_s:
            self.offsets_log.hold(partial(self._commit, node, request, reply))
            return
        group = request.group if "group" in request.SCHEMA.names else request.consumer_group
        code = self._coordinates(node, 0, group)
        if not code:
            code, group = self.groups.commit(request)
        offsets, unknown = self._known(commits(request.topics))
        codes = dict.fromkeys(offsets, code) if code else self.groups.take(group, offsets)
        if not code:
            self.offsets_log.note(group, self.groups.committed(group))
            self.committed(group, offsets)
        codes = {**codes, **dict.fromkeys(unknown, UNKNOWN_TOPIC)}
        reply(topics=by_topic({place: {"error_code": each} for place, each in codes.items()}))

    def _known(self, offsets: Mapping[Any, Commit]) -> tuple[Mapping[Any, Commit], list[Any]]:
        """The offsets of partitions that exist, and the other partitions."""
        unknown = [each for each in offsets if each[1] >= len(self.logs(each[0]))]
        return {place: each for place, each in offsets.items() if place not in unknown}, unknown

    def _fetch_offsets(self, node: int, request: Any, reply: Reply) -> None:
        names = request.SCHEMA.names
        group = (
            request.group if "group" in names else request.group_id if "group_id" in names else request.consumer_group
        )
        code = self._coordinates(node, 0, group)
        places = (
            None if request.topics is None else [(each[0], number) for each in request.topics for number in each[1]]
        )
        if code:
            reply(error_code=code, topics=[])
            return
        found = self.groups.fetched(group, places, stable=bool(getattr(request, "require_stable", False)))
        if self.offsets_log.left_s:
            seen, none = self.offsets_log.seen(group), Commit(-1, -1, "")
            found = {place: (seen.get(place, none), 0) for place in found}
        rows = {
            place: {"offset": each.offset, "leader_epoch": each.epoch, "metadata": each.metadata, "error_code": own}
            for place, (each, own) in found.items()
        }
        reply(error_code=0, topics=by_topic(rows))

    def _begin_producer(self, node: int, request: Any, reply: Reply) -> None:
        code, producer_id, epoch = self.transactions.begin_producer(
            request.transactional_id, request.transaction_timeout_ms
        )
        reply(error_code=code, producer_id=producer_id, producer_epoch=epoch)

    def _add_partitions(self, node: int, request: Any, reply: Reply) -> None:
        places = [(topic, number) for topic, numbers in request.topics for number in numbers]
        code = self.transactions.add(request, places, ())
        rows = by_topic({place: {"error_code": code} for place in places}, "partition_errors")
        reply(errors=rows)

    def _add_offsets(self, node: int, request: Any, reply: Reply) -> None:
        reply(error_code=self.transactions.add(request, (), [request.group_id]))

    def _commit_in_transaction(self, node: int, request: Any, reply: Reply) -> None:
        if self.offsets_log.left_s:
            self.offsets_log.hold(partial(self._commit_in_transaction, node, request, reply))
            return
        group = request.group if "group" in request.SCHEMA.names else request.group_id
        offsets, unknown = self._known(commits(request.topics))
        code = self._coordinates(node, 0, group)
        if "member" in request.SCHEMA.names:
            code = code or self.groups.refusal(group, request.member, request.generation, request.instance)
        if not code:
            code = self.transactions.allows(
                request.transactional_id, request.producer_id, request.producer_epoch, group
            )
            if code == INVALID_EPOCH and self.release < "4":
                # The log of the offsets refuses it behind the group, which then drops what the owner has sent, too.
                self.groups.drop_pending(group, request.producer_id, offsets)
        if not code:
            self.groups.take_pending(group, request.producer_id, offsets)
            late = self.late_offsets.pop(request.transactional_id, None)
            if late is not None and late.producer_epoch < request.producer_epoch:
                self._commit_in_transaction(node, late, lambda **_: None)
        codes = {**dict.fromkeys(offsets, code), **dict.fromkeys(unknown, UNKNOWN_TOPIC)}
        rows = by_topic({place: {"error_code": each} for place, each in codes.items()}, "partition_errors")
        for row in rows:
            row["partitions"] = row["partition_errors"]
        reply(errors=rows)

    def _end_transaction(self, node: int, request: Any, reply: Reply) -> None:
        reply(error_code=self.transactions.end(request))

    def _mark(self, place: tuple[str, int], producer_id: int, epoch: int, commit: bool) -> bool:  # noqa: FBT001
        topic = self.topics.get(place[0])
        if topic is not None:  # else there is nothing to mark any more
            log = topic.logs[place[1]]
            if log.alone:
                return False
            log.end_transaction(producer_id, epoch, commit=commit, time_ms=self.now_ms)
        return True

    def _end_offsets(self, group: str, producer_id: int, commit: bool) -> None:  # noqa: FBT001
        pending = dict(self.groups.group(group).pending.get(producer_id, {}))
        self.groups.end_pending(group, producer_id, commit=commit)
        self.offsets_log.note(group, self.groups.committed(group))
        if commit and pending:
            self.committed(group, pending)

    def _describe_configs(self, node: int, request: Any, reply: Reply) -> None:
        rows = []
        for kind, name, keys in request.resources:
            row: dict[str, Any] = {"resource_type": kind, "resource_name": name, "error_code": 0, "config_entries": []}
            config: Mapping[str, str] = {"offset.metadata.max.bytes": "4096", "message.max.bytes": "1048588"}
            if kind == 2:
                topic = self.topics.get(name)
                config = {} if topic is None else topic.config
                row["error_code"] = 0 if topic is not None else UNKNOWN_TOPIC
            row["config_entries"] = [
                {"config_names": key, "config_value": value} for key, value in config.items() if not keys or key in keys
            ]
            rows.append(row)
        reply(resources=rows)

    def _describe_cluster(self, node: int, request: Any, reply: Reply) -> None:
        brokers = [{"node_id": each.number, "host": "broker", "port": each.port} for each in self.brokers.values()]
        reply(controller_id=1, brokers=brokers)

    def _create_topics(self, node: int, request: Any, reply: Reply) -> None:
        rows = []
        for name, partitions, _, _, config in request.create_topic_requests:
            exists = name in self.topics
            if not exists and not request.validate_only:
                self.create(name, max(1, partitions))
                self.topics[name].config.update(dict(config))
            rows.append({"topic": name, "error_code": 36 if exists else 0})
        reply(topic_errors=rows)


handlers: Mapping[int, Callable[[Cluster, int, Any, Reply], None]] = {
    0: Cluster._produce,
    1: Cluster._fetch,
    2: Cluster._list_offsets,
    3: Cluster._metadata,
    8: Cluster._commit,
    9: Cluster._fetch_offsets,
    10: Cluster._find_coordinator,
    11: lambda cluster, _, request, reply: cluster.groups.join(request, reply),
    12: lambda cluster, _, request, reply: cluster.groups.heartbeat(request, reply),
    13: lambda cluster, _, request, reply: cluster.groups.leave(request, reply),
    14: lambda cluster, _, request, reply: cluster.groups.sync(request, reply),
    19: Cluster._create_topics,
    15: Cluster._describe_groups,
    22: Cluster._begin_producer,
    23: Cluster._epoch_ends,
    24: Cluster._add_partitions,
    25: Cluster._add_offsets,
    26: Cluster._end_transaction,
    28: Cluster._commit_in_transaction,
    32: Cluster._describe_configs,
    60: Cluster._describe_cluster,
}


def _stamp(data: bytes) -> tuple[int, int]:
    return int.from_bytes(data[43:51], "big", signed=True), int.from_bytes(data[51:53], "big", signed=True)


def commits(topics: Any) -> dict[tuple[str, int], Commit]:
    return {
        (topic, row[0]): Commit(row[1], row[2] if len(row) > 3 else -1, row[3 if len(row) > 3 else 2] or "")
        for topic, partitions, *_ in topics
        for row in partitions
    }


def by_topic(rows: Mapping[tuple[str, int], Mapping[str, Any]], name: str = "partitions") -> list[dict[str, Any]]:
    found: dict[str, list[Any]] = {}
    for (topic, partition), row in rows.items():
        found.setdefault(topic, []).append({"partition": partition, **row})
    return [{"topic": topic, name: each} for topic, each in found.items()]
