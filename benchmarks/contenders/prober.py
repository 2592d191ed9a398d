"""Sends small records at a steady pace to one topic, waits for them in another, and prints how long they took.

    python prober.py BOOTSTRAP SOURCE SINK COUNT WARM PER_SECOND PARTITION…

The two topics may be the same one. Prints JSON: the milliseconds from before a record is sent to when it is read, in
the order of the records. WARM records are sent before them, and left out.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

_VALUE_BYTES = 1024
_HEAD = struct.Struct(">8sq")
_READY_S = 60.0
_WAIT_S = 0.1


class Prober:
    """One measurement.

    Args:
        bootstrap: `host:port` of the cluster.
        source: the topic to which the records go, to each of the partitions in turn.
        sink: the topic to read from.
        partitions: of both.
    """

    def __init__(self, bootstrap: str, source: str, sink: str, partitions: list[int]) -> None:
        self._source = source
        self._partitions = partitions
        self._mark = os.urandom(8)  # records of others may come, too
        self._filler = os.urandom(_VALUE_BYTES - _HEAD.size)
        self._sent: list[float] = []
        self._seen: list[float] = []
        self._failed: list[Exception] = []
        self._came = threading.Condition()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-prober",  # it has to be set; no member joins, and nothing is committed
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign([TopicPartition(sink, number, OFFSET_BEGINNING) for number in partitions])
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 3,  # errors; a new broker's coordinator may still be loading
                "delivery.report.only.error": True,
                "on_delivery": self._delivered,
            }
        )

    def measure(self, count: int, warm: int, per_second: int) -> list[float]:
        """Sends `count` records, after `warm` others that are not measured, and waits for all of them.

        Raises:
            TimeoutError: a record did not come.
            ValueError: one came that is not what was sent.
        """
        count += warm
        threading.Thread(target=self._read, args=(1 + count,), daemon=True).start()
        # What moves the records may still be starting, and what has just started is slow.
        self._send()
        self._wait(1)
        began = time.perf_counter()
        for number in range(count):
            ahead = began + number / per_second - time.perf_counter()
            if ahead > 0:
                time.sleep(ahead)
            self._send()
            self._producer.poll(0)
        self._wait(1 + count)
        return [(seen - sent) * 1000 for sent, seen in zip(self._sent, self._seen, strict=True)][1 + warm :]

    def _send(self) -> None:
        number = len(self._sent)
        self._sent.append(time.perf_counter())
        self._seen.append(0.0)
        value = _HEAD.pack(self._mark, number) + self._filler
        partition = self._partitions[number % len(self._partitions)]
        self._producer.produce(self._source, value, b"key-%d" % number, partition, headers=[("n", b"%d" % number)])

    def _wait(self, count: int) -> None:
        with self._came:
            came = self._came.wait_for(lambda: self._failed or self._is_seen(count), _READY_S)
        if self._failed:
            raise self._failed[0]
        if not came:
            missing = sum(not seen for seen in self._seen[:count])
            raise TimeoutError(f"{missing:,} of {count:,} records did not come within {_READY_S:g} s")

    def _is_seen(self, count: int) -> bool:
        return len(self._seen) >= count and all(self._seen[:count])

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append(KafkaException(error))

    def _read(self, count: int) -> None:
        left = count
        try:
            while left:
                message = self._consumer.poll(_WAIT_S)
                if message is not None and self._is_ours(message):
                    left -= 1
                    if left in {count - 1, 0}:
                        with self._came:
                            self._came.notify_all()
        except Exception as exc:  # noqa: BLE001  # whatever it is, the other thread raises it
            with self._came:
                self._failed.append(exc)
                self._came.notify_all()

    def _is_ours(self, message: Message) -> bool:
        now, error, value = time.perf_counter(), message.error(), message.value() or b""
        if error is not None:
            raise KafkaException(error)
        if value[:8] != self._mark:
            return False
        _, number = _HEAD.unpack_from(value)
        if message.headers() != [("n", b"%d" % number)] or value[_HEAD.size :] != self._filler or self._seen[number]:
            raise ValueError(f"record {number:,} came changed, or came twice")
        self._seen[number] = now
        return True


def main(bootstrap: str, source: str, sink: str, count: str, warm: str, per_second: str, *partitions: str) -> None:
    """See the docstring of the module."""
    prober = Prober(bootstrap, source, sink, [int(number) for number in partitions])
    print(json.dumps(prober.measure(int(count), int(warm), int(per_second))))


if __name__ == "__main__":
    main(*sys.argv[1:])
