"""Who gets the page, and who gets JSON."""

from __future__ import annotations

import pytest

from app.web.accept import prefers_html

CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (CHROME, True),
        ("text/html", True),
        ("TEXT/HTML", True),
        ("text/html ; q=0.9 , application/json;q=0.8", True),
        ("text/*, application/json;q=0.5", True),
        ("application/json;q=0, */*", True),
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/json, text/html", False),
        ("text/html;q=0.8, application/json", False),
        ("text/html;q=0", False),
        ("text/html;q=nan, application/json;q=0.1", False),
        ("text/html;q=9, application/json;q=0.1", False),
        ("text/plain", False),
        (";,q=1,,/", False),
    ],
)
def test_html_for_those_who_prefer_it(accept: str, expected: bool) -> None:  # noqa: FBT001
    """Browsers rank text/html above JSON; curl and Connect's clients do not. What is malformed ranks nothing."""
    assert prefers_html(accept) is expected
