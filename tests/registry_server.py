"""A real schema registry for the tests: Apicurio with its data in memory, which speaks Confluent's API.

`make setup-registry` fetches it with Ivy, which is part of PySpark, into `apicurio` in the cache directory
(`WIDELOAD_CACHE`, by default `~/.cache/wideload`); `WIDELOAD_IVY_SETTINGS` names another registry of packages.

    python -m tests.registry_server   fetch it
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.local import jars, java
from tests.cloud_server import answering, running

_VERSION = "2.6.13.Final"
_SHA256 = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"
_SECONDS = 600
_API = "/apis/ccompat/v7"
_IVY = (
    '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="wideload" module="tests"/>'
    '<dependencies><dependency org="io.apicurio" name="apicurio-registry-app" rev="{version}"'
    ' conf="default" transitive="false">'
    '<artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>'
    "</dependency></dependencies></ivy-module>"
)


@dataclass(frozen=True, slots=True)
class RegistryServer:
    """A registry that answers.

    Attributes:
        url: of Confluent's API.
    """

    url: str

    def register(self, subject: str, schema: object, kind: str = "AVRO", references: Sequence[object] = ()) -> int:
        """The id of a new version of the subject; a schema that is not text is written as JSON."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        request = urllib.request.Request(  # noqa: S310  # of this machine
            f"{self.url}/subjects/{subject}/versions",
            data=json.dumps({"schema": text, "schemaType": kind, "references": references}).encode(),
            headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            return int(json.load(answer)["id"])


@contextlib.contextmanager
def registry_server_or_skip(directory: Path) -> Iterator[RegistryServer]:
    """Runs a registry without any schema; skips the test where this machine has none."""
    runner = _folder() / f"apicurio-registry-app-{_VERSION}-runner.jar"
    if not runner.exists():
        pytest.skip("no schema registry: run `make setup-registry`, which fetches Apicurio (142 MB)")

    def command(port: int) -> list[str]:
        return [
            *(str(java.locate()), "-Xmx300m", "-XX:TieredStopAtLevel=1"),
            *("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"),
            *("-cp", f"{runner}{os.pathsep}{runner.parent / 'lib'}/*", "io.quarkus.runner.GeneratedMain"),
        ]

    with running(command, directory, answering(f"{_API}/subjects")) as address:
        yield RegistryServer(f"http://{address}{_API}")


def fetch() -> None:
    """Fetches and unpacks it, if it is not there.

    Raises:
        SystemExit: it cannot be fetched, or is not what it was.
    """
    folder = _folder()
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as scratch:
        Path(scratch, "ivy.xml").write_text(_IVY.format(version=_VERSION))
        Path(scratch, "settings.xml").write_text(jars._IVY_SETTINGS)
        settings = os.environ.get("WIDELOAD_IVY_SETTINGS", f"{scratch}/settings.xml")
        done = subprocess.run(
            [
                *(str(java.locate()), *jars._java_network_options(os.environ), "-jar", str(jars._ivy_jar())),
                *("-settings", settings, "-ivy", f"{scratch}/ivy.xml", "-confs", "default", "-cache", f"{scratch}/c"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        archive = next(Path(scratch, "c").rglob("*.tar.gz"), None)
        if done.returncode != 0 or archive is None:
            raise SystemExit("the schema registry cannot be fetched; Ivy says:\n" + done.stdout[-2000:])
        with archive.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != _SHA256:
            raise SystemExit(f"the schema registry is not what it was: SHA-256 {found}, expected {_SHA256}")
        with tarfile.open(archive) as packed:
            packed.extractall(Path(scratch, "whole"), filter="data")
        Path(scratch, "whole").rename(folder)


def _folder() -> Path:
    return jars.cache_folder() / "apicurio" / _VERSION


if __name__ == "__main__":
    fetch()
