"""docs/configuration.md, made of the definitions of the keys: `python -m app.commands.configuration_page` writes it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS, SECURITY_KEYS
from app.config.settings import PIPELINE_KEYS, WORKER_KEYS
from app.config.wrapping import HEADER_KEY
from app.serializers import options
from stores.keys import REQUIRED, Key
from stores.registry import STORE_NAMES, store_keys
from stores.store import COMMON_KEYS

__all__ = ["EXAMPLE", "PAGE", "page"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"

EXAMPLE = """\
bootstrap.servers = "localhost:9092"

# What stands before the first table holds for every pipeline.
producer.compression.type = "zstd"

[pipeline.orders-offload]
topics = ["raw-large"]
output.topic = "orders"
transforms = ["offload"]
large.message.payload.store.class = "s3"
large.message.threshold.bytes = 1048576
s3.bucket = "payloads"
s3.endpoint = "http://localhost:9000"
s3.access.key = "${env:PAYLOADS_KEY}"
s3.secret.key = "${file:/run/secrets/payloads}"
errors.tolerance = "all"
errors.deadletterqueue.topic.name = "orders-dlq"

[pipeline.orders-inflate]
topics = ["orders"]
output.topic = "orders-inflated"
transforms = ["inflate"]
large.message.payload.store.class = "s3"
s3.bucket = "payloads"
s3.endpoint = "http://localhost:9000"
s3.access.key = "${env:PAYLOADS_KEY}"
s3.secret.key = "${file:/run/secrets/payloads}"
"""
"""The example of the page; a test loads it."""

_INTRODUCTION = f"""\
<!-- Made by `make docs` from the definitions of the keys. Changes here are lost. -->

# Configuration

One file says what a worker does: `wideload worker -c wideload.toml`, or `WIDELOAD_CONFIG=wideload.toml faust -A
app.worker worker`. `wideload check -c wideload.toml` says whether it would start, and `--print` shows it with all
defaults.

The file is [TOML](https://toml.io). Names are dotted, as Kafka and Kafka Connect have them; `s3.bucket = "a"` and a
table `[pipeline.NAME.s3]` with `bucket = "a"` mean the same. If one name is the beginning of another one, put it in
quotes: `"s3.sse"` beside `s3.sse.kms.key.id`. A key that is not listed here is an error, which names the nearest one
that is. Sizes are in bytes and times in milliseconds, as the ends of the names say.

```toml
{EXAMPLE}```

## Where a key stands

- **Keys of the worker** stand before the first table: brokers, security, budget, pages.
- **Keys of a pipeline** stand in its table `[pipeline.NAME]`: topics, transforms, errors, and all keys of its store.
- **`consumer.*` and `producer.*`** may stand in either place: before the first table they hold for every pipeline, in a
  table for that one, which wins.

## Secrets

In any string, `${{env:NAME}}` stands for an environment variable, and `${{file:/path}}` for the text of a file, without
the line break at its end. What comes from there, and every key that is marked *secret* below, is printed as `***`.
"""

_SECTIONS: Sequence[tuple[str, str, Sequence[Key]]] = (
    (
        "Worker",
        "Before the first table.",
        [key for key in WORKER_KEYS if key not in SECURITY_KEYS],
    ),
    (
        "Security",
        "Before the first table. The commands take these and the three first keys of the worker as `-X KEY=VALUE` too.",
        SECURITY_KEYS,
    ),
    ("Pipeline", "In `[pipeline.NAME]`.", (*PIPELINE_KEYS, HEADER_KEY)),
    (
        "Stores",
        "In `[pipeline.NAME]`, whatever the store. A class of your own is handed these, and all keys that are not "
        "listed here; what it needs is in [serializers.md](serializers.md#a-store-of-your-own).",
        COMMON_KEYS,
    ),
    *(
        (f"Store `{name}`", f'In `[pipeline.NAME]`, with `large.message.payload.store.class = "{name}"`.', keys)
        for name in sorted(STORE_NAMES)
        if (keys := store_keys(name)) is not None
    ),
    ("Consumer", "Before the first table, or in `[pipeline.NAME]`.", CONSUMER_KEYS),
    ("Producer", "Before the first table, or in `[pipeline.NAME]`.", PRODUCER_KEYS),
    (
        "Serializers in a producer",
        "Not in the file, but in the configuration of a client that serializes (docs/serializers.md), beside those of "
        "its store above. Numbers may be strings.",
        [*options.SERIALIZER_KEYS, options.STORE_KEY, *options.PRODUCER_KEYS],
    ),
    (
        "Deserializers in a consumer",
        "Likewise.",
        [*options.DESERIALIZER_KEYS, options.STORE_KEY, *options.CONSUMER_KEYS],
    ),
)


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([_INTRODUCTION, *(line for section in _SECTIONS for line in _section(*section))])


def _section(title: str, where: str, keys: Sequence[Key]) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{where}\n"
    yield "| key | type | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for key in keys:
        yield f"| `{key.name}` | {key.kind} | {_default(key)} | {_meaning(key)} |"
    yield ""


def _default(key: Key) -> str:
    if key.default is REQUIRED:
        return "**required**"
    if key.default is None:
        return "not set"
    if isinstance(key.default, bool):
        return f"`{str(key.default).lower()}`"
    return f"`{key.default}`" if key.default != "" else "empty"


def _meaning(key: Key) -> str:
    parts = [key.doc]
    if key.allowed:
        parts.append(f"One of {', '.join(f'`{value}`' for value in key.allowed)}.")
    if key.minimum is not None:
        parts.append(f"At least {key.minimum:g}.")
    if key.secret:
        parts.append("*Secret.*")
    return " ".join(parts).replace("|", "\\|")


def main() -> int:
    """Writes the page; the exit status."""
    argparse.ArgumentParser(
        prog="python -m app.commands.configuration_page", description="Writes docs/configuration.md."
    ).parse_args()
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
