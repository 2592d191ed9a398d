"""Real S3 servers for the tests and the benchmark: versitygw, MinIO or rclone, each in a separate process.

The binaries come from `bin` in the cache directory (`WIDELOAD_CACHE`, by default `~/.cache/wideload`), where the set-up
of the tests puts them if Go is there; MinIO for `make minio-test`, and rclone, which serves a directory by S3, for
`make rclone-test`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import boto3
import pytest
from botocore.config import Config

from app.local.broker import free_ports
from app.local.watchdog import Watched, watched

Kind = Literal["versitygw", "minio", "versitygw-nometa", "rclone"]
_CHOSEN = os.environ.get("WIDELOAD_S3_SERVER")
_TARGETS: Mapping[Kind, str] = {"minio": "minio-test", "rclone": "rclone-test"}
"""The targets of make that choose these servers. No other run has them, however they came here."""
KINDS: tuple[Kind, ...] = ("versitygw", "minio") if _CHOSEN == "minio" else ("versitygw",)
PLAIN: tuple[Kind, ...] = ("versitygw-nometa", "rclone") if _CHOSEN == "rclone" else ("versitygw-nometa",)
"""Servers that know the requests for objects, and little else: no versions, no rules, perhaps no ETag."""

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_REGION = "us-east-1"
_BINARIES: Mapping[Kind, str] = {
    "versitygw": "bin/versitygw",
    "versitygw-nometa": "bin/versitygw",
    "minio": "bin/minio",
    "rclone": "rclone/bin/rclone",
}
_VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of a server's own, for 127.0.0.1, in PEM files."""

    file: Path
    key: Path

    @classmethod
    def made(cls, folder: Path) -> Certificate:
        """A new one, by the command `openssl`.

        Raises:
            S3UnavailableError: there is no such command.
        """
        found = cls(folder / "server.pem", folder / "server.key")
        command = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2 -nodes -subj /CN=127.0.0.1"
        )
        names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(found.key), "-out", str(found.file)]
        try:
            subprocess.run([*command.split(), *names], check=True, capture_output=True)
        except FileNotFoundError as exc:
            raise S3UnavailableError("no openssl, which makes the certificate of the server") from exc
        return found


class S3UnavailableError(Exception):
    """There is no such server on this machine; the message says what to install."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server that answers, with one empty bucket.

    Attributes:
        kind: of the server.
        endpoint: its URL.
        access_key: the access key of its only user.
        secret_key: the secret key.
        bucket: a bucket that is there.
        region: its region.
    """

    kind: Kind
    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    bucket: str = "payloads"
    region: str = _REGION

    def config(self, prefix: str = "") -> dict[str, object]:
        """The keys of a store below `prefix`, without the store's class."""
        return {
            "s3.bucket": self.bucket,
            "s3.prefix": prefix,
            "s3.endpoint": self.endpoint,
            "s3.region": self.region,
            "s3.access.key": self.access_key,
            "s3.secret.key": self.secret_key,
        }

    def client(self, service: str = "s3") -> Any:
        """A client of boto3's, with all permissions; the caller closes it."""
        made: Any = boto3.session.Session().client  # the stubs have a type for each service
        return made(
            service,
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}, proxies={}),
        )


@contextlib.contextmanager
def s3_server(kind: Kind, directory: Path, *, certificate: Certificate | None = None) -> Iterator[S3Server]:
    """Runs a server that keeps its objects in `directory`, and stops it at the end.

    Args:
        kind: of the server.
        directory: for its files.
        certificate: with which versitygw answers by TLS; `AWS_CA_BUNDLE` must name it for clients.

    Raises:
        S3UnavailableError: there is no binary, or the run is not that of the server's own target.
        RuntimeError: the server did not answer in time; the message has the end of its log.
    """
    target = _TARGETS.get(kind)
    if target is not None and kind != _CHOSEN:
        raise S3UnavailableError(f"`make {target}` runs the tests that need {kind}")
    binary = _cache() / _BINARIES[kind]
    if not os.access(binary, os.X_OK):
        how = (
            f"run `make {target}`" if target else f"install Go and run `GOBIN={binary.parent} go install {_VERSITYGW}`"
        )
        raise S3UnavailableError(f"no {binary.name}: {how}")
    access_key, secret_key = f"key{secrets.token_hex(6)}", secrets.token_hex(20)
    running = _process(kind, binary, directory, access_key, secret_key, certificate)
    with running as endpoint:
        server = S3Server(kind, endpoint, access_key, secret_key)
        _create_bucket(server)
        yield server


