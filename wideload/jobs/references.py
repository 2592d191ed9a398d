"""References in a DataFrame, for custom programs."""

from __future__ import annotations

from jobs.references import REFERENCE, newest, references

__all__ = ["REFERENCE", "newest", "references"]
