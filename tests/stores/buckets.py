"""The stores of buckets, each on a server that a test makes up."""

from __future__ import annotations

import contextlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stores.azure import AzureStore
from stores.gcs import GcsStore
from stores.s3 import S3Store
from stores.store import Store

NAME = "orders", "an-id"
AZURE_KEY = b64encode(b"sesame" * 10).decode()
HEAD = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nx-goog-generation: 7\r\n'
"""Of an answer that any of them takes for that of an object; `Content-Length` comes behind it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A store, and the words of its service.

    Attributes:
        start: the first word of its keys.
        make: its class.
        uri: of its bucket.
        put, get: the requests, as messages name them.
        missing: the code for a payload that does not exist.
        blamed: what messages say of a server that is none of the service.
        keys: what it takes to be opened, besides the endpoint.
        path: of the endpoint.
    """

    start: str
    make: Callable[[], Store]
    uri: str
    put: str
    get: str
    missing: str
    blamed: str
    keys: Mapping[str, object]
    path: str = ""

    def config(self, endpoint: str, **more: object) -> dict[str, object]:
        """The keys of a store on this endpoint; `more` are keys without their first word, with `_` for each dot."""
        given = {"retry_attempts": 1, "connection_timeout_ms": 2_000, "read_timeout_ms": 5_000, **more}
        own = {f"{self.start}.{name.replace('_', '.')}": value for name, value in given.items()}
        timeout = own.pop(f"{self.start}.store.timeout.ms", 60_000)
        return {
            **self.keys, f"{self.start}.endpoint": endpoint + self.path, **own,
            "large.message.store.timeout.ms": timeout,
        }  # fmt: skip

    @contextlib.contextmanager
    def opened(self, endpoint: str, **more: object) -> Iterator[Any]:
        """Such a store."""
        store = self.make()
        store.configure(self.config(endpoint, **more))
        with contextlib.closing(store):
            yield store


KINDS = {
    kind.start: kind
    for kind in (
        Kind(
            "s3", S3Store, "s3://payloads/", "PutObject", "GetObject", "NoSuchKey", "not a response of an S3 server",
            {"s3.bucket": "payloads", "s3.access.key": "AKIASCRIPTED", "s3.secret.key": "the-secret-key"},
        ),
        Kind(
            "gcs", GcsStore, "gs://payloads/", "GCS put", "GCS get", "NoSuchKey", "not a response of GCS",
            {"gcs.bucket": "payloads", "gcs.anonymous": True},
        ),
        Kind(
            "azure", AzureStore, "abs://payloads/", "Azure put", "Azure get", "BlobNotFound",
            "not a response of Azure",
            {"azure.container": "payloads", "azure.account.name": "acme", "azure.account.key": AZURE_KEY},
            "/acme",
        ),
    )
}  # fmt: skip


def calls(store: Any) -> dict[str, Callable[[], object]]:
    """A call of each kind that has the server answer."""
    path = store.root.path(*NAME)
    return {
        "check": store.check,
        "put": lambda: store.put(*NAME, b"data"),
        "get": lambda: store.get(path, 100),
        "stat": lambda: store.stat(path),
        "delete": lambda: store.delete(path),
        "list": lambda: list(store.list()),
        "topics": lambda: list(store.topics()),
        **({"rules": lambda: store.expiry_rules("orders")} if not isinstance(store, AzureStore) else {}),
    }
