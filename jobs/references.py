"""References in a DataFrame, for the user's own programs; `jobs.payloads.references` describes them."""

from __future__ import annotations

from jobs.payloads.references import REFERENCE, newest, references

__all__ = ["REFERENCE", "newest", "references"]
