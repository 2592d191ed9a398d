"""The jars of bakdata's serializers, pinned in `bakdata.lock`: `python -m benchmarks.bakdata` writes it anew."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.local import jars
from transforms.errors import WideloadError

__all__ = ["BakdataUnavailableError", "ensure"]

_ROOTS = ("com.bakdata.kafka:large-message-serde:3.1.1",)
# Netty native libraries, which Java does without. Their modules have several jars; Ivy takes now one, now another.
_UNUSED = ("-native-macos", "-native-epoll", "-native-kqueue", "-boringssl-static")
_CLIENTS = ("kafka-clients-", "lz4-java-", "snappy-java-", "zstd-jni-")  # bakdata leaves them to the user
_SET = "bakdata"
_LOCK = Path(__file__).with_name("bakdata.lock")


class BakdataUnavailableError(Exception):
    """The jars cannot be had; the message says why."""


def ensure() -> Sequence[Path]:
    """The jars with those of Kafka's clients, fetched into the cache folder at the first call, as the broker's are.

    Raises:
        BakdataUnavailableError: they cannot be had, for instance without a network, or are not those of the lock.
    """
    text = _LOCK.read_text()
    wanted = [jars.Jar(each[0], each[1], int(each[2]), each[3]) for each in map(str.split, text.splitlines())]
    folder = jars.cache_folder() / "jars" / f"{_SET}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if not folder.exists():
        try:
            with tempfile.TemporaryDirectory(dir=jars.cache_folder()) as scratch:
                found = Path(scratch, "jars")
                # Ivy with the same settings, proxies and limits as in the set-up.
                jars._ivy(_SET, [jar.coordinates for jar in wanted], Path(scratch), transitive=False, say=None)  # noqa: SLF001
                for jar in wanted:
                    jars._verify(found / jar.file, jar)  # noqa: SLF001
                shutil.move(found, folder)
        except (WideloadError, OSError) as exc:
            raise BakdataUnavailableError(str(exc)) from exc
    clients = [jar for jar in jars.ensure("kafka") if jar.name.startswith(_CLIENTS)]
    return [*(folder / jar.file for jar in wanted), *clients]


def _resolve() -> list[jars.Jar]:
    with tempfile.TemporaryDirectory() as scratch:
        jars._ivy(_SET, _ROOTS, Path(scratch), transitive=True, say=None)  # noqa: SLF001
        found = []
        for path in sorted(Path(scratch, "jars").glob("*/*/*/*.jar")):
            organisation, module, revision = path.parts[-4:-1]
            data = path.read_bytes()
            coordinates = f"{organisation}:{module}:{revision}"
            found.append(jars.Jar(_SET, coordinates, len(data), hashlib.sha256(data).hexdigest()))
        return [jar for jar in found if not jar.coordinates.rpartition(":")[0].endswith(_UNUSED)]


if __name__ == "__main__":
    _LOCK.write_text("".join(jar.line() for jar in _resolve()))
