"""What is Azure's own: errors, times, settings, deletes with a condition. The behaviour of any store is elsewhere."""

from __future__ import annotations

import contextlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from app.config.secret import Secret
from stores.azure import AzureStore
from stores.cloud_client import ChangedError
from stores.registry import open_store
from tests.azure_server import azure_server_or_skip
from tests.cloud_server import CloudServer
from tests.stores.scripted_server import Request, Script, Wire, error, scripted_server
from transforms.errors import (
    ConfigurationError,
    PayloadStoreAccessError,
    PayloadStoreError,
    ReferenceRefusedError,
)

NAME = "orders", "an-id"
HEAD = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n'
KEY = b64encode(b"sesame" * 10).decode()
ACCOUNT = {"azure.container": "payloads", "azure.account.name": "acme"}


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudServer]:
    with azure_server_or_skip(tmp_path_factory.mktemp("azure")) as server:
        yield server


def config(endpoint: str, **more: object) -> dict[str, object]:
    return {
        **ACCOUNT,
        "azure.account.key": KEY,
        "azure.endpoint": f"{endpoint}/acme",
        "azure.retry.attempts": 1,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@contextlib.contextmanager
def opened(keys: Mapping[str, object]) -> Iterator[AzureStore]:
    store = AzureStore()
    store.configure(keys)
    with contextlib.closing(store):
        yield store


def calls(store: AzureStore) -> list[Callable[[], object]]:
    path = store.root.path(*NAME)
    return [
        store.check,
        lambda: store.put(*NAME, b"data"),
        lambda: store.get(path, 100),
        lambda: store.stat(path),
        lambda: store.delete(path),
        lambda: list(store.list()),
        lambda: list(store.topics()),
    ]


def payload(body: bytes, length: int) -> Script:
    def script(_: Request, wire: Wire) -> bool:
        wire.write(b"%bContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (HEAD, length, body))
        return False

    return script


def test_what_is_published_in_between_stays(azurite: CloudServer) -> None:
    """The server itself keeps a payload that is not the one that was looked at."""
    with opened(azurite.config("between")) as store:
        path = store.publish("orders", b"data")
        looked = store._client.head(store._key(path), path)
        store.publish("orders", b"data")
        with pytest.raises(ChangedError):
            store.delete_found(looked, path)
        assert store.download(path) == b"data"
        again = store._client.head(store._key(path), path)
        assert store.delete_found(again, path) is False
        assert [each.outcome for each in store.delete_unchanged([store._info(again)])] == ["gone"]


def test_bakdatas_payloads_are_read(azurite: CloudServer) -> None:
    """The form of bakdata's paths, with a folder below the topic, is read; it is neither listed nor deleted."""
    with opened(azurite.config("base")) as store:
        path = "abs://payloads/base/orders/values/an-id"
        store._client.put(store._key(path), b"theirs", path)
        assert store.download(path) == b"theirs"
        assert list(store.list()) == []
        with pytest.raises(ReferenceRefusedError):
            store.delete(path)


def test_a_container_that_does_not_exist_is_named(azurite: CloudServer) -> None:
    """A check, a put and a look say which container is missing, and which key names it."""
    with opened({**azurite.config(), "azure.container": "nowhere"}) as store:
        for call in calls(store)[:4]:
            with pytest.raises(PayloadStoreAccessError, match="container nowhere does not exist") as caught:
                call()
            assert caught.value.key == "azure.container"


def test_a_signed_url_is_for_one_delete() -> None:
    """With a token obstore signs a URL that allows to delete this object alone, and the condition goes with it."""

    def script(request: Request, wire: Wire) -> bool:
        if "/oauth2/" in request.path:
            body = b'{"access_token": "sesame", "expires_in": 3600}'
        elif "userdelegationkey" in request.path:
            assert request.headers["authorization"] == "Bearer sesame"
            names = ("SignedOid", "SignedTid", "SignedStart", "SignedExpiry", "SignedService", "SignedVersion")
            inner = "".join(f"<{name}>2030-01-01T00:00:00Z</{name}>" for name in names)
            body = f"<UserDelegationKey>{inner}<Value>{KEY}</Value></UserDelegationKey>".encode()
        else:
            body = b""
        wire.write(b"%bContent-Length: %d\r\n\r\n%b" % (HEAD, len(body), body))
        return True

    with scripted_server(script) as server:
        keys = {"azure.client.id": "a", "azure.tenant.id": "t", "azure.client.secret": "s"}
        with opened({**ACCOUNT, **keys, "azure.endpoint": "https://acme.example"}) as store:
            _point(store, server.endpoint)
            path = store.root.path(*NAME)
            assert [each.outcome for each in store.delete_unchanged([store.stat(path)])] == ["deleted"]
            store.check(topic="orders")
        deleted, probe = [request for request in server.requests if request.method == "DELETE"]
        assert probe.path.startswith("/acme/payloads/orders/~wideload-check-")  # obstore signs this as it is sent
        assert deleted.path.startswith("/acme/payloads/orders/an-id?")
        assert "sp=d&" in f"{deleted.path}&"
        assert "authorization" not in deleted.headers
        assert deleted.headers["if-match"] == '"e"'


@pytest.mark.parametrize("where", ["workload identity", "managed identity", "client secret of the environment"])
def test_a_token_of_azures_chain_goes_with_a_request(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without credentials in the keys, obstore finds those of the environment, the pod or the machine."""

    def script(_: Request, wire: Wire) -> bool:
        body = b'{"access_token": "sesame", "expires_in": 3600, "expires_on": "4102444800"}'
        wire.write(b"%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (HEAD, len(body), body))
        return True

    with scripted_server(script) as server:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", server.endpoint)
        if where == "managed identity":
            monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{server.endpoint}/oauth2/token")
        else:
            monkeypatch.setenv("AZURE_CLIENT_ID", "a")
            monkeypatch.setenv("AZURE_TENANT_ID", "t")
        if where == "workload identity":
            (tmp_path / "their-token").write_text("theirs")
            monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "their-token"))
        elif where != "managed identity":
            monkeypatch.setenv("AZURE_CLIENT_SECRET", "s")
        with opened({**ACCOUNT, "azure.endpoint": "https://acme.example"}) as store:
            _point(store, server.endpoint)
            store.get(store.root.path(*NAME), 100)
            store.get(store.root.path(*NAME), 100)
        asked, *got = server.requests
        assert "/oauth2/" in asked.path
        assert [request.headers["authorization"] for request in got] == ["Bearer sesame"] * 2


def test_a_shared_access_signature_goes_with_a_delete(caplog: pytest.LogCaptureFixture) -> None:
    """`azure.sas.token` is the query of every request, and stands in no message, nor in the log of a library."""
    caplog.set_level("DEBUG")
    with scripted_server(error(403, "AuthorizationFailure")) as server:
        keys = {**ACCOUNT, "azure.sas.token": Secret("?sv=2023-11-03&sig=sesame"), "azure.retry.attempts": 1}
        with opened({**keys, "azure.endpoint": "https://acme.example"}) as store:
            _point(store, server.endpoint)
            for call in calls(store)[:5]:
                with pytest.raises(PayloadStoreAccessError, match=r"check azure\.sas\.token") as caught:
                    call()
                assert "sesame" not in str(caught.value) + str(caught.value.__cause__)
        assert all("sig=sesame" in request.path for request in server.requests)
    assert "&sig=***" in caplog.text
    assert "sesame" not in caplog.text


def test_an_object_that_cannot_be_listed_is_named() -> None:
    """obstore ends a listing at a name with an empty segment; that does not pass, and says what to do."""
    listing = b"""<?xml version="1.0"?><EnumerationResults><Blobs><Blob><Name>orders/a//b</Name><Properties>
        <Last-Modified>Mon, 01 Jan 2024 00:00:00 GMT</Last-Modified><Content-Length>1</Content-Length><Etag>e</Etag>
        <Content-Type>a/b</Content-Type>
        </Properties></Blob></Blobs><NextMarker/></EnumerationResults>"""

    def script(_: Request, wire: Wire) -> bool:
        wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(listing), listing))
        return True

    with scripted_server(script) as server, opened(config(server.endpoint)) as store:
        with pytest.raises(PayloadStoreError, match=r"orders/a//b.*delete it, or use another prefix") as caught:
            list(store.list())
        assert not caught.value.retriable


def test_rules_are_not_known() -> None:
    """Azure's rules cannot be seen with rights on blobs; that is said, and where to look."""
    with opened({**ACCOUNT, "azure.account.key": KEY}) as store:
        for call in (lambda: store.expiry_rules("orders"), lambda: store.set_expiry("orders", 3)):
            with pytest.raises(PayloadStoreError, match="az storage account management-policy show") as caught:
                call()
            assert not caught.value.retriable


@pytest.mark.parametrize(
    ("keys", "name", "words"),
    [
        ({"azure.container": "Upper"}, "azure.container", "allowed is a container.s name: 3 to 63"),
        ({"azure.account.name": "a.b"}, "azure.account.name", "3 to 24 characters a-z and 0-9"),
        ({"azure.account.key": "no key!"}, "azure.account.key", "is not an account key"),
        ({"azure.endpoint": "https://user:word@host"}, "azure.endpoint", r"\*\*\*@host"),
        ({"azure.endpoint": "http://acme.example"}, "azure.endpoint", "could be intercepted"),
        ({"azure.endpoint": "https://elsewhere"}, "azure.endpoint", "must contain the storage account"),
        ({"azure.prefix": "a b"}, "azure.prefix", "unless azure.account.key or azure.sas.token is set"),
        ({"azure.account.key": KEY, "azure.sas.token": "a"}, "azure.sas.token", "cannot be combined with"),
        ({"azure.client.secret": "a"}, "azure.client.secret", "also requires azure.client.id and azure.tenant.id"),
        ({"azure.container.name": "a"}, "azure.container.name", "did you mean azure"),
    ],
)
def test_wrong_keys_are_named(keys: Mapping[str, object], name: str, words: str) -> None:
    """A key that is missing, unknown or wrong is an error with its name, before any request, without a secret."""
    with pytest.raises(ConfigurationError, match=words) as caught:
        AzureStore().configure({**ACCOUNT, **keys})
    assert caught.value.key == name
    assert "no key!" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without obstore the keys are known all the same, and opening the store says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'wideload\[azure\]'"):
        open_store({"large.message.payload.store.class": "azure", **ACCOUNT})


def _point(store: AzureStore, endpoint: str) -> None:
    """Leads a store with a token to a server without TLS, which its keys refuse."""
    from obstore.store import AzureStore as Container

    found: Any = store._client.reader.config
    config: Any = {**found, "endpoint": f"{endpoint}/acme", "authority_host": endpoint}
    del config["container_name"]
    store._client.reader = store._client._writer = Container(
        "payloads", config=config, client_options={"allow_http": True}, retry_config={"max_retries": 0}
    )
    store._container_url = f"{endpoint}/acme/payloads"
