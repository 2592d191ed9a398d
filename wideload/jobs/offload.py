"""Large values of a DataFrame as references."""

from __future__ import annotations

from jobs.offload import offload

__all__ = ["offload"]
