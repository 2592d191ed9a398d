"""The stores under test, each below a root of its own."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import pytest

from stores.filesystem import FilesystemStore
from stores.memory import MemoryStore
from stores.s3 import S3Store
from stores.store import Store
from tests.s3_server import KINDS, Kind, S3Server, s3_server_or_skip

Configure = Callable[[Mapping[str, object]], Store]

_prefixes = itertools.count()


@pytest.fixture(scope="session", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Each kind of S3 server that this machine has."""
    yield from _server(request.param, tmp_path_factory)


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The faster server, for what does not depend on the kind."""
    yield from _server("versitygw", tmp_path_factory)


@pytest.fixture(scope="session", params=["memory", "filesystem", *KINDS])
def configured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configure]:
    """Makes stores of one kind; those of one call share nothing with those of the next."""
    with contextlib.ExitStack() as stack:

        def opened(store: Store, config: Mapping[str, object]) -> Store:
            store.configure(config)
            stack.callback(store.close)
            return store

        def memory(config: Mapping[str, object]) -> Store:
            return opened(MemoryStore(), {"memory.name": f"test-{next(_prefixes)}", **config})

        def filesystem(config: Mapping[str, object]) -> Store:
            root = tmp_path_factory.mktemp("root of ünïcode %2e")
            return opened(FilesystemStore(), {"filesystem.root": str(root), **config})

        if request.param == "memory":
            yield memory
        elif request.param == "filesystem":
            yield filesystem
        else:
            servers = _server(request.param, tmp_path_factory)
            stack.callback(servers.close)
            running = next(servers)

            def s3(config: Mapping[str, object]) -> Store:
                return opened(S3Store(), {**running.config(f"a b/ünïcode=%2e/{next(_prefixes)}"), **config})

            yield s3


@pytest.fixture
def store(configured: Configure) -> Store:
    """An empty store, with the default settings."""
    return configured({})


@pytest.fixture(scope="session")
def shared_store(configured: Configure) -> Store:
    """A store that several tests use, for those that do not mind what the others put there."""
    return configured({})


def _server(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Generator[S3Server]:
    directory: Path = tmp_path_factory.mktemp(re.sub(r"\W", "-", kind))
    with s3_server_or_skip(kind, directory) as running:
        yield running
