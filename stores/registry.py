"""Stores by name: the built-in ones, and a user's own class by its dotted path."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from stores.dotted import parts, resolve
from stores.keys import Key
from stores.store import Check, Get, PayloadStore, Put, Store
from stores.user import UserStore, missing_methods
from stores.user import named_keys as user_keys
from transforms.errors import ConfigurationError, PayloadTooLargeError

STORE_CLASS = "large.message.payload.store.class"

# By path: a module is imported when needed, because boto3 takes a third of a second and may not be installed.
_BUILT_IN: Mapping[str, str] = {
    "azure": f"{__package__}.azure:AzureStore",
    "filesystem": f"{__package__}.filesystem:FilesystemStore",
    "gcs": f"{__package__}.gcs:GcsStore",
    "memory": f"{__package__}.memory:MemoryStore",
    "s3": f"{__package__}.s3:S3Store",
}
STORE_NAMES: Sequence[str] = tuple(_BUILT_IN)


def open_store(config: Mapping[str, object], *, bounded: bool = False) -> PayloadStore:
    """The store that `large.message.payload.store.class` names, configured with all other properties. Sends no request.

    A configuration that was not read from a file may contain the class itself.

    Args:
        config: the keys.
        bounded: whether a call of a user's class ends after `large.message.store.timeout.ms`, even if the class hangs.
            Built-in stores end by themselves.

    Raises:
        ConfigurationError: there is no such class, it is not a store, or its properties are wrong.
    """
    rest = dict(config)
    name = rest.pop(STORE_CLASS, None)
    if isinstance(name, type):
        cls, name = name, f"{name.__module__}.{name.__qualname__}"
        _check_methods(cls, name)
    elif isinstance(name, str):
        cls = _class(name)
    else:
        found = "is missing" if name is None else f"found {name!r}"
        raise ConfigurationError(STORE_CLASS, f"{found}; {_allowed()}")
    built_in = name in _BUILT_IN and issubclass(cls, Store)
    store: PayloadStore = cls() if built_in else UserStore.wrap(_instance(cls, name), name, bounded=bounded)
    store.configure(rest)
    return store


def store_keys(name: str | type) -> Sequence[Key] | None:
    """The keys of a built-in store, without the keys of all stores (`stores.store.COMMON_KEYS`).

    None for a user's class, which takes any key; see `named_keys`.

    Raises:
        ConfigurationError: there is no such store, or a package that it needs is not installed.
    """
    if isinstance(name, type) or (name not in _BUILT_IN and parts(name) is not None):
        return None
    cls = _class(name)
    assert issubclass(cls, Store)
    return cls.KEYS


def named_keys(name: str | type) -> Sequence[str]:
    """The names of a store's keys; of a user's class, the names in its attribute `KEYS`, if it has one.

    Raises:
        ConfigurationError: there is no such store.
    """
    keys = store_keys(name)
    if keys is None:
        return user_keys(name if isinstance(name, type) else _class(name))
    return [key.name for key in keys]


def check(store: PayloadStore, topic: str, *, writing: bool) -> bool:
    """Checks a store for payloads of a topic, see `Check.check`; False if it cannot be checked.

    Raises:
        PayloadStoreError: it cannot be used.
    """
    if isinstance(store, Store):
        store.check(writing=writing, topic=topic)
    elif isinstance(store, Check):
        store.check(writing=writing)
    else:
        return False
    return True


def put(store: PayloadStore, topic: str, object_id: str, data: bytes) -> str:
    """Publishes `data` under `object_id` if the store lets the caller choose, else under the store's own `id`.

    Raises:
        PayloadStoreError: see `PayloadStore.publish`.
    """
    return store.put(topic, object_id, data) if isinstance(store, Put) else store.publish(topic, data)


def get(store: PayloadStore, full_path: str, max_bytes: int) -> bytes:
    """The payload at `full_path`. A larger one is refused before it is read if the store can do so, else afterwards.

    Raises:
        PayloadTooLargeError: there is more than `max_bytes`.
        PayloadStoreError: see `PayloadStore.download`.
    """
    if isinstance(store, Get):
        return store.get(full_path, max_bytes)
    data = store.download(full_path)
    if len(data) > max_bytes:
        raise PayloadTooLargeError(full_path, len(data), max_bytes)
    return data


def _allowed() -> str:
    return f"allowed are {', '.join(STORE_NAMES)}, or a class as package.module.Class"


def _class(name: str) -> type:
    path = parts(_BUILT_IN.get(name, name))
    if path is None:
        near = difflib.get_close_matches(name, STORE_NAMES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigurationError(STORE_CLASS, f"found {name!r}, {_allowed()}{hint}")
    found = resolve(STORE_CLASS, name, path)
    if not isinstance(found, type):
        raise ConfigurationError(STORE_CLASS, f"found {name!r}, which is not a class but a {type(found).__name__}")
    _check_methods(found, name)
    return found


def _check_methods(cls: type, name: str) -> None:
    missing = missing_methods(cls)
    if missing:
        raise ConfigurationError(
            STORE_CLASS, f"found {name!r}, which lacks {' and '.join(missing)}; see wideload.PayloadStore"
        )


def _instance(cls: type, name: str) -> object:
    try:
        return cls()
    except Exception as exc:
        raise ConfigurationError(
            STORE_CLASS, f"{name} cannot be instantiated without arguments ({type(exc).__name__}: {exc})"
        ) from exc
