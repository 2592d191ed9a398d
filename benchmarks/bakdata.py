"""The jars of bakdata's serializers, pinned in `bakdata.lock`, which `python -m benchmarks.bakdata` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.local import jars
from transforms.errors import WideloadError

# bakdata leaves Kafka's clients to the user, and uses classes of them that 4.4 has removed.
_ROOTS = ("com.bakdata.kafka:large-message-serde:3.1.1", "org.apache.kafka:kafka-clients:4.1.2")
# Native libraries of Netty, which Java does not need. Their modules have several jars, of which Ivy picks any.
_UNUSED = ("-native-macos", "-native-epoll", "-native-kqueue", "-boringssl-static")
_SET = "bakdata"
_LOCK = Path(__file__).with_name("bakdata.lock")


class BakdataUnavailableError(Exception):
    """The jars are not available; the message has the reason."""


def ensure() -> Sequence[Path]:
    """The jars, with those of Kafka's clients, downloaded into the cache directory at the first call.

    Raises:
        BakdataUnavailableError: they are not available, for instance without a network, or do not match the lock.
    """
    try:
        return jars.ensure(_SET, lock=_LOCK)
    except WideloadError as exc:
        raise BakdataUnavailableError(str(exc)) from exc


def _resolve() -> list[jars.Jar]:
    return [jar for jar in jars.resolve(_SET, _ROOTS) if not jar.coordinates.rpartition(":")[0].endswith(_UNUSED)]


if __name__ == "__main__":
    _LOCK.write_text("".join(jar.line() for jar in _resolve()))
