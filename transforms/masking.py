"""Removes secrets from texts of other libraries: an error may contain the whole URL that failed."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
LEAST_SECRET = 6
"""The length of the shortest secret that is hidden. Hiding shorter ones would hide half of every text."""

# User and password before the host, the signatures of Amazon, Google and Azure, and the Base64 of HTTP Basic, which is
# longer than any word after "Basic".
_SECRET = re.compile(
    r"(?<=://)[^/?#\s@]*:[^/?#\s@]*(?=@)"
    r"|(?<=[?&])(?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|Signature|sig|token)=[^&\s'\"]*"
    r"|(?<=\bBasic )[A-Za-z0-9+/]{20,}=*",
    re.IGNORECASE,
)


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with `***` in place of everything that looks like a secret.

    Args:
        text: any text, not shortened: half of a secret would not be recognised.
        secrets: to be hidden wherever they occur; those of less than `LEAST_SECRET` characters are not.
    """
    for secret in sorted(secrets, key=len, reverse=True):  # one may be the beginning of another
        if len(secret) >= LEAST_SECRET:
            text = text.replace(secret, HIDDEN)
    return _SECRET.sub(HIDDEN, text)
