"""The interfaces of payload stores, for a custom store, and `open_store` for the store of a configuration."""

from __future__ import annotations

from stores.encryption import ENCRYPTION_KEYS
from stores.keys import REQUIRED, Key, Value
from stores.registry import STORE_CLASS, STORE_NAMES, open_store
from stores.store import (
    COMMON_KEYS,
    SIGNING_KEYS,
    Check,
    Delete,
    DeleteUnchanged,
    ExpiryRule,
    Get,
    Lifecycle,
    List,
    ListTopics,
    PayloadInfo,
    PayloadStore,
    Put,
    Removal,
    RemovalOutcome,
    Stat,
    Store,
    check_object_id,
    check_topic,
)

__all__ = [
    "COMMON_KEYS",
    "ENCRYPTION_KEYS",
    "REQUIRED",
    "SIGNING_KEYS",
    "STORE_CLASS",
    "STORE_NAMES",
    "Check",
    "Delete",
    "DeleteUnchanged",
    "ExpiryRule",
    "Get",
    "Key",
    "Lifecycle",
    "List",
    "ListTopics",
    "PayloadInfo",
    "PayloadStore",
    "Put",
    "Removal",
    "RemovalOutcome",
    "Stat",
    "Store",
    "Value",
    "check_object_id",
    "check_topic",
    "open_store",
]
