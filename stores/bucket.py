"""What the bucket stores share: `stores.s3`, `stores.gcs` and `stores.azure`.

A path is `SCHEME://CONTAINER/PREFIX/TOPIC/ID`. A put in one request is atomic and durable when it returns, and
every later read sees it.
"""

from __future__ import annotations

import re
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, cast

from stores.keys import Value
from stores.root import Root, check_object_id, check_prefix
from stores.store import PayloadInfo, Store
from transforms.errors import ConfigurationError, PayloadStoreError

PROBE = b"A probe of Wideload. It may be deleted."
"""What a check puts."""


class KeptError(PayloadStoreError):
    """The store temporarily neither replaces nor removes the payload of this name.

    So it is under a retention policy, a hold, or Object Lock without versions.
    """


class BucketStore(Store):
    """Payloads as objects of a bucket or a container, below a prefix."""

    SCHEME: ClassVar[str]
    """Of the paths."""

    START: ClassVar[str]
    """The first word of the keys."""

    CONTAINER: ClassVar[str]
    """The last word of the key for the bucket."""

    CONTAINER_NAME: ClassVar[re.Pattern[str]]
    """The names that it may have, and …"""

    CONTAINER_ALLOWED: ClassVar[str]
    """… what they are, in words."""

    def open(self, values: Mapping[str, Value | None]) -> None:
        """See `Store.open`."""
        name = self._container = cast("str", values[f"{self.START}.{self.CONTAINER}"])
        if not self.CONTAINER_NAME.fullmatch(name):
            raise ConfigurationError(
                f"{self.START}.{self.CONTAINER}",
                f"found {name!r}, allowed is a {self.CONTAINER}'s name: {self.CONTAINER_ALLOWED}",
            )
        prefix = check_prefix(f"{self.START}.prefix", cast("str", values[f"{self.START}.prefix"]))
        self._container_uri = f"{self.SCHEME}://{name}/"
        self.root = Root(f"{self._container_uri}{prefix}/" if prefix else self._container_uri)
        self._threads = cast("int", values[f"{self.START}.max.connections"])
        self.connect(values)

    @abstractmethod
    def connect(self, values: Mapping[str, Value | None]) -> None:
        """Makes the client.

        Raises:
            ConfigurationError: the keys contradict each other, or a package is not installed.
        """

    @abstractmethod
    def put_object(self, path: str, data: bytes) -> object:
        """Stores at any path.

        Raises:
            KeptError: there is a payload that must not be replaced.
            PayloadStoreError: the request failed.
        """

    @abstractmethod
    def found_below(self, prefix: str) -> Iterator[Iterable[PayloadInfo]]:
        """Every object whose name begins with `prefix`, page by page; see `List.list` for errors."""

    @abstractmethod
    def folders_below(self, prefix: str) -> Iterator[str]:
        """The beginning of names up to the first slash behind `prefix`, with the slash, each once."""

    def put(self, topic: str, object_id: str, data: bytes) -> str:
        """See `Store.put`.

        A payload that is published again has to be as young as its newest reference. If the bucket keeps the older one
        as it is, the payload gets another name, of 32 random digits behind as much of the id as there is room for.
        """
        path = self.root.path(topic, object_id)
        try:
            self.put_object(path, data)
        except KeptError:
            path = self.root.path(topic, f"{object_id[:200]}-{uuid.uuid4().hex}")
            self.put_object(path, data)
        return path

    def topics(self) -> Iterator[str]:
        """See `ListTopics.topics`."""
        for folder in self.folders_below(self._key(self.root.uri)):
            if self.root.holds(f"{self._container_uri}{folder}any"):
                yield folder.removesuffix("/").rpartition("/")[2]

    def list(self, topic: str | None = None) -> Iterator[PayloadInfo]:
        """See `List.list`; a request for every 1,000 objects, or 5,000 in Azure."""
        start = self.root.uri if topic is None else f"{self.root.uri}{check_object_id(topic)}/"
        for page in self.found_below(self._key(start)):
            yield from (info for info in page if self.root.holds(info.path))

    def _checked(self, payload: PayloadInfo) -> PayloadInfo:
        """A payload that is to be removed: of this store, and none of bakdata's own."""
        self.root.split(payload.path)
        return payload

    def _key(self, path: str) -> str:
        return path[len(self._container_uri) :]
