"""The Python of the pages as modules, so that `make types` checks what readers copy.

    python -m docs.python_blocks DIRECTORY

Line 17 of a module is line 17 of its page. A block is a coroutine inside that of the previous block: it may use what
that one defined, redefine a name, and await.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from docs import readers_program

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^\n`]*)$")
_HEAD = f"from docs.readers_program import {', '.join(readers_program.__all__)}"


def module_of(page: str) -> str | None:
    """The module of a page; None if the page has no Python."""
    lines: list[str] = []
    depth, indent, session = 0, None, False
    for line in page.splitlines():
        fence = _FENCE.match(line)
        if fence and indent is not None:
            indent = None
        elif fence and fence["language"].strip() in {"python", "pycon"}:
            indent, session = fence["indent"], "pycon" in fence["language"]
            lines.append(f"{_margin(depth)}async def block_{len(lines) + 1}() -> None:")
            depth += 1
            continue
        elif indent is not None:
            code = line.removeprefix(indent)
            if session:
                code = code[4:] if code.startswith((">>> ", "... ")) else ""  # the rest is output
            lines.append(f"{_margin(depth)}{code}" if code.strip() else "")
            continue
        lines.append("")
    if not depth:
        return None
    lines[0] = _HEAD  # the title of the page
    return "\n".join(lines) + "\n"


def _margin(depth: int) -> str:
    return "    " * depth


def modules() -> Iterator[tuple[str, str]]:
    """The name of each module, and its text."""
    for page in PAGES:
        text = module_of(page.read_text(encoding="utf-8"))
        if text is not None:
            yield f"{page.stem.lower().replace('-', '_')}.py", text


def main(folder: Path) -> None:
    """Writes the modules, and removes what was there."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.py"):
        path.unlink()
    for name, text in modules():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
