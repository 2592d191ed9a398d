"""A user's own class as a store: adds missing methods, and translates its errors.

The class needs `publish` and `download`, and nothing of this project. `configure`, `id` and `close` are called if it
has them. The optional capabilities (`stores.store.Put`, `Get`, `Stat`, `Delete`, `DeleteUnchanged`, `List`,
`ListTopics`, `Check`, `Lifecycle`) are used only if the class inherits from that protocol, since a method that happens
to be called `get` may do something else.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar, cast

from stores.calls import Calls, HangingError
from stores.encryption import ENCRYPTION_KEYS
from stores.keys import Key, misspelt, read
from stores.store import (
    COMMON_KEYS,
    SIGNING_KEYS,
    Check,
    Delete,
    DeleteUnchanged,
    Get,
    Lifecycle,
    List,
    ListTopics,
    PayloadInfo,
    Put,
    Stat,
    Store,
)
from transforms.errors import ConfigurationError, PayloadStoreError, PayloadTooLargeError, WideloadError
from transforms.keyring import TAG_BYTES
from transforms.masking import masked

_REQUIRED = ("publish", "download")
_NOT_THEIRS = {key.name for key in (*SIGNING_KEYS, *ENCRYPTION_KEYS)}


def missing_methods(cls: type) -> Sequence[str]:
    """The methods required by `PayloadStore` that `cls` lacks."""
    return [name for name in _REQUIRED if not callable(getattr(cls, name, None))]


_T = TypeVar("_T")


def named_keys(cls: type) -> Sequence[str]:
    """The names in the attribute `KEYS` of a user's class, if it has one."""
    return [key.name if isinstance(key, Key) else str(key) for key in getattr(cls, "KEYS", ())]


