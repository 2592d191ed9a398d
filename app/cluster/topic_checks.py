"""What the topics of a pipeline must be like: which ones the preflight refuses, and why."""

from __future__ import annotations

from collections.abc import Sequence

from app.config.settings import PipelineSettings
from app.kafka.topics import MAX_MESSAGE_BYTES, Topic
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import Chunk
from transforms.errors import ConfigurationError
from transforms.letter import LEAST_BYTES
from transforms.record import Record

__all__ = ["check_chunks", "check_dead_letters", "check_limits", "check_wrappers"]

_MAX_BYTES = "chunk.max.bytes"
_STRATEGY = "large.message.strategy"
_NULL = "wrap.on.null.value"
# The smallest chunk: no key, no headers of its own; its uuid and its numbers are as long as they can be.
_LEAST_CHUNK_BYTES = batch_of_one_bytes(
    Record(None, b"v", Chunk("0" * 36, 2**31 - 2, 2**31 - 1, 2**31 - 1, "0" * 64).headers())
)


def check_limits(pipeline: PipelineSettings, sink: Topic) -> None:
    """Refuses a threshold, a batch size or a chunk size that is over the limit of the sink.

    Raises:
        ConfigurationError: one of them is.
    """
    limit = f"{MAX_MESSAGE_BYTES} of topic {sink.name} is {sink.max_message_bytes:,}"
    if pipeline.offloads and pipeline.threshold_bytes > sink.max_message_bytes:
        raise ConfigurationError(
            "large.message.threshold.bytes",
            f"found {pipeline.threshold_bytes:,}, which is above the sink's limit: {limit}; lower the one or raise the "
            "other",
        )
    batch = pipeline.producer["producer.batch.size"]
    assert isinstance(batch, int)
    if batch > sink.max_message_bytes:
        raise ConfigurationError(
            "producer.batch.size", f"found {batch:,}, allowed is no more than the sink takes: {limit}"
        )
    _check_chunk_size(pipeline, sink)


def check_chunks(pipeline: PipelineSettings, sources: Sequence[Topic], sink: Topic) -> None:
    """Refuses topics that would not keep the chunks, or not take them.

    Raises:
        ConfigurationError: a topic of chunks is compacted, or the sizes do not go together.
    """
    chunks = pipeline.chunks
    if chunks.assembles:
        for source in sources:
            _check_kept("topics", source)
    if not chunks.splits:
        return
    _check_kept("output.topic", sink)
    limit = chunks.limit_bytes(sink.max_message_bytes)
    if limit < _LEAST_CHUNK_BYTES:
        own = chunks.max_bytes is not None and chunks.max_bytes == limit
        key, found = (_MAX_BYTES, f"found {limit:,}") if own else ("output.topic", _limit_of(sink))
        raise ConfigurationError(
            key, f"{found}; a chunk takes {_LEAST_CHUNK_BYTES:,} bytes without key and own headers"
        )
    if "chunk" in pipeline.transforms and "offload" in pipeline.transforms and limit >= pipeline.threshold_bytes:
        raise ConfigurationError(
            "transforms",
            f"found {list(pipeline.transforms)}; offload takes all values over {pipeline.threshold_bytes:,} bytes, so "
            f"chunk, for records over {limit:,}, gets none; lower {_MAX_BYTES}, or use {_STRATEGY}",
        )


def _check_chunk_size(pipeline: PipelineSettings, sink: Topic) -> None:
    """Refuses chunks that are larger than the sink takes.

    Raises:
        ConfigurationError: they are; `limit_bytes` makes them smaller all the same.
    """
    chunks = pipeline.chunks
    if chunks.splits and chunks.max_bytes is not None and chunks.max_bytes > sink.max_message_bytes:
        raise ConfigurationError(
            _MAX_BYTES, f"found {chunks.max_bytes:,}, allowed is no more than the sink takes: {_limit_of(sink)}"
        )


def _limit_of(sink: Topic) -> str:
    return f"max.message.bytes of topic {sink.name} is {sink.max_message_bytes:,}"


def _check_kept(key: str, topic: Topic) -> None:
    if "compact" in topic.cleanup_policy:
        raise ConfigurationError(
            key,
            f"topic {topic.name} has cleanup.policy {topic.cleanup_policy}; the chunks of a value have one key, so "
            "compaction would delete all but the last; take a topic with cleanup.policy delete",
        )


def check_wrappers(pipeline: PipelineSettings, sink: Topic) -> None:
    """Refuses a compacted topic in which a deleted key would stay for ever.

    Raises:
        ConfigurationError: tombstones are wrapped, and only true ones delete.
    """
    wrapper = pipeline.wrapper
    if wrapper.wraps and wrapper.wrap.null == "wrap" and "compact" in sink.cleanup_policy:
        raise ConfigurationError(
            _NULL,
            f"found 'wrap', and topic {sink.name} has cleanup.policy {sink.cleanup_policy}; a wrapped tombstone is no "
            f'null value, and deletes nothing; set {_NULL} = "pass"',
        )


def check_dead_letters(topic: Topic) -> None:
    """Refuses a topic that could not keep, or not take, every letter.

    Raises:
        ConfigurationError: it is compacted, or takes too little.
    """
    key = "errors.deadletterqueue.topic.name"
    if "compact" in topic.cleanup_policy:
        raise ConfigurationError(
            key,
            f"topic {topic.name} has cleanup.policy {topic.cleanup_policy}; it would refuse letters without a key, and "
            "of those with one delete all but the last; take a topic with cleanup.policy delete",
        )
    if topic.max_message_bytes < LEAST_BYTES:
        raise ConfigurationError(
            key,
            f"max.message.bytes of topic {topic.name} is {topic.max_message_bytes:,}; letters may need {LEAST_BYTES:,}",
        )
