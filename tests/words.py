"""Words that are not used here, and the field's words in their place: `python -m tests.words [PATH …]` shows them.

`WORDS` is the table. It is about what people read: the pages, and docstrings, comments and texts of the code. What
stands in backticks or in a block of code is a name or an output, and is not looked at, nor is the name of an argument.
`RIGHT` has the few places
where such a word is right.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_CODE = ("app", "jobs", "package", "stores", "transforms", "wideload")
_TEXTS = ("docs", ".github", "deploy")

# What is not written: what is written in its place. `CONTRIBUTING.md` has the terms.
WORDS: Mapping[str, str] = {
    # habits
    r"anew": "again, re-",
    r"told|tells?|telling": "report, log, show",
    r"whoever": "anyone who",
    r"(?<=[.:;] )who\b(?! \w+[^.]*\?)": "anyone who",
    r"undone|undo(?:es)?": "decompress, restore",
    r"mend(?:s|ed|ing)?": "fix",
    r"by now": "now, already",
    r"all the same": "still, nevertheless",
    r"meanwhile": "in the meantime; while …",
    r"beside": "next to, in addition to, compared with",
    r"(?<!there )(?:is|are|was|were) no (?!longer|more|less|different|matter)": "is not a",
    r"beg(?:ins?|ans?|un) again|new beginnings?|beginning again": "restart",
    r"of (?:its|your|their|one's|his) own": "custom, separate",
    r"at once": "immediately; simultaneously",
    r"(?:go|goes|went|going) on": "continue, resume",
    r"takes? in (?:that|what|a|the)": "record, note",
    r"lets? go of": "release",
    r"makes? do": "use",
    r"at hand": "available",
    r"for ever": "forever",
    # terms
    r"(?<!dead )(?<!dead-)\bletters?\b(?! (?:and|or) digits)": "dead-letter record",
    r"folders?": "directory",
    r"(?<!--)carriers?": "referencing topic",
    r"grace": "minimum age",
    r"stages?": "transform",
    r"rights": "permission",
    r"(?<!--)(?<!Kafka )(?<!file )sinks?\b": "output topic",
    r"promis(?:e|es|ed|ing)": "guarantee",
    r"the seeds?|the document": "KIP-…, with a link",
    r"taken apart|takes? apart|taking apart": "decoded",
}
PATTERNS = {text: re.compile(rf"\b(?:{text})\b" if text[0] != "(" else rf"(?:{text})", re.IGNORECASE) for text in WORDS}

# Path, and the line's text: the few places where one of the words is right.
RIGHT: Mapping[str, tuple[str, ...]] = {
    "app/kafka/queries.py": ("repartition_sinks",),  # a field of a request
    "app/payloads/sweep.py": ("--allow-short-grace",),
    "app/payloads/sweep_command.py": ("within --grace",),
}


def found(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, word of the table, and text of each place in a file."""
    name = path.relative_to(ROOT).as_posix()
    for line, text in prose(path):
        for word, pattern in PATTERNS.items():
            if pattern.search(text) and not any(each in text for each in RIGHT.get(name, ())):
                yield line, word, text.strip()


def files() -> list[Path]:
    """All files that people read, but generated ones and those of the tests."""
    pages = [*ROOT.glob("*.md"), *(path for folder in _TEXTS for path in (ROOT / folder).rglob("*.md"))]
    code = [path for folder in (*_CODE, "docs") for path in (ROOT / folder).rglob("*.py")]
    return sorted([*pages, *code])


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that are sentences, with their numbers, without what is in backticks."""
    text = path.read_text(encoding="utf-8")
    lines = _sentences(text) if path.suffix == ".py" else _outside_blocks(text)
    for number, line in lines:
        yield number, re.sub(r"`[^`]*`|https?://\S+|\]\([^)]*\)|^ +\w+: ", "`", line)


def _outside_blocks(text: str) -> Iterator[tuple[int, str]]:
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r" *(?:```|~~~)", line):
            inside = not inside
        elif not inside:
            yield number, line


def _sentences(source: str) -> Iterator[tuple[int, str]]:
    """Docstrings, comments, and each text with a space, which is a message or a part of one."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from enumerate(node.value.splitlines(), node.lineno)


def main(paths: list[str]) -> int:
    """Prints the places, and how many there are of each word."""
    counts = Counter[str]()
    for path in [ROOT / each for each in paths] if paths else files():
        inside = [path] if path.is_file() else [each for each in files() if each.is_relative_to(path)]
        for each in inside:
            for line, word, text in sorted(found(each)):
                counts[word] += 1
                print(f"{each.relative_to(ROOT)}:{line}: {word}: {text[:150]}")
    for word, count in counts.most_common():
        print(f"{count:5} {word}  ->  {WORDS[word]}")
    print(f"{counts.total():5} in all")
    return int(bool(counts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
