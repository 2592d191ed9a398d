"""Payloads in Azure Blob Storage; needs obstore and requests."""

from __future__ import annotations

from stores.azure import AzureStore

__all__ = ["AzureStore"]
