"""The checks of a pipeline's topics: which topics the preflight refuses, and why."""

from __future__ import annotations

from collections.abc import Sequence

from app.config.settings import PipelineSettings
from app.kafka.topics import MAX_MESSAGE_BYTES, Topic
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import Chunk
from transforms.errors import ConfigurationError
from transforms.letter import LEAST_BYTES
from transforms.record import Record

_MAX_BYTES = "chunk.max.bytes"
_STRATEGY = "large.message.strategy"
_NULL = "wrap.on.null.value"
# The smallest chunk: no key, no headers of the record; its uuid and its numbers have their greatest length.
_LEAST_CHUNK_BYTES = batch_of_one_bytes(
    Record(None, b"v", Chunk("0" * 36, 2**31 - 2, 2**31 - 1, 2**31 - 1, "0" * 64).headers())
)


def check_limits(pipeline: PipelineSettings, sink: Topic) -> None:
    """Refuses a threshold, a batch size or a chunk size above the limit of the output topic.

    Raises:
        ConfigurationError: one of them is.
    """
    limit = _limit_of(sink)
    # A compressed record may be within the limit whatever its length.
    plain = pipeline.producer["producer.compression.type"] == "none" or sink.recompressed
    if pipeline.offloads and plain and pipeline.threshold_bytes > sink.max_message_bytes:
        raise ConfigurationError(
            "large.message.threshold.bytes",
            f"found {pipeline.threshold_bytes:,}, which exceeds the limit of the output topic: {limit}; lower the "
            "threshold, or raise the limit",
        )
    batch = pipeline.producer["producer.batch.size"]
    assert isinstance(batch, int)
    if batch > sink.max_message_bytes:
        raise ConfigurationError(
            "producer.batch.size", f"found {batch:,}, allowed is at most the limit of the output topic: {limit}"
        )
    chunks = pipeline.chunks
    # `limit_bytes` would make the chunks small enough; a size without effect is still refused.
    if chunks.splits and chunks.max_bytes is not None and chunks.max_bytes > sink.max_message_bytes:
        raise ConfigurationError(
            _MAX_BYTES, f"found {chunks.max_bytes:,}, allowed is at most the limit of the output topic: {limit}"
        )


def check_chunks(pipeline: PipelineSettings, sources: Sequence[Topic], sink: Topic) -> None:
    """Refuses topics that would delete chunks, or not accept them.

    Raises:
        ConfigurationError: a topic of chunks is compacted, or a chunk or the threshold does not fit the limit.
    """
    chunks = pipeline.chunks
    if chunks.expects_chunks:
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
            key, f"{found}; a chunk requires {_LEAST_CHUNK_BYTES:,} bytes, plus key and headers of the record"
        )
    if "chunk" in pipeline.transforms and "offload" in pipeline.transforms and limit >= pipeline.threshold_bytes:
        raise ConfigurationError(
            "transforms",
            f"found {list(pipeline.transforms)}; offload stores all values over {pipeline.threshold_bytes:,} bytes, "
            f"and chunk splits only records over {limit:,}, so it never applies; lower {_MAX_BYTES}, or use "
            f"{_STRATEGY}",
        )


def _limit_of(sink: Topic) -> str:
    return f"{MAX_MESSAGE_BYTES} of topic {sink.name} is {sink.max_message_bytes:,}"


def _check_kept(key: str, topic: Topic) -> None:
    if "compact" in topic.cleanup_policy:
        raise ConfigurationError(
            key,
            f"topic {topic.name} has cleanup.policy {topic.cleanup_policy}; the chunks of a value have one key, so "
            "compaction would delete all but the last; use a topic with cleanup.policy delete",
        )


def check_wrappers(pipeline: PipelineSettings, sink: Topic) -> None:
    """Refuses a compacted output topic if tombstones are wrapped: deleted keys would stay in it forever.

    Raises:
        ConfigurationError: the output topic is compacted, and tombstones are wrapped.
    """
    wrapper = pipeline.wrapper
    if wrapper.wraps and wrapper.wrap.null == "wrap" and "compact" in sink.cleanup_policy:
        raise ConfigurationError(
            _NULL,
            f"found 'wrap', and topic {sink.name} has cleanup.policy {sink.cleanup_policy}; a wrapped tombstone is "
            f'not a null value, and deletes nothing; set {_NULL} = "pass"',
        )


def check_dead_letters(topic: Topic) -> None:
    """Refuses a dead-letter topic that would delete dead-letter records, or not accept them.

    Raises:
        ConfigurationError: the topic is compacted, or its limit is too low.
    """
    key = "errors.deadletterqueue.topic.name"
    if "compact" in topic.cleanup_policy:
        raise ConfigurationError(
            key,
            f"topic {topic.name} has cleanup.policy {topic.cleanup_policy}; it would refuse dead-letter records "
            "without a key, and keep only the last one of each key; use a topic with cleanup.policy delete",
        )
    if topic.max_message_bytes < LEAST_BYTES:
        raise ConfigurationError(
            key,
            f"max.message.bytes of topic {topic.name} is {topic.max_message_bytes:,}; dead-letter records may need "
            f"{LEAST_BYTES:,}",
        )
