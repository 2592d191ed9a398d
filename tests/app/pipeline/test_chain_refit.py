"""Records that the sink refuses because it takes less than when they were made: what goes in their place."""

from __future__ import annotations

import dataclasses
import random
from typing import cast

import pytest

from app.config.parsing import parse
from app.config.settings import PipelineSettings
from app.pipeline.chain import build
from app.pipeline.lane import PlacedRecord
from app.pipeline.stats import PipelineStats
from tests.app.pipeline.chains import ROOMY, apply, chain_of, memory, settings_of
from transforms.batch_size import batch_of_one_bytes
from transforms.chunk import is_chunk
from transforms.errors import RecordTooLargeError
from transforms.formats import FormatName
from transforms.record import Record, RecordLike

LIMIT = 3_000
UNSET = 1_000_000  # a threshold that no value here is over
RECORD = Record(b"k", random.Random(1).randbytes(5_000), (("h", b"x"), ("wrapper.header.77", b"")), 5)
WRAPPED = {"wrap_on_unmapped_header": "drop"}


def chunking(transforms: list[str], **keys: object) -> PipelineSettings:
    """A pipeline that splits, and so takes no key of a store."""
    dotted = {name.replace("_", "."): value for name, value in keys.items()}
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": transforms, **dotted}
    return parse({"bootstrap.servers": "localhost:1", "pipeline": {"p": table}}, {}).pipelines[0]


def placed(record: RecordLike) -> PlacedRecord:
    """The record as the sink has refused it, with the place of what was read."""
    return PlacedRecord("raw", 0, 7, record.timestamp, record.key, record.value, tuple(record.headers))


@pytest.mark.parametrize(
    ("transforms", "keys"),
    [
        (["offload"], {}),
        (["offload"], {"form": "bakdata-headers"}),
        (["offload"], {"form": "bakdata-flag"}),
        (["offload", "wrap"], WRAPPED),
        (["offload", "wrap"], {**WRAPPED, "form": "bakdata-flag"}),
        (["chunk"], {}),
        (["wrap", "chunk"], WRAPPED),
    ],
)
@pytest.mark.parametrize("codec", [0, 4])
def test_it_goes_as_by_the_new_limit(transforms: list[str], keys: dict[str, object], codec: int) -> None:
    """What was made for a greater limit becomes what the record that was read would have become, and fits."""
    keys = {**keys}
    form = cast("FormatName", keys.pop("form", "wideload"))
    if "chunk" in transforms:
        settings = chunking(transforms, **keys)
    else:
        settings = settings_of(transforms, **{"large_message_threshold_bytes": UNSET, **keys})
    settings = dataclasses.replace(settings, reference_format=form)
    store = memory()
    (sent,), _ = apply(build(settings, store, ROOMY, PipelineStats()), placed(RECORD), codec)
    chain = build(settings, store, LIMIT, PipelineStats())
    records, applied = chain.refit(placed(sent), codec)
    direct, _ = apply(chain, placed(RECORD), codec)
    if "chunk" in transforms:
        assert b"".join(each.value or b"" for each in records) == sent.value
        assert len(records) == len(direct) > 1
    else:
        assert [(each.key, each.value, tuple(each.headers)) for each in records] == [
            (each.key, each.value, tuple(each.headers)) for each in direct
        ]
    assert applied[0] in {"offload", "chunk"}
    assert max(map(batch_of_one_bytes, records)) <= LIMIT


def test_nothing_for_what_is_moved_already() -> None:
    """A reference and a chunk stay what they are: a reader would follow or join them once, and no further."""
    store = memory()
    references, _ = apply(chain_of(["offload"], store), placed(RECORD))
    splitting = build(chunking(["chunk"]), None, 1_000, PipelineStats())
    chunks, _ = apply(splitting, placed(RECORD))
    assert is_chunk(chunks[0].headers)
    wrapped, _ = apply(chain_of(["offload", "wrap"], store, wrap_on_unmapped_header="drop"), placed(RECORD))
    offloading = chain_of(["offload"], store, 90)
    for chain, record in (
        (offloading, references[0]),
        (offloading, chunks[0]),
        (splitting, references[0]),
        (splitting, Record(b"k", (chunks[0].value or b"") * 9, chunks[0].headers)),
        (chain_of(["offload", "wrap"], store, 90), wrapped[0]),
    ):
        assert chain.refit(placed(record)) == ((), ())


@pytest.mark.parametrize("transforms", [["inflate"], ["unwrap"], ["wrap"]])
def test_nothing_where_no_stage_makes_records_smaller(transforms: list[str]) -> None:
    """Then only the record that was read tells what to do: the next flow reads it again."""
    assert chain_of(transforms, memory(), LIMIT).refit(placed(RECORD)) == ((), ())


def test_nothing_for_what_fits_by_the_limit_that_is_known() -> None:
    """A refusal that the limit does not explain must not be repeated for ever with the same record."""
    assert build(chunking(["chunk"]), None, ROOMY, PipelineStats()).refit(placed(RECORD)) == ((), ())
    offloading = chain_of(["offload"], memory(), large_message_threshold_bytes=UNSET)
    assert offloading.refit(placed(RECORD)) == ((), ())
    assert offloading.refit(placed(Record(b"k", None))) == ((), ())


def test_what_cannot_fit_is_an_error() -> None:
    """Headers that alone are over the limit stay so; the next flow decides by `errors.tolerance`."""
    record = placed(Record(b"k", b"v", (("h", b"x" * LIMIT),)))
    with pytest.raises(RecordTooLargeError):
        chain_of(["offload"], memory(), LIMIT).refit(record)
