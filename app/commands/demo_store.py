"""The payload store of the demo: its lines in the configuration, how much it holds, and its removal."""

from __future__ import annotations

import json
import re
import secrets
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from app.config.parsing import parse
from stores.registry import STORE_CLASS, open_store, store_keys
from stores.store import COMMON_KEYS, Delete, List
from transforms.errors import ConfigurationError
from transforms.text import is_utf8

NAMES = ("filesystem", "s3", "gcs", "azure")

_PIPELINE = """
[pipeline.check]
topics = ["in"]
output.topic = "out"
transforms = ["offload"]
"""
_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")  # one that TOML has without quotes


@dataclass(frozen=True, slots=True)
class DemoStore:
    """A separate place for the payloads of one run.

    Attributes:
        keys: the properties of the store, with its class, as in the file: `${env:NAME}` is not replaced yet.
        temporary: whether it is a directory of the demo, which is removed at its end.
    """

    keys: Mapping[str, object]
    temporary: bool

    @classmethod
    def given(cls, name: str, pairs: Sequence[str]) -> DemoStore:
        """The store of the options, below a separate prefix, so that nothing else is ever removed.

        Args:
            name: one of `NAMES`.
            pairs: `KEY=VALUE`.

        Raises:
            ConfigurationError: a property is missing, unknown or wrong, or a package is not installed.
        """
        if name == "filesystem":
            if pairs:
                raise ConfigurationError(
                    "--store-key", "is for s3, gcs and azure; with filesystem, the demo uses its own directory"
                )
            return cls({STORE_CLASS: name}, temporary=True)
        known = {key.name: key for key in (*COMMON_KEYS, *(store_keys(name) or ()))}
        keys: dict[str, object] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals:
                raise ConfigurationError("--store-key", "must be KEY=VALUE, but one of them has no '='")
            if _KEY.fullmatch(key) is None:
                raise ConfigurationError(
                    "--store-key", f"found the property {key!r}, allowed is one such as {name}.prefix"
                )
            if not is_utf8(value):
                raise ConfigurationError("--store-key", f"found a value of {key} that is not UTF-8")
            keys[key] = known[key].coerce(value) if key in known else value
        prefix = str(keys.get(f"{name}.prefix", "")).strip("/")
        keys[f"{name}.prefix"] = f"{prefix}/wideload-demo-{secrets.token_hex(4)}".removeprefix("/")
        store = cls({STORE_CLASS: name, **keys}, temporary=False)
        store.opened_keys()
        return store

    def at(self, root: Path) -> DemoStore:
        """The store with this directory, if it is one."""
        return DemoStore({**self.keys, "filesystem.root": str(root)}, temporary=True) if self.temporary else self

    def lines(self) -> str:
        """The lines of the configuration."""
        return "".join(f"{name} = {_toml(value)}\n" for name, value in self.keys.items())

    def opened_keys(self) -> Mapping[str, object]:
        """The properties as the worker will have them.

        Raises:
            ConfigurationError: one is missing, unknown or wrong.
        """
        try:
            document = tomllib.loads(f'bootstrap.servers = "localhost:1"\n{self.lines()}{_PIPELINE}')
        except tomllib.TOMLDecodeError as exc:
            names = ", ".join(name for name in self.keys if name != STORE_CLASS)
            raise ConfigurationError(
                "--store-key", f"found properties that no file can have together: {names}"
            ) from exc
        config = parse(document).pipelines[0].store
        with closing(open_store(config)):
            return config

    def sizes(self, topic: str) -> Iterator[int]:
        """The bytes of each payload of a topic.

        Raises:
            PayloadStoreError: the store failed.
        """
        with closing(open_store(self.opened_keys())) as store:
            assert isinstance(store, List)
            yield from (payload.size for payload in store.list(topic))

    def remove(self, topic: str) -> None:
        """Removes the payloads of a topic.

        Raises:
            PayloadStoreError: the store failed; the message names the payload that is left.
        """
        with closing(open_store(self.opened_keys())) as store:
            assert isinstance(store, List)
            assert isinstance(store, Delete)
            for payload in list(store.list(topic)):
                store.delete(payload.path)


def _toml(value: object) -> str:
    """A value as TOML has it: as JSON does, but it has no pairs of surrogates, and DEL is escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
