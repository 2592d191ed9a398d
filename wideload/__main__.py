"""The command line: `wideload`, or `python -m wideload`."""

from __future__ import annotations

from app.entry import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
