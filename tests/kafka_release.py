"""The release of a broker, as far as its requests show it: some tests need a newer one than others."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

Release = tuple[int, int]

_VERSIONS, _SECONDS = 18, 30
# What a release was the first to know: the key of a request, and its version. The newest first.
_FIRST: Mapping[tuple[int, int], Release] = {
    (93, 0): (4, 4),  # StreamsGroupTopologyDescriptionUpdate
    (88, 0): (4, 2),  # StreamsGroupHeartbeat
    (1, 18): (4, 1),  # Fetch, as the next ones
    (3, 13): (4, 0),  # Metadata
    (1, 17): (3, 9),
    (16, 5): (3, 8),  # ListGroups
    (1, 16): (3, 7),
    (1, 15): (3, 5),
    (57, 1): (3, 3),  # UpdateFeatures
    (3, 12): (3, 1),
    (66, 0): (3, 0),  # ListTransactions
    (60, 0): (2, 8),  # DescribeCluster
}


def release_of(bootstrap: str) -> Release:
    """The newest release in the table whose request the broker knows; (0, 0) if it knows none of them."""
    known = _versions(bootstrap.split(",", maxsplit=1)[0])
    found = (release for (key, version), release in _FIRST.items() if known.get(key, -1) >= version)
    return next(found, (0, 0))


def text_of(release: Release) -> str:
    """For people."""
    return "{}.{}".format(*release)


def _versions(address: str) -> Mapping[int, int]:
    """The newest version that the broker knows of each request, by key."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), _SECONDS) as connection, connection.makefile("rb") as answer:
        connection.sendall(struct.pack(">ihhih", 10, _VERSIONS, 0, 0, -1))
        _, _, error, count = struct.unpack(">iihi", answer.read(14))
        assert error == 0, f"{address} answers error {error}"
        return {key: most for key, _, most in struct.iter_unpack(">hhh", answer.read(6 * count))}