class UserStore:
    """A `PayloadStore` around an instance of a user's class.

    Errors of this project pass unchanged. `TimeoutError` and `ConnectionError` become a `PayloadStoreError` that may be
    retried, all others one that may not. A payload over `large.message.max.bytes` is refused after the download.
    """

    def __init__(self, inner: object, name: str, *, bounded: bool) -> None:
        """Wraps `inner`, an instance of the class `name` in the configuration. See `wrap`."""
        self._inner = inner
        self._name = name
        self._calls = Calls() if bounded else None
        self._timeout_ms = 0
        self._max_bytes = 0
        self._by_digest = True

    @classmethod
    def wrap(cls, inner: object, name: str, *, bounded: bool = False) -> UserStore:
        """A store with exactly the capabilities that the class of `inner` inherits; see `registry.open_store`."""
        offered = [methods for protocol, methods in _CAPABILITIES.items() if protocol in type(inner).__mro__]
        made: type[UserStore] = type("UserStore", (cls,), {key: of[key] for of in offered for key in of})
        return made(inner, name, bounded=bounded)

    def configure(self, config: Mapping[str, object]) -> None:
        """See `PayloadStore.configure`. The instance gets all of `config` but the keys of signatures and encryption.

        Raises:
            ConfigurationError: a value is wrong, a key is a misspelt one of ours, or the class refuses them.
        """
        ours, theirs = [key.name for key in COMMON_KEYS], named_keys(type(self._inner))
        for name in config:
            if name not in theirs and (error := misspelt(name, ours)) is not None:
                raise error
        values = read(COMMON_KEYS, config)
        max_bytes = values["large.message.max.bytes"]
        assert isinstance(max_bytes, int)
        # The tag of an encrypted payload is added; the exact size is compared where the reference is (`registry.get`).
        encrypted = any(key.name in config for key in ENCRYPTION_KEYS)
        self._max_bytes = max_bytes + (TAG_BYTES if encrypted else 0)
        self._by_digest = values["large.message.id.generator"] == "sha256"
        self._timeout_ms = cast("int", values["large.message.store.timeout.ms"])
        if hasattr(self._inner, "configure"):
            try:
                self._inner.configure({key: value for key, value in config.items() if key not in _NOT_THEIRS})
            except WideloadError:
                raise
            except Exception as exc:
                raise ConfigurationError(
                    "large.message.payload.store.class", f"{self._name}.configure raised {_named(exc)}"
                ) from exc

    def publish(self, topic: str, data: bytes) -> str:
        """See `PayloadStore.publish`. A class with `put` and its own `id` gets its own names."""
        if self.has_own_ids and isinstance(self, Put):
            return self.put(topic, self.id(data), data)
        return _typed(self._call("publish", topic, data), str, f"{self._name}.publish")

    def download(self, full_path: str) -> bytes:
        data = _typed(self._call("download", full_path), bytes, f"{self._name}.download")
        if len(data) > self._max_bytes:
            raise PayloadTooLargeError(full_path, len(data), self._max_bytes)
        return data

    def id(self, data: bytes) -> str:
        """See `PayloadStore.id`; by `large.message.id.generator` if the class has no such method."""
        if hasattr(self._inner, "id"):
            return _typed(self._call("id", data), str, f"{self._name}.id")
        return hashlib.sha256(data).hexdigest() if self._by_digest else str(uuid.uuid4())

    @property
    def has_own_ids(self) -> bool:
        """Whether the class has its own `id`, so that `large.message.id.generator` has no effect."""
        return getattr(type(self._inner), "id", Store.id) is not Store.id

    def close(self) -> None:
        if hasattr(self._inner, "close"):
            self._call("close")

    def _call(self, method: str, *arguments: object, **named: object) -> object:
        with self._translated(method):
            call = partial(getattr(self._inner, method), *arguments, **named)
            return call() if self._calls is None else self._calls.within(self._timeout_ms, call)

    @contextlib.contextmanager
    def _translated(self, method: str) -> Iterator[None]:
        try:
            yield
        except WideloadError:
            raise
        except Exception as exc:
            may_pass = isinstance(exc, (TimeoutError, ConnectionError))
            if isinstance(exc, HangingError):
                raise PayloadStoreError(f"{self._name}.{method} {exc}", retriable=True) from exc
            raise PayloadStoreError(f"{self._name}.{method} raised {_named(exc)}", retriable=may_pass) from exc


def _method(name: str, kind: type[object] | None = None) -> Callable[..., object]:
    """A method that calls the same one of the instance and checks that the result is a `kind`."""

    def call(self: UserStore, *arguments: object, **named: object) -> object:
        value = self._call(name, *arguments, **named)
        return value if kind is None else _typed(value, kind, f"{self._name}.{name}")

    return call


def _generator(name: str) -> Callable[..., Iterator[object]]:
    """As `_method`, for an iterator."""

    def iterate(self: UserStore, *arguments: object) -> Iterator[object]:
        with self._translated(name):
            yield from getattr(self._inner, name)(*arguments)

    return iterate


def _expiry_rules(self: UserStore, topic: str) -> object:
    return list(_generator("expiry_rules")(self, topic))


_CAPABILITIES: Mapping[type, Mapping[str, Callable[..., object]]] = {
    Put: {"put": _method("put", str)},
    Get: {"get": _method("get", bytes)},
    Stat: {"stat": _method("stat", PayloadInfo)},
    Delete: {"delete": _method("delete")},
    DeleteUnchanged: {"delete_unchanged": _generator("delete_unchanged")},
    List: {"list": _generator("list")},
    ListTopics: {"topics": _generator("topics")},
    Check: {"check": _method("check")},
    Lifecycle: {"expiry_rules": _expiry_rules, "set_expiry": _method("set_expiry", bool)},
}


def _typed(value: object, kind: type[_T], what: str) -> _T:
    if isinstance(value, kind):
        return value
    raise PayloadStoreError(f"{what} returned {type(value).__name__}, it must return {kind.__name__}")


def _named(exc: Exception) -> str:
    return f"{type(exc).__name__}: {masked(str(exc))}"
