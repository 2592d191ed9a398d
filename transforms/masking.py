"""Texts of foreign code, without the secrets in them: an error may name the URL that failed, with all that is in it."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
LEAST_SECRET = 6
"""Characters of the shortest secret that is looked for. To hide a shorter one would hide half of each text."""

# User and password before the host, the signatures of Amazon, Google and Azure, and the Base64 of HTTP Basic, which is
# longer than a word that follows "Basic".
_SECRET = re.compile(
    r"(?<=://)[^/?#\s@]*:[^/?#\s@]*(?=@)"
    r"|(?<=[?&])(?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|Signature|sig|token)=[^&\s'\"]*"
    r"|(?<=\bBasic )[A-Za-z0-9+/]{20,}=*",
    re.IGNORECASE,
)


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with `***` in the place of what looks like a secret.

    Args:
        text: any text, not shortened: half of a secret looks like none.
        secrets: to be hidden wherever they stand; those of less than `LEAST_SECRET` characters are not.
    """
    for secret in sorted(secrets, key=len, reverse=True):  # one may be the beginning of another
        if len(secret) >= LEAST_SECRET:
            text = text.replace(secret, HIDDEN)
    return _SECRET.sub(HIDDEN, text)
