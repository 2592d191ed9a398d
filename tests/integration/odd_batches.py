"""Batches that follow the format as far as brokers look, and no further: as strange clients write them."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterable

from tests.built_batches import PACKERS, changed, repacked
from transforms.record_format import number_bytes

_NOW = 1_700_000_000_000
_NAMES = (b"h", b"", b"\xff\xfe", b"large-message", b"large-message.chunk.uuid", "é".encode(), b"\0")
_FAR = (10**6, -(10**6), 2**62, -(2**62), -(2**63), 2**63 - 1)


def odd_batch(rng: random.Random) -> bytes:
    """A batch of one to three records, each field of which may be what no usual client writes."""
    count = rng.choice((1, 1, 2, 3))
    records = b"".join(_record(rng, number) for number in range(count))
    if rng.random() < 0.03:
        records += rng.choice((b"\0", bytes(4), b"x"))
    first = rng.choice((_NOW, _NOW, _NOW, 0, -1, -2, 2**61, 2**62, -(2**62), 2**63 - 1, -(2**63)))
    latest = rng.choice((first, first, first, _NOW, 0, -1, 2**62))
    attributes = rng.choice((0, 0, 0, 0, 0, 0, 0x08, 0x40, 0x80, 0x100, 0x4000, 0x48))
    declared = count + _sometimes(rng, (1, -1, 5))
    last = count - 1 + _sometimes(rng, (1, -1))
    data = struct.pack(">qiibIhiqqqhii", rng.choice((0, 0, 0, 5, 2**40)), 0, rng.choice((-1, 0, 7)), 2, 0, attributes,
                       last, first, latest, -1, -1, -1, declared) + records  # fmt: skip
    data = repacked(changed(data, ">i", 8, len(data) - 12), rng.choice(list(PACKERS)))
    if rng.random() < 0.1 and data[22] & 7:  # behind the frame, or another one
        packer = next(name for name, (number, _) in PACKERS.items() if number == data[22] & 7)
        data += rng.choice((b"\0", bytes(20), b"junk", PACKERS[packer][1](b""), PACKERS[packer][1](records)))
        data = changed(data, ">i", 8, len(data) - 12)
    return data


def _record(rng: random.Random, delta: int) -> bytes:
    body = bytes((rng.choice((0, 0, 0, 0, 0, 1, 0x7F, 0x80, 0xFF)),))
    body += _number(rng, rng.choice((0, 0, 0, 1, -1, *_FAR)))
    body += _number(rng, delta + _sometimes(rng, (1, -1, 2**31 - 1)))
    body += _octets(rng, rng.randbytes(rng.randrange(6))) + _octets(rng, rng.randbytes(rng.randrange(20)))
    headers = rng.choice((0, 0, 0, 1, 2, 3))
    body += _number(rng, headers + _sometimes(rng, (1, -1)))
    for _ in range(headers):
        name = rng.choice(_NAMES)
        body += (_octets(rng, name) if rng.random() < 0.2 else number_bytes(len(name)) + name) + _octets(rng, b"v")
    if rng.random() < 0.03:
        body += b"\0"
    return _number(rng, len(body)) + body


def _sometimes(rng: random.Random, others: tuple[int, ...]) -> int:
    return rng.choice(others) if rng.random() < 0.04 else 0


def _number(rng: random.Random, number: int) -> bytes:
    """A varint, now and then longer than it must be."""
    data = bytearray(number_bytes(number))
    for _ in range(rng.choice((1, 2, 3)) if rng.random() < 0.05 else 0):
        data[-1] |= 0x80
        data.append(0)
    return bytes(data)


def _octets(rng: random.Random, octets: bytes) -> bytes:
    if rng.random() < 0.1:
        return number_bytes(rng.choice((-1, -2, -(2**31), -(2**30))))
    return _number(rng, len(octets)) + octets


def produce(broker: str, topic: str, batches: Iterable[bytes]) -> int:
    """Sends each batch as it is to partition 0; returns how many the broker took."""
    host, _, port = broker.rpartition(":")
    taken = 0
    with socket.create_connection((host, int(port)), 30) as connection, connection.makefile("rb") as answers:
        for data in batches:
            name = struct.pack(">h", len(topic)) + topic.encode()
            body = struct.pack(">hhih", 0, 7, 1, -1)  # produce, version 7, no client id
            body += struct.pack(">hhii", -1, -1, 30_000, 1) + name + struct.pack(">iii", 1, 0, len(data)) + data
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = answers.read(struct.unpack(">i", answers.read(4))[0])
            (code,) = struct.unpack_from(">h", answer, 4 + 4 + len(name) + 4 + 4)
            taken += code == 0
    return taken
