"""The table of `tests/words.py`: pages and code use the field's words, and each exception is still needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.words import PATTERNS, RIGHT, ROOT, WORDS, files, found, main, prose


def test_pages_and_code_use_the_words_of_the_field() -> None:
    """No word of the table is in a page, a docstring, a comment or a message."""
    places = [
        f"{path.relative_to(ROOT)}:{line}: {word} -> {WORDS[word]}: {text}"
        for path in files()
        for line, word, text in found(path)
    ]
    assert places == [], "\n".join(["", *places])


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in RIGHT.items() for text in texts])
def test_each_exception_is_used(name: str, text: str) -> None:
    """Its line is there, and has a word of the table."""
    lines = [line for _, line in prose(ROOT / name) if text in line]
    assert any(pattern.search(line) for line in lines for pattern in PATTERNS.values()), (name, text)


def test_words_are_found_in_prose_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In sentences of a page, and in docstrings, comments and texts of code; not in names, code blocks and links."""
    monkeypatch.setattr("tests.words.ROOT", tmp_path)
    page, module = tmp_path / "page.md", tmp_path / "module.py"
    page.write_text("Read anew.\n`anew`, [that](anew.md)\n```\nanew\n```\nGrace.\n")
    module.write_text('"""Told once."""\nanew = 1  # by now\nsaid = "in the folder"\nname = "folder"\n')
    assert [(line, word) for line, word, _ in found(page)] == [(1, "anew"), (6, "grace")]
    assert sorted(line for line, _, _ in found(module)) == [1, 2, 3]


def test_command_shows_places_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Its status is 0 where nothing is found."""
    assert main(["docs/python_blocks.py"]) == 0
    assert capsys.readouterr().out.splitlines() == ["    0 in all"]
