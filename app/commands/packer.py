"""The packer of `wideload produce`: sends a message unchanged, as a reference, in a wrapper, or as chunks.

It is the reverse of the restorer of `wideload consume`, and applies the worker's transforms in the worker's order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import click

from app.commands.connection import agreed, opened_store, pipeline_of, wrap_of
from app.commands.source import Limit
from app.config.chunking import Strategy
from app.config.parsing import load
from app.config.settings import PipelineSettings, Settings
from app.kafka.sender import Message, SendError
from app.kafka.topics import Topic
from app.pipeline.chain import Chain
from app.pipeline.fallback import Fallback
from app.pipeline.runtime import monotonic
from app.pipeline.stages import ChunkStage, OffloadStage, Stage, WrapperStage
from app.pipeline.stats import PipelineStats
from app.pipeline.work import Work
from transforms.chunk import Chunking
from transforms.chunked_message import Limits
from transforms.errors import ConfigurationError, PayloadStoreError, TransformError, WrapError
from transforms.record import Header, Record
from transforms.record_batch import CODECS
from transforms.wrapper import Wrap

_AT_ONCE = 8  # messages that wait for threads, most of them for the store
_AHEAD_BYTES = 32 * 1024 * 1024  # of their values, in addition to one
_MESSAGE_BYTES = "chunk.max.message.bytes"


@dataclass(frozen=True, slots=True)
class Packing:
    """The options of a packer.

    Attributes:
        strategy: how large values are sent; None to refuse them.
        wrap: wraps values and headers; None for no wrappers.
        pipeline: the pipeline whose store and format are used; None if the strategy needs no store.
        chunk_bytes: `chunk.max.bytes`; None for the limit of the topic.
        message_bytes: `chunk.max.message.bytes`.
    """

    strategy: Strategy | None = None
    wrap: Wrap | None = None
    pipeline: PipelineSettings | None = None
    chunk_bytes: int | None = None
    message_bytes: int = Limits().message_bytes

    @property
    def splits(self) -> bool:
        """Whether large values may be sent as chunks."""
        return self.strategy in {"chunk", "auto"}

    @property
    def idle(self) -> bool:
        """Whether all messages are sent unchanged."""
        return self.strategy is None and self.wrap is None

    def limit(self, topic: Topic) -> Limit:
        """The longest value that can be sent without compression."""
        limits = [Limit(topic.max_message_bytes, "the limit of the topic")]
        if self.splits:
            limits.append(Limit(self.message_bytes, _MESSAGE_BYTES))
        if self.pipeline is not None:
            limits.append(Limit(self.pipeline.max_bytes, "large.message.max.bytes"))
        return max(limits, key=lambda limit: limit.size)

    def check(self, topic: Topic, headers: Sequence[Header], *, tombstones: bool) -> None:
        """Refuses messages that the topic would not keep, or that a wrapper cannot hold.

        Args:
            topic: to be written to.
            headers: of each message.
            tombstones: whether there are some among the messages.

        Raises:
            ConfigurationError: chunks or wrapped tombstones would go to a compacted topic; or a header has no key.
        """
        if self.splits and "compact" in topic.cleanup_policy:
            raise ConfigurationError(
                "--strategy",
                f"found {self.strategy!r}, but topic {topic.name} has cleanup.policy {topic.cleanup_policy}; the "
                "chunks of a value have one key, so compaction would delete all but the last; use --strategy offload, "
                "or a topic with cleanup.policy delete",
            )
        if self.wrap is None:
            return
        if tombstones and self.wrap.null == "wrap" and "compact" in topic.cleanup_policy:
            raise ConfigurationError(
                "--tombstone",
                f"cannot be combined with --wrap, as topic {topic.name} has cleanup.policy {topic.cleanup_policy}; a "
                "wrapped tombstone is not a null value, and deletes nothing; send it without --wrap, or set "
                'wrap.on.null.value = "pass" in the configuration of -c',
            )
        try:
            self.wrap.wrap(Record(None, b"", headers))
        except WrapError as exc:
            raise ConfigurationError("--header", str(exc)) from exc

    def open(self, topic: Topic, codec: str, stack: ExitStack) -> Packer:
        """A packer for a topic; `stack` closes its store.

        Raises:
            ConfigurationError: the store cannot be opened.
        """
        stages: list[Stage] = []
        if self.pipeline is not None:
            settings = replace(self.pipeline, on_reference="pass")
            store = opened_store(settings, stack)
            falls_back = self.strategy == "auto"
            stages.append(OffloadStage(settings, store, topic, PipelineStats(), self.wrap, falls_back=falls_back))
        if self.wrap is not None:
            stages.append(WrapperStage(self.wrap))
        if self.splits:
            limit_bytes = min(topic.max_message_bytes, self.chunk_bytes or topic.max_message_bytes)
            stages.append(ChunkStage(Chunking(limit_bytes), self.message_bytes, ""))  # no group has read the message
        return Packer(Chain(stages, topic), CODECS.index(None if codec == "none" else codec))


@dataclass(frozen=True, slots=True)
class _Begun:
    """A message that is being packed; `size` is that of its value."""

    message: asyncio.Future[Message]
    size: int
    name: str


class Packer:
    """Packs messages. Use `Packing.open`.

    Args:
        chain: the worker's transforms.
        codec: the number of the compression of batches.
    """

    def __init__(self, chain: Chain, codec: int) -> None:
        self._chain = chain
        self._fallback = Fallback(chain, _Warning().report, clock=monotonic)
        self._codec = codec

    async def packed(self, records: AsyncIterator[tuple[Record, str]]) -> AsyncGenerator[tuple[Message, str]]:
        """The messages as they are to be sent, in order, with their names; several are packed concurrently.

        An error, of a message or of `records`, is raised after all messages before it.

        Raises:
            SendError: a message can never be sent, or the store failed.
        """
        begun: deque[_Begun] = deque()
        failure = None
        try:
            try:
                async for record, name in records:
                    size = len(record.value or b"")
                    while begun and (len(begun) == _AT_ONCE or sum(each.size for each in begun) + size > _AHEAD_BYTES):
                        yield await begun[0].message, begun.popleft().name
                    begun.append(_Begun(self._begin(record, name), size, name))
                    while begun and begun[0].message.done():
                        yield begun[0].message.result(), begun.popleft().name
            except SendError as exc:
                failure = exc
            while begun:
                yield await begun[0].message, begun.popleft().name
            if failure is not None:
                raise failure
        finally:
            for each in begun:
                each.message.cancel()
            await asyncio.gather(*(each.message for each in begun), return_exceptions=True)

    def _begin(self, record: Record, name: str) -> asyncio.Future[Message]:
        plain = Message.plain(record)
        done: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        try:
            work = self._chain.begin(record, self._codec)
        except (TransformError, PayloadStoreError) as exc:
            done.set_exception(SendError(f"{name}: {exc}"))
        else:
            if work is not None and work.step is not None:
                return asyncio.create_task(asyncio.to_thread(self._message, work, plain.size, name))
            done.set_result(plain if work is None else Message(work.records, plain.size, work.applied))
        return done

    def _message(self, work: Work, size: int, name: str) -> Message:
        try:
            while work.step is not None:
                work = self._fallback.go_on(work)
        except (TransformError, PayloadStoreError) as exc:
            raise SendError(f"{name}: {exc}") from exc
        return Message(work.records, size, work.applied)


class _Warning:
    """Reports once that the store is unavailable."""

    def __init__(self) -> None:
        self._shown = False

    def report(self, error: PayloadStoreError) -> None:
        """Reports that a value is sent as chunks because the store has failed."""
        if not self._shown:
            self._shown = True
            click.echo(f"wideload: the store has failed, so large values are sent as chunks: {error}", err=True)


def packing_of(config: str | None, pipeline: str | None, strategy: Strategy | None, *, wrap: bool) -> Packing:
    """The packing that the options of a command ask for. Makes no request.

    Args:
        config: the file of `-c`.
        pipeline: the name of the pipeline in it.
        strategy: how large values are sent.
        wrap: whether messages are wrapped.

    Raises:
        ConfigurationError: the file is wrong, or missing; or its pipelines differ, and `pipeline` is None.
    """
    if pipeline is not None and config is None:
        raise ConfigurationError("--pipeline", "requires a configuration; pass it with -c FILE")
    if pipeline is not None and strategy is None and not wrap:
        raise ConfigurationError("--pipeline", "has no effect without --strategy or --wrap")
    if strategy in {"offload", "auto"} and config is None:
        raise ConfigurationError(
            "--strategy",
            f"found {strategy!r}, which requires the store of a configuration; pass it with -c FILE, or use chunk",
        )
    settings = None if config is None else load(config)
    wrapper = wrap_of(settings, pipeline) if wrap else None
    if settings is None or strategy is None:
        return Packing(strategy, wrapper)
    if strategy == "chunk":
        sizes = agreed(
            settings,
            pipeline,
            lambda each: each.chunks.splits,
            lambda each: (each.chunks.max_bytes, each.chunks.message_bytes),
            f"chunk.max.bytes or {_MESSAGE_BYTES} differ",
        )
        return Packing(strategy, wrapper) if sizes is None else Packing(strategy, wrapper, None, *sizes)
    writer = _writer(settings, pipeline)
    if strategy == "auto" and writer.reference_format != "wideload":
        raise ConfigurationError(
            "--strategy", f"found 'auto'; readers of reference.format {writer.reference_format!r} do not support chunks"
        )
    return Packing(strategy, wrapper, writer, writer.chunks.max_bytes, writer.chunks.message_bytes)


def _writer(settings: Settings, name: str | None) -> PipelineSettings:
    """The pipeline whose references are written: one that offloads, or else any with the store."""
    any_with_store = pipeline_of(settings, name)
    if name is not None:
        return any_with_store
    agreed(
        settings,
        None,
        lambda each: each.offloads,
        lambda each: (
            each.threshold_bytes,
            each.codec,
            each.signing,
            each.encryption,
            each.max_bytes,
            each.chunks.max_bytes,
        ),
        "large.message.… or chunk.… differ",
    )
    return next((each for each in settings.pipelines if each.offloads), any_with_store)