@contextlib.contextmanager
def s3_server_or_skip(kind: Kind, directory: Path) -> Iterator[S3Server]:
    """As `s3_server`; skips the test where this machine has no such server."""
    try:
        with s3_server(kind, directory) as server:
            yield server
    except S3UnavailableError as exc:
        pytest.skip(str(exc))


def free_port() -> int:
    """A port, as `app.local.broker.free_ports` gives them."""
    (port,) = free_ports(1)
    return port


def _cache() -> Path:
    return Path(os.environ.get("WIDELOAD_CACHE") or Path.home() / ".cache" / "wideload")


@dataclass(frozen=True, slots=True)
class _Command:
    """How to start a server, the additional variables of its environment, and which path answers when it is ready."""

    words: list[str]
    environment: dict[str, str]
    health: str


def _command(
    kind: Kind, binary: Path, directory: Path, address: str, keys: tuple[str, str], certificate: Certificate | None
) -> _Command:
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    if kind == "minio":
        console = f"127.0.0.1:{free_port()}"
        words = [str(binary), "server", "--quiet", "--address", address, "--console-address", console, str(data)]
        credentials = {"MINIO_ROOT_USER": keys[0], "MINIO_ROOT_PASSWORD": keys[1], "MINIO_BROWSER": "off"}
        return _Command(words, credentials, "/minio/health/live")
    if kind == "rclone":
        # It has no page for its health.
        words = [str(binary), "serve", "s3", "--addr", address, "--log-level", "ERROR", str(data)]
        settings = {"RCLONE_AUTH_KEY": f'"{keys[0]},{keys[1]}"', "RCLONE_CONFIG": str(directory / "rclone.conf")}
        (directory / "rclone.conf").touch()
        return _Command(words, settings, "")
    versions = directory / "versions"
    versions.mkdir(exist_ok=True)
    words = [
        str(binary),
        "--port",
        address,
        # Without keep-alive it closes the connection after each request, which S3 itself does not do.
        "--keep-alive",
        "--quiet",
        "--health",
        "/healthy",
        *(["--cert", str(certificate.file), "--key", str(certificate.key)] if certificate else []),
        "posix",
        *(["--versioning-dir", str(versions)] if kind == "versitygw" else ["--nometa"]),
        str(data),
    ]
    return _Command(words, {"ROOT_ACCESS_KEY": keys[0], "ROOT_SECRET_KEY": keys[1]}, "/healthy")


@contextlib.contextmanager
def _process(
    kind: Kind, binary: Path, directory: Path, access_key: str, secret_key: str, certificate: Certificate | None
) -> Iterator[str]:
    directory.mkdir(parents=True, exist_ok=True)
    log_path = directory / f"{kind}.log"
    address = f"127.0.0.1:{free_port()}"
    command = _command(kind, binary, directory, address, (access_key, secret_key), certificate)
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(directory), **command.environment}
    with log_path.open("wb") as log:
        # It ends with the tests, also where they are killed.
        process = watched(command.words, output=log, environ=environment)
        try:
            endpoint = f"{'https' if certificate else 'http'}://{address}"
            if not _answers(f"{endpoint}{command.health}", process, certificate):
                end = log_path.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{kind} did not answer on {address} within {_START_SECONDS:g} s:\n{end}")
            yield endpoint
        finally:
            process.signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _answers(url: str, process: Watched, certificate: Certificate | None = None) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    # No proxy of the environment may stand between a test and its own machine.
    secure = urllib.request.HTTPSHandler(
        context=ssl.create_default_context(cafile=certificate.file if certificate else None)
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), secure)
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with opener.open(url, timeout=1):
                return True
        except urllib.error.HTTPError:
            return True  # it refuses who has no key, and so it answers
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def _create_bucket(server: S3Server) -> None:
    with contextlib.closing(server.client()) as client:
        client.create_bucket(Bucket=server.bucket)
