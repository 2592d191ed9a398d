"""Message wrappers: the format, and the table of their headers."""

from __future__ import annotations

from transforms.wrapper import (
    MAX_HEADERS,
    OWN_KEYS,
    UNMAPPED_PREFIX,
    HeaderTable,
    KeyRange,
    MessageWrapper,
    Unwrap,
    Wrap,
)

__all__ = ["MAX_HEADERS", "OWN_KEYS", "UNMAPPED_PREFIX", "HeaderTable", "KeyRange", "MessageWrapper", "Unwrap", "Wrap"]
