"""The app for Faust's own command: `WIDELOAD_CONFIG=wideload.toml faust -A wideload.worker worker`.

`app` is created at its first use, not at import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app import worker as _worker
from app.worker import CONFIG_VARIABLE

if TYPE_CHECKING:
    from app.worker import app

__all__ = ["CONFIG_VARIABLE", "app"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name != "app":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _worker.app
