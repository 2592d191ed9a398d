"""Records through the worker of an image, by the commands of the same image: sent, received, compared."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

from tests.image.tools import expect, step

FOLDER = "/files"
"""Where the image sees the folder of the records."""

Wideload = Callable[..., str]
"""Runs a command of `wideload` in the image, with `FOLDER`, and gives what it printed."""

_THRESHOLD = 1024 * 1024
_SMALL, _LARGE = 30, 10
_TIMEOUT = "--timeout-ms=60000"


def travel(wideload: Wideload, folder: Path, connection: tuple[str, ...]) -> None:
    """Sends small and large values to `raw-large`, and compares what arrives in `orders-inflated`.

    Args:
        wideload: runs commands in the image.
        folder: the one that the image sees as `FOLDER`.
        connection: the arguments with which commands reach brokers and store.

    Raises:
        ImageError: a value is missing or has changed, or a large one was not offloaded.
    """
    chance = random.Random(20)
    sent: dict[str, str] = {}
    out, into = folder / "out", folder / "in"
    for each in (out, into):
        each.mkdir()
    # The image's user reads the one and writes the other, whatever the umask is.
    for each, mode in ((folder, 0o755), (into, 0o755), (out, 0o777)):
        each.chmod(mode)
    for number in range(_SMALL + _LARGE):
        size = chance.randrange(1, 100_000) if number < _SMALL else chance.randrange(_THRESHOLD + 1, 8 * _THRESHOLD)
        value = chance.randbytes(size)
        file = into / f"value-{number}"
        file.write_bytes(value)
        file.chmod(0o644)
        sent[f"value-{number}"] = hashlib.sha256(value).hexdigest()
    count = str(len(sent))
    with step(f"send {count} values, {_LARGE} of them over the threshold"):
        wideload("produce", "raw-large", f"{FOLDER}/in", "--recursive", *connection)
    with step("receive them from orders-inflated"):
        consume = ("consume", "orders-inflated", "--from-beginning", "-n", count, _TIMEOUT)
        wideload(*consume, "--output", f"{FOLDER}/out", *connection)
        received = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in out.iterdir()}
        expect(len(received), len(sent), "values that arrived")
        expect(received == sent, True, "each has its SHA-256")
    with step("look at the references in orders"):
        lines = wideload("inspect", "orders", "--pipeline", "orders-offload", "--json", *connection).splitlines()
        summary = json.loads(lines[-1])["summary"]
        expect(summary["payloads"], {"ok": _LARGE}, "payloads that references lead to")
