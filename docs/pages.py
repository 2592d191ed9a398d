"""The pages that are generated: `python -m docs.pages` (`make docs`) writes them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks import scale
from docs import commands_page, configuration_page, numbers_page, python_page, tried_page

_SCALE = Path(__file__).with_name("scale.md")

GENERATED: Mapping[Path, Callable[[], str]] = {
    configuration_page.PAGE: configuration_page.page,
    commands_page.PAGE: commands_page.page,
    python_page.PAGE: python_page.page,
    numbers_page.PAGE: numbers_page.page,
    numbers_page.README: numbers_page.readme,
    tried_page.PAGE: lambda: tried_page.page(tried_page.PAGE.read_text(encoding="utf-8")),
    _SCALE: lambda: scale.page(_SCALE.read_text(encoding="utf-8")),
}
"""By page: what its text is."""


def main() -> None:
    """Writes all pages."""
    for path, text in GENERATED.items():
        path.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
