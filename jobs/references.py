"""References in a DataFrame, for programs of one's own; see `jobs.payloads.references`."""

from __future__ import annotations

from jobs.payloads.references import REFERENCE, newest, references

__all__ = ["REFERENCE", "newest", "references"]
