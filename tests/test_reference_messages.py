"""The two pages on references: their examples are the vectors, and the reader that was written from them reads them."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vectors.case import VECTORS, Case, cases
from transforms.record import Record

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "reference-messages.md", ROOT / "docs" / "reference-security.md")

_BLOCK = re.compile(r"(?:<!-- vector: (?P<name>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)```\n", re.DOTALL)


def shown(data: bytes | None) -> str:
    """Bytes as an example has them."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if data == text[:12].encode() * 50:
        return f"{text[:12]!r}, 50 times"
    return text if text.isprintable() and text else f"{base64.b64encode(data).decode()} (Base64)"


def lines(record: Record) -> Iterator[str]:
    """The fields of a record."""
    yield f"key      {shown(record.key)}"
    yield f"value    {shown(record.value)}"
    yield from (f"header   {name}: {shown(value)}" for name, value in record.headers)


def listing(case: Case) -> str:
    """A vector as the page shows it."""
    assert case.plain is not None
    assert case.payload is not None
    path, stored = case.payload
    parts = {
        "without": [*lines(case.plain)],
        "in Kafka": [*lines(case.wire)],
        "stored": [f"path     {path}", f"bytes    {shown(stored)}"],
    }
    rows = [f"{'' if i else title:<11}{line}" for title, part in parts.items() for i, line in enumerate(part)]
    return "".join(f"{row}\n" for row in rows)


def test_examples_are_vectors() -> None:
    """Each example of a record is exactly a vector, and there are no others."""
    known = {case.name: case for case in cases()}
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    blocks = [block.groupdict() for block in _BLOCK.finditer(text)]
    examples = {block["name"]: block["text"] for block in blocks if block["language"] != "abnf"}
    assert len(examples) == 4
    assert examples == {name: listing(known[name]) for name in examples}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """Each file that the page names is there, and each section."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    headings = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in found}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings
        elif not target.startswith("https:"):
            assert (page.parent / target.partition("#")[0]).is_file(), target


def test_reader_from_the_page(tmp_path: Path) -> None:
    """A reader that knows nothing but the page reads every vector whose codec its language has.

    And a program that knows nothing else makes the vectors of encrypted payloads.
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js 18 or later: put `node` on PATH")

    def printed(*command: str) -> str:
        return subprocess.run([node or "", *command], capture_output=True, text=True, check=True, timeout=60).stdout

    read = 0
    for vectors in VECTORS:
        check = str(ROOT / "tests" / "vectors" / "check.mjs")
        summary = json.loads(printed(check, str(vectors), str(tmp_path / vectors.stem)))
        assert summary["failed"] == []
        assert all(re.match("snappy|lz4|zstd", name) for name in summary["skipped"])
        read += summary["read"] + len(summary["skipped"])
    assert read == len(cases()) > 100
    (file,) = (each for each in VECTORS if each.stem == "encryption")
    assert printed(str(file.with_name("Encryption.mjs"))) == file.read_text(encoding="utf-8")
