"""Formats of others: which configurations may have them, and the page on them, held to what it says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from app.config.parsing import parse
from tests.app.configurations import HEAD, ORDERS, OWN_CLASS, S3, only_pipeline, refusal_of
from transforms.bakdata import COMPRESSION, FLAG
from transforms.formats import FORMATS

OTHER = S3.replace("'s3'", "'{}'").replace('"s3"', '"{}"')
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "bakdata.md").read_text(encoding="utf-8")


def test_examples_of_the_page_are_taken() -> None:
    """The configurations that the page shows mean what it says, and show both formats."""
    examples = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    pipelines = [parse(tomllib.loads(example), {}).pipelines[0] for example in examples]
    assert [(each.transforms, each.reference_format) for each in pipelines] == [
        (("inflate",), "bakdata-flag"),
        (("offload",), "bakdata-headers"),
    ]


def test_page_names_what_stands_in_records() -> None:
    """The formats and the headers are spelt as they are in the code."""
    for name in (*FORMATS, FLAG, COMPRESSION):
        assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", ["wideload", "bakdata-headers", "bakdata-flag"])
def test_reference_format_is_taken(name: str) -> None:
    """Each format can be read from any store, and written to S3 and to a store of one's own."""
    for text in (
        ORDERS.replace("offload", "inflate"),
        S3 + 's3.bucket = "2-pay.loads"\ns3.prefix = "a/b-c~1"\n',
        OTHER.format("gcs") + 'gcs.bucket = "2-pay.loads"\n',
        OTHER.format("azure") + 'azure.container = "payloads"\nazure.account.name = "acme"\n',
        OWN_CLASS,
    ):
        assert only_pipeline(HEAD + text + f'reference.format = "{name}"\n').reference_format == name


def test_reference_format_that_is_none() -> None:
    """A format that is not known is refused with the list of those that are."""
    found = refusal_of(HEAD + ORDERS + 'reference.format = "bakdata"\n')
    assert found == (
        "[pipeline.orders] reference.format: found 'bakdata', allowed is one of: "
        "wideload, bakdata-headers, bakdata-flag"
    )


@pytest.mark.parametrize("name", ["bakdata-headers", "bakdata-flag"])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (ORDERS, "large.message.payload.store.class: found 'memory'"),
        (S3 + 's3.bucket = "pay_loads"\n', "s3.bucket: found 'pay_loads'"),
        (OTHER.format("gcs") + 'gcs.bucket = "pay_loads"\n', "gcs.bucket: found 'pay_loads'"),
        (S3 + 's3.bucket = "pay.2024"\n', "s3.bucket: found 'pay.2024'"),
        (S3 + 's3.bucket = "b"\ns3.prefix = "a b"\n', "s3.prefix: found 'a b'"),
        (S3 + 's3.bucket = "b"\ns3.prefix = "a%20b"\n', "s3.prefix: found 'a%20b'"),
    ],
)
def test_reference_format_that_nobody_could_follow(name: str, text: str, found: str) -> None:
    """A store whose paths the format's readers cannot take is refused at start, where it would be written to."""
    assert f"{found}; reference.format = '{name}' needs, for its readers, " in refusal_of(
        HEAD + text + f'reference.format = "{name}"\n'
    )
    both = text.replace('"offload"', '"inflate", "offload"')
    assert found in refusal_of(HEAD + both + f'reference.format = "{name}"\n')
    only_pipeline(HEAD + text)
    only_pipeline(HEAD + text.replace('"offload"', '"inflate"') + f'reference.format = "{name}"\n')
