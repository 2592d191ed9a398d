"""The page on bakdata's formats, held to what it says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from app.settings import parse
from transforms.bakdata import COMPRESSION, FLAG
from transforms.formats import FORMATS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "bakdata.md").read_text(encoding="utf-8")


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
