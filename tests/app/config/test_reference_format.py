"""Formats of others: the page on them, held to what it says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from app.config.parsing import parse
from transforms.bakdata import COMPRESSION, FLAG
from transforms.formats import FORMATS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "bakdata.md").read_text(encoding="utf-8")


def test_the_page_is_true() -> None:
    """Its configurations mean what it says, and show both formats; names are spelt as in the code."""
    examples = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    pipelines = [parse(tomllib.loads(example), {}).pipelines[0] for example in examples]
    assert [(each.transforms, each.reference_format) for each in pipelines] == [
        (("inflate",), "bakdata-flag"),
        (("offload",), "bakdata-headers"),
    ]
    assert [name for name in (*FORMATS, FLAG, COMPRESSION) if f"`{name}`" not in PAGE] == []
