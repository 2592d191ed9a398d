"""The table of docs/lifecycle.md: it says what the code recommends and accepts."""

from __future__ import annotations

import re
from pathlib import Path

from transforms.retention import ExpiryRule, Retention

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md"
DAY_MS = 86_400_000
LONGEST_DAYS = 500


def accepted(retention: Retention) -> list[int]:
    """The ages in days of a rule for all payloads that is neither too early nor later than needed."""
    rules = {days: ExpiryRule("", days, None, True, False, False, "") for days in range(1, LONGEST_DAYS)}
    return [days for days, rule in rules.items() if retention.judge([rule]).state == "ok"]


def test_recommended_times() -> None:
    """Each row has the recommended time, and the shortest and longest that are ok."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- ttl -->")
    table, _, _ = rest.partition("<!-- /ttl -->")
    rows = re.findall(r"^\| (\d+) d \| (\d+) d[^|]* \| (\d+) d \| (\d+) to (\d+) d \|$", table, re.MULTILINE)
    assert len(rows) == table.count("\n| ") - 2, "a row has another form"
    for row in rows:
        days, segment_days, recommended, shortest, longest = map(int, row)
        retention = Retention("orders", days * DAY_MS, "delete", segment_days * DAY_MS)
        assert (retention.recommended_days, accepted(retention)) == (recommended, [*range(shortest, longest + 1)]), row
