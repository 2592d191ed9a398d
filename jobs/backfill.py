"""Copies an existing topic into another one, as references or as plain values, partition by partition.

`jobs.copying.partitions` says what a restart repeats, and why there is no gap; this is the command. Spark needs no
Kafka connector for it: tasks read and write with aiokafka.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

if not __package__:  # spark-submit runs this file by itself, with this directory on the path, not the one above it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from app.config.arguments import (
    JobParser,
    add_kafka,
    add_store,
    at_least,
    client_settings,
    configure,
    consumer_arguments,
    parse,
    store_config,
    store_use,
)
from app.config.naming import check_topics
from app.config.store_use import StoreUse
from app.kafka.range_reader import RecordsLostError
from app.kafka.spans import required
from app.payloads.terminal import bar, repaint
from jobs.copying.forms import FORMS
from jobs.copying.partitions import Backfill, run
from jobs.copying.range import BackfillSettings, Source
from jobs.driver.command_line import add_spark, session_settings
from jobs.driver.failures import require_broker
from jobs.driver.session import open_session, stopping
from jobs.records.inflater import InflaterSettings
from stores.encryption import ENCRYPTION_KEYS
from stores.registry import STORE_CLASS
from transforms.chunked_message import Limits
from transforms.compression import CODECS
from transforms.errors import ConfigurationError, WideloadError
from transforms.formats import FORMATS
from transforms.inflate import DEFAULT_MAX_BYTES
from transforms.offload import DEFAULT_THRESHOLD_BYTES, Offload
from transforms.signing import Signing
from transforms.text import bytes_text, text_table

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the job; returns the exit status: 0 done or stopped, 1 failed at work, 2 something to set right first."""
    arguments = parse(_parser(), argv)
    found = Backfill()
    status, message = 0, None
    try:
        configure(arguments)
        settings, session = _settings(arguments), session_settings(arguments, "wideload-backfill")
        settings.check()
        require_broker(settings.source.client.bootstrap_servers)
        required(settings.source.client, {"--source": [arguments.source], "--sink": [settings.sink]})
        with open_session(session) as spark, stopping() as stop:
            found = Backfill()
            run(spark, settings, found, stop, _screen(sys.stderr) if sys.stderr.isatty() else _silent)
    except WideloadError as error:
        if arguments.verbose:
            raise
        status, message = 2 if isinstance(error, ConfigurationError) else 1, _said(error)
    if sys.stderr.isatty() and found.ranges:
        sys.stderr.write("\n")
    if message is not None:
        print(f"backfill: {message}", file=sys.stderr)
    if status == 0 or found.ranges:
        state = "failed" if message else "stopped" if found.left else "dry-run" if arguments.dry_run else "done"
        _tell(found, arguments, state, message)
    return status


def _said(error: WideloadError) -> str:
    """The message, with this command's options in place of those of the data source."""
    if isinstance(error, RecordsLostError):
        return f"{error}; --no-fail-on-data-loss continues without them"
    return str(error).replace("(chunkLookback)", "(--chunk-lookback)")


def _silent(_: Backfill) -> None:
    """Where there is no terminal."""


def _screen(screen: TextIO) -> Callable[[Backfill], None]:
    def show(found: Backfill) -> None:
        done = found.began - found.left
        repaint(
            screen,
            f"{bar(done, found.began)} {done:,} of {found.began:,} offsets, {found.tally.records:,} records, "
            f"{time.monotonic() - found.started:.0f} s",
        )

    return show


