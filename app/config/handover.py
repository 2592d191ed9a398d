"""Checks between a pipeline that writes a topic and one that reads it: the reader must understand what is written.

Only pipelines of the same file are checked, if one reads the topic that another writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from app.config.settings import PipelineSettings
from stores.registry import STORE_CLASS, STORE_NAMES, store_keys
from transforms.errors import ConfigurationError
from transforms.keyring import PREVIOUS_NAME, EncryptionSettings
from transforms.signing import KEY_NAME, REQUIRED_NAME

_MAX_BYTES = "large.message.max.bytes"
_MESSAGE_BYTES = "chunk.max.message.bytes"
# The properties that select a server, in addition to the root of the paths, by store.
_SERVERS: Mapping[object, Sequence[str]] = {
    "s3": ("s3.endpoint",),
    "gcs": ("gcs.endpoint",),
    "azure": ("azure.account.name", "azure.endpoint"),
}


def form_errors(pipelines: Sequence[PipelineSettings]) -> Iterator[ConfigurationError]:
    """Checks that chunks are assembled, and that references are recognized, accepted, and not too large.

    Yields an error wherever a reader would treat chunks or references as values, or would refuse all of them.
    """
    for writer, reader in _neighbours(pipelines):
        if writer.chunks.splits:
            yield from _check_chunks(writer, reader)
        if writer.offloads and "inflate" in reader.transforms:
            yield from _check_references(writer, reader)
        elif writer.offloads and _refuses_references(writer, reader):
            yield _refusal(
                writer,
                reader,
                "offload.on.reference",
                f"found {reader.on_reference!r}",
                "writes references, all of which would be refused. Set it to 'pass'",
            )


def root_errors(pipelines: Sequence[PipelineSettings], roots: Mapping[str, str]) -> Iterator[ConfigurationError]:
    """Checks that readers look for payloads where writers put them.

    Args:
        pipelines: of the file.
        roots: by the names of pipelines, the URIs of the roots of their stores, where they are known.

    Yields an error for each reader that has another root, and would refuse each reference of the writer.
    """
    for writer, reader in _neighbours(pipelines):
        theirs, ours = roots.get(writer.name), roots.get(reader.name)
        if writer.offloads and "inflate" in reader.transforms and theirs and ours and theirs != ours:
            yield _refusal(
                writer,
                reader,
                _place_key(writer, reader),
                f"found a store at {ours}",
                f"stores its payloads in {theirs}; inflate would refuse all of its references. Use the same store",
            )


def store_doubts(pipelines: Sequence[PipelineSettings]) -> Iterator[ConfigurationError]:
    """Readers whose store may differ from the writer's: a warning, since only their owner can know.

    Two endpoints may be names of one server, and a custom class may read what another store has written.
    """
    for writer, reader in _neighbours(pipelines):
        if not (writer.offloads and "inflate" in reader.transforms and writer.store and reader.store):
            continue
        theirs, ours = writer.store[STORE_CLASS], reader.store[STORE_CLASS]
        if theirs != ours and {theirs, ours} - set(STORE_NAMES):
            found, where, key = f"found {ours!r}", f"a store of class {theirs!r}", STORE_CLASS
            unless = "unless the one can read what the other writes"
        elif theirs == ours and (differing := _other_server(writer, reader)) is not None:
            key = differing
            named = [repr(each.store[key]) if key in each.store else "none" for each in (reader, writer)]
            found, where = f"found {named[0]}", f"the store at {key} {named[1]}"
            unless = "unless both lead to the same server"
        else:
            continue
        yield _refusal(
            writer, reader, key, found, f"stores its payloads in {where}; inflate would find none of them, {unless}"
        )


def _other_server(writer: PipelineSettings, reader: PipelineSettings) -> str | None:
    """The property by which two stores of one class may be on two servers; None if they are on one."""
    keys = _SERVERS.get(reader.store[STORE_CLASS], ())
    return next((key for key in keys if writer.store.get(key) != reader.store.get(key)), None)


def _place_key(writer: PipelineSettings, reader: PipelineSettings) -> str:
    """The property of the store that differs between the two, for instance the bucket."""
    name = str(reader.store[STORE_CLASS])
    if name == writer.store[STORE_CLASS]:
        for key in store_keys(name) or ():
            if writer.store.get(key.name, key.default) != reader.store.get(key.name, key.default):
                return key.name
    return STORE_CLASS


def _check_chunks(writer: PipelineSettings, reader: PipelineSettings) -> Iterator[ConfigurationError]:
    if not reader.chunks.assembles:
        yield _refusal(
            writer,
            reader,
            "transforms",
            f"found {list(reader.transforms)}",
            "may write its values as chunks, which would be treated as values. Put assemble first",
        )
    if writer.chunks.message_bytes > reader.chunks.message_bytes:
        yield _refusal(
            writer,
            reader,
            _MESSAGE_BYTES,
            f"found {reader.chunks.message_bytes:,}",
            f"splits values of up to {writer.chunks.message_bytes:,} bytes. Allowed is that or more",
        )


def _refuses_references(writer: PipelineSettings, reader: PipelineSettings) -> bool:
    """Whether a reader without `inflate` fails each reference that the writer makes."""
    if writer.reference_format != "wideload" or ("wrap" in writer.transforms and "unwrap" not in reader.transforms):
        return False  # without the headers of a reference
    if reader.offloads:
        return reader.on_reference == "fail" and reader.reference_format == "wideload"
    return reader.chunks.splits and reader.on_reference != "pass"


def _check_references(writer: PipelineSettings, reader: PipelineSettings) -> Iterator[ConfigurationError]:
    if writer.reference_format != reader.reference_format:
        yield _refusal(
            writer,
            reader,
            "reference.format",
            f"found {reader.reference_format!r}",
            f"writes {writer.reference_format!r}; inflate would treat its references as values",
        )
    if "wrap" in writer.transforms and "unwrap" not in reader.transforms:
        yield _refusal(
            writer,
            reader,
            "transforms",
            f"found {list(reader.transforms)}",
            "wraps its references; inflate would treat them as values. Put unwrap before inflate",
        )
    if writer.max_bytes > reader.max_bytes:
        yield _refusal(
            writer,
            reader,
            _MAX_BYTES,
            f"found {reader.max_bytes:,}",
            f"stores values of up to {writer.max_bytes:,} bytes. Allowed is that or more",
        )
    ours, theirs = reader.signing, writer.signing
    if ours is not None and theirs is None and ours.required:
        yield _refusal(
            writer,
            reader,
            REQUIRED_NAME,
            "found true",
            f"does not sign its references. Set {KEY_NAME} there too",
        )
    if ours is not None and theirs is not None and theirs.key not in (ours.key, *ours.previous):
        yield _refusal(
            writer,
            reader,
            KEY_NAME,
            "found a different key",
            "signs its references; inflate would refuse all of them. Use the same key in both",
        )
    encryption = writer.encryption
    if encryption is not None and encryption.writes and not _opens(reader.encryption, encryption):
        yield _refusal(
            writer,
            reader,
            PREVIOUS_NAME,
            "found no such key",
            f"encrypts its payloads with key {encryption.current}; inflate would refuse all of its references. Add "
            "the same key here, with the same id",
        )


def _opens(reader: EncryptionSettings | None, writer: EncryptionSettings) -> bool:
    """Whether a reader has the key with which a writer encrypts."""
    current = writer.current
    if reader is None or current is None:
        return False
    if current in writer.keys:
        return reader.keys.get(current) == writer.keys[current]
    return reader.kms is not None and current in reader.kms.key_ids


def _neighbours(pipelines: Sequence[PipelineSettings]) -> Iterator[tuple[PipelineSettings, PipelineSettings]]:
    """Each pipeline that writes a topic, with each that reads it."""
    for writer in pipelines:
        for reader in pipelines:
            if writer.output_topic in reader.topics:
                yield writer, reader


def _refusal(writer: PipelineSettings, reader: PipelineSettings, key: str, found: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        key,
        f"{found}, but pipeline {writer.name}, which writes topic {writer.output_topic} for this pipeline, {what}",
        pipeline=reader.name,
    )
