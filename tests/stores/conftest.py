"""The stores under test, each below a root of its own."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from stores.azure import AzureStore
from stores.filesystem import FilesystemStore
from stores.gcs import GcsStore
from stores.memory import MemoryStore
from stores.s3 import S3Store
from stores.store import Store
from tests.azure_server import azure_server_or_skip
from tests.cloud_server import CloudServer
from tests.faults.proxy import keeping_rules
from tests.gcs_server import gcs_server_or_skip
from tests.s3_server import KINDS, PLAIN, Kind, S3Server, s3_server_or_skip

Configure = Callable[[Mapping[str, object]], Store]
StartServer = Callable[[Kind], S3Server]
StartCloud = Callable[[str], CloudServer]
SetClock = Callable[[float], "CountedClock"]

CLOUDS: Mapping[str, tuple[Callable[[Path], contextlib.AbstractContextManager[CloudServer]], type[Store]]] = {
    "azure": (azure_server_or_skip, AzureStore),
    "gcs": (gcs_server_or_skip, GcsStore),
}

_prefixes = itertools.count()


@pytest.fixture
def no_aws_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """AWS's provider chain has nothing, and asks nobody."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts a server of a kind, or gives the one that was started before."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start(kind: Kind) -> S3Server:
            return stack.enter_context(s3_server_or_skip(kind, tmp_path_factory.mktemp(kind)))

        yield start


@pytest.fixture(scope="session", params=KINDS)
def server(request: pytest.FixtureRequest, start_server: StartServer) -> S3Server:
    """Each kind of S3 server that this machine has."""
    return start_server(request.param)


@pytest.fixture(scope="session", params=PLAIN)
def plain(request: pytest.FixtureRequest, start_server: StartServer) -> S3Server:
    """Each S3 server that knows the requests for objects and little else."""
    return start_server(request.param)


@pytest.fixture(scope="session")
def versitygw(start_server: StartServer) -> S3Server:
    """The faster server, for what does not depend on the kind."""
    return start_server("versitygw")


@pytest.fixture(scope="session")
def minio(start_server: StartServer) -> S3Server:
    """A server that has roles with policies, and says what it has no KMS for."""
    return start_server("minio")


@pytest.fixture(scope="session", params=KINDS)
def with_rules(request: pytest.FixtureRequest, start_server: StartServer) -> Iterator[S3Server]:
    """A server that has expiry rules: versitygw behind a keeper of rules, and MinIO, which has its own."""
    server = start_server(request.param)
    with contextlib.nullcontext(server) if server.kind == "minio" else keeping_rules(server) as found:
        yield found


@pytest.fixture(scope="session")
def start_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartCloud]:
    """Starts an emulator of a cloud, or gives the one that was started before."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start(name: str) -> CloudServer:
            return stack.enter_context(CLOUDS[name][0](tmp_path_factory.mktemp(name)))

        yield start


@pytest.fixture(scope="session", params=["memory", "filesystem", *KINDS, *PLAIN, *CLOUDS])
def configured(
    request: pytest.FixtureRequest,
    start_server: StartServer,
    start_cloud: StartCloud,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Configure]:
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
        elif request.param in CLOUDS:
            cloud, made = start_cloud(request.param), CLOUDS[request.param][1]

            def in_cloud(config: Mapping[str, object]) -> Store:
                return opened(made(), {**cloud.config(f"a b/ünïcode=%2e/{next(_prefixes)}"), **config})

            yield in_cloud
        else:
            running = start_server(request.param)

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


class CountedClock:
    """Goes on by so much at each look, and not by itself: other work on the machine makes no call late."""

    def __init__(self, step: float) -> None:
        self.looks = 0
        self._step = step

    def monotonic(self) -> float:
        """See `time.monotonic`."""
        self.looks += 1
        return self.looks * self._step


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Gives `stores.http_time` another clock, for the time that a call may take."""

    def set_to(step: float) -> CountedClock:
        clock = CountedClock(step)
        monkeypatch.setattr("stores.http_time.time", clock)
        return clock

    return set_to