def _tell(found: Backfill, arguments: argparse.Namespace, state: str, message: str | None) -> None:
    if arguments.json or not sys.stdout.isatty():
        print(json.dumps(_summary(found, arguments, state, message)))
        return
    tally = found.tally
    if not found.ranges:
        print("nothing is left to do")
        return
    rows = [
        [form, f"{tally.forms[form][0]:,}", bytes_text(tally.forms[form][1])] for form in FORMS if form in tally.forms
    ]
    sys.stdout.write(text_table(("read as", "records", "size"), *rows))
    would = "would be " if arguments.dry_run else ""
    size = "" if arguments.dry_run else f", {bytes_text(tally.bytes)}"
    print(f"{would}written: {tally.records:,} records{size}")
    unsized = f", and {tally.unsized:,} of them whose size only the store knows" if tally.unsized else ""
    print(f"{would}published: {tally.payloads:,} payloads, {bytes_text(tally.payload_bytes)}{unsized}")
    if tally.kept:
        print(f"kept unchanged, because they cannot be restored: {tally.kept:,} records")
        print(f"they may refer to payloads of {arguments.source}: sweep that topic with --carrier {arguments.sink}")
    if tally.left_out:
        print(f"left out: {tally.left_out:,} chunks that do not form a message")
    if state == "stopped":
        print(f"stopped with {found.left:,} offsets left; run the job again to continue")
    if state == "dry-run":
        print("nothing was written: this was a dry run")


def _summary(found: Backfill, arguments: argparse.Namespace, state: str, message: str | None) -> dict[str, object]:
    tally = found.tally
    summary: dict[str, object] = {
        "job": "backfill",
        "status": state,
        "source": arguments.source,
        "sink": arguments.sink,
        "read": {
            form: {"records": tally.forms[form][0], "bytes": tally.forms[form][1]}
            for form in FORMS
            if form in tally.forms
        },
        "written": tally.records,
        "written_bytes": tally.bytes,
        "payloads": tally.payloads,
        "payload_bytes": tally.payload_bytes,
        "unsized": tally.unsized,
        "kept": tally.kept,
        "left_out": tally.left_out,
        "ranges": found.ranges,
        "positions": {str(partition): at for partition, at in sorted(found.positions.items())},
        "left": found.left,
        "seconds": round(time.monotonic() - found.started, 1),
    }
    return summary if message is None else summary | {"error": message}


def _settings(arguments: argparse.Namespace) -> BackfillSettings:
    plain = arguments.to == "plain"
    has_store = arguments.settings is None or any(
        each.store for each in arguments.settings.pipelines
    )  # chunks need no store
    use = store_use(arguments, [arguments.source, arguments.sink]) if has_store else None
    sink = None if use is None or plain else store_config(arguments, use, arguments.sink)
    signing = None if sink is None else Signing.of(sink)
    return BackfillSettings(
        source=_source(arguments, use),
        sink=arguments.sink,
        checkpoint=arguments.checkpoint,
        offload=None if plain else Offload(arguments.threshold_bytes, None, arguments.compression, signing=signing),
        by_key=arguments.partition_by == "key",
        keep_references=arguments.keep_references and not plain,
        keep_problems=arguments.on_error == "keep",
        append=arguments.append,
        max_records=arguments.max_range_records,
        max_bytes=arguments.max_range_bytes,
        partitions_at_a_time=arguments.partitions_at_a_time,
        dry_run=arguments.dry_run,
        encryption=None if sink is None else {key.name: sink[key.name] for key in ENCRYPTION_KEYS if key.name in sink},
    )


def _source(arguments: argparse.Namespace, use: StoreUse | None) -> Source:
    given = arguments.store or arguments.store_config or use
    if not given and arguments.to == "references" and not arguments.dry_run:
        raise ConfigurationError("--store", f"{STORE_CLASS}=… is missing; pass the properties of the worker's pipeline")
    # Without a store chunks can be assembled; an empty one refuses every reference.
    store = store_config(arguments, use, arguments.source) if given else {STORE_CLASS: "memory"}
    name = "wideload" if use is None else use.formats.get(arguments.source, "wideload")
    inflater = InflaterSettings(store, arguments.format or name)
    inflater.check()
    check_topics([arguments.source], "--source")
    check_topics([arguments.sink], "--sink")
    pending, largest = Limits().pending_bytes, store.get("large.message.max.bytes", DEFAULT_MAX_BYTES)
    assert isinstance(largest, int)
    return Source(
        client=client_settings(arguments),
        consumer={"max_partition_fetch_bytes": 4 * 2**20, **consumer_arguments(arguments)},
        topic=arguments.source,
        inflater=inflater,
        limits=Limits(pending_bytes=pending, message_bytes=min(largest, pending), expire_ms=0),
        lookback=arguments.chunk_lookback,
        fail_on_loss=arguments.fail_on_data_loss,
    )


