"""Checks between a pipeline that writes a topic and one that reads it: the reader must understand what is written.

Only what the file itself shows is checked: what a pipeline writes by itself, where the next one reads it at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from app.config.settings import PipelineSettings
from transforms.errors import ConfigurationError
from transforms.signing import KEY_NAME, REQUIRED_NAME

__all__ = ["check_forms", "check_roots"]

_MAX_BYTES = "large.message.max.bytes"
_MESSAGE_BYTES = "chunk.max.message.bytes"
_STORE_CLASS = "large.message.payload.store.class"


def check_forms(pipelines: Sequence[PipelineSettings]) -> None:
    """Checks that chunks are assembled, and that references are known, believed, and not too large.

    Raises:
        ConfigurationError: a reader would take pieces or references for values, or would refuse all of them.
    """
    for writer, reader in _neighbours(pipelines):
        if writer.chunks.splits:
            _check_chunks(writer, reader)
        if writer.offloads and "inflate" in reader.transforms:
            _check_references(writer, reader)


def check_roots(pipelines: Sequence[PipelineSettings], roots: Mapping[str, str]) -> None:
    """Checks that readers look for payloads where writers put them.

    Args:
        pipelines: of the file.
        roots: by the names of pipelines, the URIs of the roots of their stores, where they are known.

    Raises:
        ConfigurationError: a reader has another root, and would refuse each reference of the writer.
    """
    for writer, reader in _neighbours(pipelines):
        theirs, ours = roots.get(writer.name), roots.get(reader.name)
        if writer.offloads and "inflate" in reader.transforms and theirs and ours and theirs != ours:
            raise _refusal(
                writer,
                reader,
                _STORE_CLASS,
                f"found a store at {ours}",
                f"puts its payloads into {theirs}; inflate would refuse each of its references. Use the same store",
            )


def _check_chunks(writer: PipelineSettings, reader: PipelineSettings) -> None:
    if not reader.chunks.assembles:
        raise _refusal(
            writer,
            reader,
            "transforms",
            f"found {list(reader.transforms)}",
            "may write its values in chunks; they would be taken for values. Put assemble first",
        )
    if writer.chunks.message_bytes > reader.chunks.message_bytes:
        raise _refusal(
            writer,
            reader,
            _MESSAGE_BYTES,
            f"found {reader.chunks.message_bytes:,}",
            f"splits values of up to {writer.chunks.message_bytes:,} bytes. Allowed is that or more",
        )


def _check_references(writer: PipelineSettings, reader: PipelineSettings) -> None:
    if writer.reference_format != reader.reference_format:
        raise _refusal(
            writer,
            reader,
            "reference.format",
            f"found {reader.reference_format!r}",
            f"writes {writer.reference_format!r}; inflate would take its references for values",
        )
    if "wrap" in writer.transforms and "unwrap" not in reader.transforms:
        raise _refusal(
            writer,
            reader,
            "transforms",
            f"found {list(reader.transforms)}",
            "wraps its references; inflate would take them for values. Put unwrap before it",
        )
    if writer.max_bytes > reader.max_bytes:
        raise _refusal(
            writer,
            reader,
            _MAX_BYTES,
            f"found {reader.max_bytes:,}",
            f"stores values of up to {writer.max_bytes:,} bytes. Allowed is that or more",
        )
    ours, theirs = reader.signing, writer.signing
    if ours is not None and theirs is None and ours.required:
        raise _refusal(
            writer,
            reader,
            REQUIRED_NAME,
            "found true",
            f"does not sign its references. Give it {KEY_NAME} too",
        )
    if ours is not None and theirs is not None and theirs.key not in (ours.key, *ours.previous):
        raise _refusal(
            writer,
            reader,
            KEY_NAME,
            "found another key",
            "signs its references with its own; inflate would refuse each of them. Give both the same key",
        )


def _neighbours(pipelines: Sequence[PipelineSettings]) -> Iterator[tuple[PipelineSettings, PipelineSettings]]:
    """Each pipeline that writes a topic, with each that reads it."""
    for writer in pipelines:
        for reader in pipelines:
            if writer.output_topic in reader.topics:
                yield writer, reader


def _refusal(writer: PipelineSettings, reader: PipelineSettings, key: str, found: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        key,
        f"{found}, and pipeline {writer.name}, which writes topic {writer.output_topic} for this one, {what}",
        pipeline=reader.name,
    )
