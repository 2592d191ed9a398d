"""The table of what was run with other versions."""

from __future__ import annotations

from docs import tried_page
from tests.matrix.result import Result


def test_table_has_each_cell_with_its_reasons() -> None:
    """A row has what ran, the counts and the date; reasons stand below, also where nothing ran. No text is markup."""
    found = tried_page.table(
        [
            Result("kafka-2.8", "2026-11-26", {"Kafka": "2.8.2"}, 1_200, ["a::b: <c> | d\ne"], {"needs Kafka 4": 3}),
            Result("kfake", "2026-11-25", missing="Go is not installed"),
            Result("lowest", "2026-11-24", error="`uv` failed"),
        ]
    )
    assert found.splitlines()[2:] == [
        "| `kafka-2.8` | Kafka 2.8.2 | 1,200 | 1 | 3 | 2026-11-26 |",
        "| `kfake` | nothing |  |  |  | 2026-11-25 |",
        "| `lowest` | nothing |  |  |  | 2026-11-24 |",
        "",
        r"- `kafka-2.8`, failed: a::b: \<c\> \| d e",
        "- `kafka-2.8`, skipped, 3: needs Kafka 4",
        "- `kfake`, not run: Go is not installed",
        r"- `lowest`, failed: \`uv\` failed",
    ]


def test_page_keeps_what_is_written_by_hand() -> None:
    """Only what stands between the marks is made."""
    text = "before\n<!-- matrix -->\nold\n<!-- /matrix -->\nbehind\n"
    found = tried_page.page(text)
    assert found.startswith("before\n<!-- matrix -->\n| cell |")
    assert found.endswith("<!-- /matrix -->\nbehind\n")
    assert "old" not in found
