"""What goes wrong, and when: drawn from the seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

_NAMES: Mapping[int, str] = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
    15: "DescribeGroups",
    16: "ListGroups",
    18: "ApiVersions",
    19: "CreateTopics",
    20: "DeleteTopics",
    21: "DeleteRecords",
    22: "InitProducerId",
    23: "OffsetForLeaderEpoch",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
    32: "DescribeConfigs",
    60: "DescribeCluster",
    66: "ListTransactions",
}


def request_name(request: Any) -> str:
    """The API of a request; `connect` for none."""
    return "connect" if request is None else _NAMES.get(request.API_KEY, str(request.API_KEY))


def codes(fields: Any) -> Iterator[int]:
    if isinstance(fields, Mapping):
        for name, value in fields.items():
            if name == "error_code":
                if value:
                    yield value
            elif isinstance(value, list):
                for each in value:
                    yield from codes(each)


def exchange(request: Any, fields: Mapping[str, Any]) -> str | None:
    """A request and its response in words; None for what only asks, and for a heartbeat, unless it is refused."""
    errors = sorted({*codes(fields)})
    words = _WORDS.get(request.API_KEY)
    if words is None and not errors:
        return None
    text = f"{request_name(request)} {'' if words is None else words(request, fields)}".rstrip()
    return f"{text}: error {', '.join(map(str, errors))}" if errors else text


def _produce(request: Any, fields: Mapping[str, Any]) -> str:
    bases = {
        (topic["topic"], row["partition"]): row["offset"] for topic in fields["topics"] for row in topic["partitions"]
    }
    places = [
        f"{topic}-{row[0]} {int.from_bytes(bytes(row[1])[57:61], 'big')} records"
        f" at {bases.get((topic, row[0]), '?')}, producer {int.from_bytes(bytes(row[1])[43:51], 'big', signed=True)}"
        f" epoch {int.from_bytes(bytes(row[1])[51:53], 'big', signed=True)}"
        for topic, rows in request.topics
        for row in rows
    ]
    return "; ".join(places)


def _commit(request: Any, _: Mapping[str, Any]) -> str:
    places = [f"{topic}-{row[0]} at {row[1]}" for topic, rows, *_ in request.topics for row in rows]
    names = request.SCHEMA.names
    generation = next((f", generation {getattr(request, name)}" for name in names if "generation" in name), "")
    return f"{', '.join(places)}{generation}"


def _offsets(_: Any, fields: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{topic['topic']}-{row['partition']} at {row['offset']}"
        for topic in fields["topics"]
        for row in topic["partitions"]
    )


def _producer(request: Any, fields: Mapping[str, Any]) -> str:
    return f"{request.transactional_id}, producer {fields['producer_id']} epoch {fields['producer_epoch']}"


def _add(request: Any, _: Mapping[str, Any]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, numbers in request.topics for number in numbers)


def _ended(request: Any, _: Mapping[str, Any]) -> str:
    return f"{request.transactional_id}, {'commits' if request.transaction_result else 'aborts'}"


def _generation(_: Any, fields: Mapping[str, Any]) -> str:
    return f"generation {fields['generation_id']}, {fields['member_id']}, {len(fields['members'])} members"


_WORDS: Mapping[int, Callable[[Any, Mapping[str, Any]], str]] = {
    0: _produce,
    8: _commit,
    9: _offsets,
    11: _generation,
    13: lambda *_: "",
    22: _producer,
    24: _add,
    25: lambda request, _: str(request.group_id),
    26: _ended,
    28: _commit,
}


# Retriable errors that brokers give, by request. Those with True come though the request was processed.
_ERRORS: dict[int, tuple[tuple[int, bool], ...]] = {
    0: ((6, False), (7, True), (7, False), (19, False), (20, True), (56, False), (3, False), (9, False)),
    1: ((6, False), (3, False), (9, False), (56, False), (75, False)),
    2: ((6, False), (3, False), (56, False)),
    8: ((14, False), (15, False), (16, False), (7, True)),
    9: ((14, False), (15, False), (16, False)),
    10: ((15, False), (14, False)),
    11: ((14, False), (15, False), (16, False)),
    12: ((15, False), (16, False)),  # while it loads, a coordinator says that all is well
    13: ((14, False), (15, False), (16, False)),
    14: ((14, False), (15, False), (16, False)),
    22: ((14, False), (15, False), (16, False), (51, False)),
    23: ((6, False), (3, False)),
    24: ((14, False), (15, False), (16, False), (51, False), (51, True)),
    25: ((14, False), (15, False), (16, False), (51, False), (51, True)),
    26: ((14, False), (15, False), (16, False), (51, False)),
    28: ((14, False), (15, False), (16, False), (3, False), (14, True)),
}
_CONNECT = -1
# A third of what a worker sends is for connections and Metadata: most faults would come before a record is read.
_SHARES = {_CONNECT: 0.1, 3: 0.1, 10: 0.5, 32: 0.3}
_KINDS = ("lost", "unanswered", "slow", "error", "error", "silent", "stale")


class Weather:
    def __init__(self, stream: Callable[[str], Random], rate: float, happens: Callable[[str, str], bool]) -> None:
        self.calm = False  # whether nothing goes wrong any more
        self._stream = stream
        self._chances: dict[tuple[int, int], tuple[Random, Iterator[int]]] = {}
        chance = stream("weather")
        self._happens = happens
        self._kinds = [each for each in _KINDS if chance.random() < 0.6] or ["error"]
        # A fault of each request says little; one that comes again and again for a single API goes deep.
        only = chance.choice([*_ERRORS]) if chance.random() < 0.3 else None
        self._rates = {
            key: min(0.8, rate * _SHARES.get(key, 1.0) * chance.choice((0.0, 0.5, 1.0, 3.0)))
            for key in (_CONNECT, *_ERRORS, 3, 32)
            if only in (None, key)
        }
        if only is not None:
            self._rates[only] = rate

    def fate(self, worker: int, node: int, request: Any) -> Any:
        """What becomes of a request of a worker, or of a connection (None for the request).

        None for nothing; `silent`, `lost`, `unanswered`, `stale`; seconds that it is late; or an error code, and
        whether the request is processed.
        """
        key = _CONNECT if request is None else request.API_KEY
        rate = self._rates.get(key)
        if self.calm or not rate:
            return None
        found = self._chances.get((worker, key))
        if found is None:
            found = self._chances[worker, key] = self._stream(f"weather {worker} {key}"), itertools.count()
        chance, numbers = found
        number = next(numbers)
        if chance.random() >= rate:
            return None
        errors = _ERRORS.get(key, ())
        if key == 2 and request.topics[0][0] == "__consumer_offsets":
            errors = ()  # a coordinator leads its partition, and none is one for a disk that has failed
        fate = self._drawn(chance, chance.choice(self._kinds), errors, connects=key == _CONNECT)
        if fate is None:
            return None
        text = f"worker {worker}, broker {node}, {request_name(request)}: {_words(fate)}"
        return fate if self._happens(f"{worker}.{key}.{number}", text) else None

    @staticmethod
    def _drawn(chance: Random, kind: str, errors: Sequence[tuple[int, bool]], *, connects: bool) -> Any:
        if kind == "silent" and chance.random() < 0.7:
            kind = "slow"  # silence takes long
        if connects:
            return "lost" if kind != "silent" else "silent"
        if kind == "slow":
            return chance.choice((0.05, 0.3, 1.0, 4.0)) * chance.random()
        if kind == "error":
            return chance.choice(errors) if errors else None
        return kind


def _words(fate: Any) -> str:
    if isinstance(fate, float):
        return f"answered {fate:.3f} s late"
    if isinstance(fate, tuple):
        return f"error {fate[0]}" + (", though it was processed" if fate[1] else "")
    return {
        "silent": "no answer",
        "lost": "the connection breaks, the request is lost",
        "unanswered": "processed, and the connection breaks",
        "stale": "processed, and no answer",
    }[str(fate)]
