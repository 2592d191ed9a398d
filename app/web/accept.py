"""What a client would rather have: HTML or JSON."""

from __future__ import annotations

import re

_QUALITY = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)


def prefers_html(accept: str) -> bool:
    """Whether this `Accept` (RFC 9110, section 12.5.1) ranks text/html above application/json.

    Browsers do. `*/*`, which curl sends, does not; nor does no header at all.
    """
    return _rank(accept, "text", "html") > _rank(accept, "application", "json")


def _rank(accept: str, kind: str, subtype: str) -> float:
    """The quality of a media type: that of the range that fits it best."""
    best, quality = 0, 0.0
    for part in accept.lower().split(","):
        media, *parameters = (each.strip() for each in part.split(";"))
        fit = {f"{kind}/{subtype}": 3, f"{kind}/*": 2, "*/*": 1}.get(media, 0)
        if fit > best:
            given = next((each for each in parameters if each.startswith("q=")), "q=1")
            found = _QUALITY.fullmatch(given)
            best, quality = fit, float(found[1]) if found else 0.0
    return quality