def _parser() -> argparse.ArgumentParser:
    parser = JobParser(
        prog="backfill",
        description="Copies an existing topic (plain values, references, bakdata's formats, chunks) to another "
        "topic, either with references in place of large values or with all values in the records. Keys, "
        "timestamps, headers and the order within each partition are preserved.",
        epilog="Exit status: 0 if the job completed or was stopped, 1 if it failed while it ran, 2 if something "
        "must be corrected first. The last line on stdout is the result, as JSON if stdout is not a terminal.",
        allow_abbrev=False,
    )
    source = parser.add_argument_group("what to read")
    add_kafka(source)
    source.add_argument("--source", required=True, metavar="NAME", help="the topic to read")
    # fmt: off
    source.add_argument("--format", choices=list(FORMATS),
        help="how its records refer to payloads, as the worker's reference.format (default: from the "
            "configuration, otherwise wideload)")
    source.add_argument("--fail-on-data-loss", action=argparse.BooleanOptionalAction, default=True,
        help="fail if Kafka deleted records before they were read (the default)")
    source.add_argument("--chunk-lookback", type=at_least(0), default=100_000, metavar="N",
        help="how far before a range, in offsets, the first chunk of a message may be (default %(default)s)")
    add_store(parser.add_argument_group("the store"))
    _add_sink(parser.add_argument_group("what to write"))
    pace = parser.add_argument_group("how much at a time")
    pace.add_argument("--max-range-records", type=at_least(1), default=10_000, metavar="N",
        help="the maximum number of records that a restart repeats in each partition (default %(default)s)")
    pace.add_argument("--max-range-bytes", type=at_least(1), default=256 * 2**20, metavar="N",
        help="the maximum number of bytes that a restart repeats in each partition, read or written; one record "
            "may exceed it (default %(default)s)")
    pace.add_argument("--partitions-at-a-time", type=at_least(1), metavar="N",
        help="how many partitions are copied simultaneously (default: the number of Spark's cores)")
    parser.add_argument("--json", action="store_true", help="print JSON in a terminal too")
    add_spark(parser)
    return parser


def _add_sink(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--sink", required=True, metavar="NAME", help="the topic to write; it must exist")
    # fmt: off
    group.add_argument("--to", choices=("references", "plain"), required=True,
        help="references: write references in place of large values; plain: write all values into the records")
    group.add_argument("--checkpoint", metavar="FOLDER",
        help="a directory that stores the progress of the job; it belongs to this source and this output topic only")
    group.add_argument("--dry-run", action="store_true", help="only count the records, and report what the job "
        "would do")
    group.add_argument("--threshold-bytes", type=at_least(0), default=DEFAULT_THRESHOLD_BYTES, metavar="N",
        help="longer values become references, as with the worker's large.message.threshold.bytes (default "
            "%(default)s)")
    group.add_argument("--compression", choices=list(CODECS), help="the compression of payloads (default: none)")
    group.add_argument("--keep-references", action="store_true",
        help="keep existing references, and leave their payloads where they are; a sweep of the source's payloads "
            "must then include the output topic as --carrier")
    group.add_argument("--partition-by", choices=("number", "key"), default="number",
        help="number: write each record to the partition with the same number; key: to the partition of its key "
            "(default %(default)s)")
    group.add_argument("--on-error", choices=("fail", "keep"), default="fail",
        help="what to do with a record that cannot be restored: fail ends the job, keep writes the record "
            "unchanged (default "
        "%(default)s)")
    group.add_argument("--append", action="store_true",
        help="accept a new checkpoint even if the output topic has, or had, records")


if __name__ == "__main__":
    raise SystemExit(main())
