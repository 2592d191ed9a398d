"""The kinds of pipelines that histories have: their transforms, and the messages that come to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

__all__ = ["KINDS", "MOST_BYTES", "THRESHOLD_BYTES", "WRAPPED_HEADER", "Kind", "Work", "drawn_work"]

WRAPPED_HEADER = 3_000_001
"""The number of the header `n` in wrappers."""
THRESHOLD_BYTES = 1_000
"""Values over it go to the store."""
MOST_BYTES = 8_000
"""The longest value that the pipelines take: `large.message.max.bytes` and `chunk.max.message.bytes`."""

_PLAIN = ("small", "small", "large", "tombstone")
_REFERENCES = ("reference", "reference", "reference")
_CHUNKS = ("message_of_chunks",) * 4
_AGAIN = ("message_begun_twice", "message_of_twins", "message_sent_twice")
_BAD_REFERENCES = ("forged_reference", "missing_payload", "corrupt_payload", "huge_payload")
_BAD_CHUNKS = ("message_with_a_gap", "message_without_end")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of pipelines.

    Attributes:
        transforms: in order.
        good: the messages that come out.
        bad: those that never can.
    """

    transforms: tuple[str, ...]
    good: tuple[str, ...] = _PLAIN
    bad: tuple[str, ...] = ("too_large", "long_key")
    keys: Mapping[str, Any] = field(default_factory=dict)

    @property
    def assembles(self) -> bool:
        return "assemble" in self.transforms or "inflate" in self.transforms

    @property
    def splits(self) -> bool:
        strategy = self.keys.get("large.message.strategy", "offload")
        return "chunk" in self.transforms or ("offload" in self.transforms and strategy != "offload")

    @property
    def fits_less(self) -> bool:
        """Whether all that comes out fits the sink if that takes less."""
        return "offload" in self.transforms and not self.splits and not self.assembles

    @property
    def stores(self) -> bool:
        strategy = self.keys.get("large.message.strategy", "offload")
        return "inflate" in self.transforms or ("offload" in self.transforms and strategy != "chunk")


def _with_chunks(kind: Kind) -> Kind:
    return Kind(kind.transforms, (*kind.good, *_CHUNKS, *_AGAIN), (*kind.bad, *_BAD_CHUNKS), kind.keys)


_INFLATING = ("small", "tombstone", *_REFERENCES)
_NO_SINK = ("long_key",)

KINDS: Sequence[Kind] = (
    Kind(("offload",)),
    Kind(("offload",)),
    Kind(("offload",)),
    Kind(("offload",), keys={"large.message.strategy": "auto"}),
    Kind(("offload",), keys={"large.message.strategy": "chunk"}),
    Kind(("chunk",)),
    Kind(("inflate",), _INFLATING, (*_NO_SINK, *_BAD_REFERENCES)),
    _with_chunks(Kind(("inflate",), _INFLATING, (*_NO_SINK, *_BAD_REFERENCES))),
    _with_chunks(Kind(("inflate", "chunk"), _INFLATING, (*_NO_SINK, *_BAD_REFERENCES))),
    _with_chunks(Kind(("assemble",), ("small", "tombstone"), _NO_SINK)),
    _with_chunks(Kind(("assemble", "offload"), _PLAIN, _NO_SINK)),
    _with_chunks(Kind(("assemble", "wrap"), ("small", "tombstone"), ("strange_header",))),
    Kind(("wrap",), ("small",), ("strange_header",)),
    Kind(("offload", "wrap"), _PLAIN, ("strange_header", "long_key")),
    Kind(("unwrap",), ("small",), ("bare_value", "long_key")),
    Kind(("unwrap", "offload"), _PLAIN, ("bare_value", "long_key")),
    Kind(("unwrap", "inflate"), _INFLATING, ("bare_value", *_BAD_REFERENCES)),
    Kind(("inflate", "wrap"), _INFLATING, ("strange_header", *_BAD_REFERENCES)),
    Kind(("unwrap", "wrap"), ("small", "tombstone"), ("bare_value",)),
)


@dataclass(slots=True)
class Work:
    """What a pipeline is to do.

    Attributes:
        kind: of the pipeline.
        makers: which messages there are; see `Messages`.
        keys: properties of the pipeline.
        gives_up: whether messages of chunks may be given up by chance.
        runs_out: whether the patience for one record with the store is bounded, so that any may be given up.
    """

    kind: Kind
    makers: Sequence[str]
    keys: dict[str, Any]
    gives_up: bool
    runs_out: bool

    def stands(self, act: str) -> bool:
        """Whether an act leaves what must come out as it is."""
        return act != "change_limit" or self.kind.fits_less

    @property
    def in_chunks(self) -> bool:
        """Whether some messages are written in chunks."""
        return any(each.startswith("message") for each in self.makers)


def drawn_work(chance: Random) -> Work:
    """One of the kinds, with messages."""
    kind = chance.choice(KINDS)
    makers = [*kind.good] * chance.choice((1, 3))
    if chance.random() < 0.3:
        makers += [chance.choice(kind.bad)]
    keys: dict[str, Any] = {"transforms": [*kind.transforms], **kind.keys}
    if kind.stores:
        keys |= {"large.message.payload.store.class": "memory", "large.message.max.bytes": MOST_BYTES}
        keys["large.message.store.timeout.ms"] = 3_000
    if "offload" in kind.transforms and keys.get("large.message.strategy") != "chunk":
        keys["large.message.threshold.bytes"] = THRESHOLD_BYTES
    if kind.splits or kind.assembles:
        keys["chunk.max.message.bytes"] = MOST_BYTES
    if kind.splits:
        keys["chunk.max.bytes"] = chance.choice((900, 2_000))
    if "wrap" in kind.transforms or "unwrap" in kind.transforms:
        keys[f"wrapper.header.{WRAPPED_HEADER}"] = "n"
    gives_up = False
    if any(each.startswith("message") for each in makers):
        short, few = chance.random() < 0.2, chance.random() < 0.2
        keys["expire.time.of.incomplete.chunked.message.ms"] = 2_000 if short else 30_000
        if few:
            keys["max.pending.chunked.message"] = chance.choice((1, 2))
        gives_up = short or few
    runs_out = kind.stores and not any(each.startswith("message") for each in makers) and chance.random() < 0.25
    if runs_out:
        keys["errors.retry.timeout"] = chance.choice((0, 1_000, 3_000))
    return Work(kind, makers, keys, gives_up, runs_out)
