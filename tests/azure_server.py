"""A real Azure emulator for the tests: Microsoft's Azurite, in a separate process.

`make setup-clouds` puts it into `azurite` in the cache directory (`WIDELOAD_CACHE`, by default `~/.cache/wideload`),
where Node and npm are.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.cloud_server import CloudServer, answering, running

_PACKAGE = "azurite@3.35.0"
_ACCOUNT = "devstoreaccount1"


@contextlib.contextmanager
def azure_server(directory: Path) -> Iterator[CloudServer]:
    """Runs a server with an empty container `payloads`.

    Raises:
        FileNotFoundError: there is no Azurite, or no Node; the message says what to do.
    """
    cache = Path(os.environ.get("WIDELOAD_CACHE") or Path.home() / ".cache" / "wideload")
    main = cache / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    node = shutil.which("node")
    if node is None or not main.exists():
        raise FileNotFoundError(f"no Azurite: run `make setup-clouds`, which installs {_PACKAGE} and needs Node")
    key = b64encode(secrets.token_bytes(64)).decode()

    def command(port: int) -> list[str]:
        return [
            *(str(node), str(main), "--blobHost", "127.0.0.1", "--blobPort", str(port)),
            *("--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"),
        ]

    environ = {"PATH": os.environ.get("PATH", ""), "HOME": str(directory), "AZURITE_ACCOUNTS": f"{_ACCOUNT}:{key}"}
    with running(command, directory, answering("/"), environ) as address:
        endpoint = f"http://{address}/{_ACCOUNT}"
        keys = {
            "azure.container": "payloads",
            "azure.account.name": _ACCOUNT,
            "azure.account.key": key,
            "azure.endpoint": endpoint,
        }
        _create_container(endpoint, key)
        yield CloudServer("azure", endpoint, keys)


@contextlib.contextmanager
def azure_server_or_skip(directory: Path) -> Iterator[CloudServer]:
    """As `azure_server`; skips the test where this machine has no such server."""
    try:
        with azure_server(directory) as server:
            yield server
    except FileNotFoundError as exc:
        pytest.skip(str(exc))


def _create_container(endpoint: str, key: str) -> None:
    import hashlib
    import hmac
    from base64 import b64decode
    from email.utils import formatdate

    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    canonical = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/payloads\nrestype:container"
    text = "PUT" + "\n" * 12 + canonical + resource
    signature = b64encode(hmac.digest(b64decode(key), text.encode(), hashlib.sha256)).decode()
    with requests.Session() as session:
        session.trust_env = False  # no proxy may stand between a test and its own machine
        answer = session.put(
            f"{endpoint}/payloads?restype=container",
            headers={**headers, "Authorization": f"SharedKey {_ACCOUNT}:{signature}"},
            timeout=10,
        )
    answer.raise_for_status()
