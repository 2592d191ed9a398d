"""The Python of the pages as modules for mypy."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from docs.python_blocks import PAGES, module_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = """# A page

```python
value: str | None = None
```

* In a list:

  ```python
  async def read() -> int:
      return 1

  value = await read()
  ```

```sh
make types
```

```pycon
>>> print(value + 1,
...       spark.version)
2 4.0
```
"""


def test_lines_are_those_of_the_page() -> None:
    """A line of a block is the same line of the module; what is no Python is an empty line; blocks are nested."""
    module = module_of(PAGE)
    assert module is not None
    lines, page = module.splitlines(), PAGE.splitlines()
    assert lines[0].startswith("from docs.readers_program import Order, common,")
    code = {number: line.strip() for number, line in enumerate(lines) if line and "block_" not in line and number}
    assert code == {number: page[number].strip() for number in (3, 9, 10, 12)} | {
        20: "print(value + 1,",
        21: "spark.version)",
    }
    assert [line for line in lines if "block_" in line] == [
        "async def block_3() -> None:",
        "    async def block_9() -> None:",
        "        async def block_20() -> None:",
    ]
    assert module_of("# A page\n\n```sh\nmake types\n```\n") is None


def test_wrong_type_is_found(tmp_path: Path) -> None:
    """The module of each page compiles, and mypy --strict finds what is wrong in a block, in the line of the page."""
    found = [(path, module) for path in PAGES if (module := module_of(path.read_text(encoding="utf-8")))]
    assert len(found) > 5
    for path, module in found:
        compile(module, str(path), "exec")
    text = module_of("# A page\n\n```python\n1 + None\n```\n")
    assert text is not None
    (tmp_path / "page.py").write_text(
        text.removeprefix(text.splitlines()[0]), encoding="utf-8"
    )  # no reader's own names
    # A process of its own: in this one, mypy would change the garbage collector for the tests behind.
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", "--config-file", "", "page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "page.py:4: error: Unsupported operand types" in done.stdout, done.stderr


def test_types_are_checked_by_make() -> None:
    """`make types` has the examples and the pages: nothing of `docs/` is left out."""
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert "docs" in mypy["files"]
    assert "exclude" not in mypy
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ntypes:")[2].splitlines()[1]
    assert "-m docs.python_blocks build/blocks" in recipe
    assert recipe.endswith("$(CHECKED) build/blocks")
