"""No secret in any output: the log at its loudest, the pages, the commands, what goes wrong."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from app.config.secret import known
from app.log_filters import hide_secrets, keep_secrets
from stores.registry import open_store
from tests.forks import run
from tests.integration.topics import end_offsets, read_all, send
from tests.integration.way import THRESHOLD, Way
from tests.integration.worker_process import StartedWorker, WorkerProcess, until
from tests.s3_server import S3Server
from transforms.errors import PayloadNotFoundError, PayloadStoreError
from transforms.reference import Reference

TOKEN = "token-of-a-session-that-nobody-may-see"  # of this test
SIGNING, PREVIOUS = "signing-key-that-nobody-may-see-1", "signing-key-that-nobody-may-see-2"
ENCRYPTING, OLDER = b"encryption-key-nobody-may-see-01", b"encryption-key-nobody-may-see-02"
PAGES = ("/", "/health", "/health/live", "/health/ready", "/pipelines", "/metrics", "/connectors?expand=info")


class _Loud(StartedWorker):
    """A worker that logs all there is to log."""

    def command(self) -> list[str]:
        """See `StartedWorker.command`."""
        return [*super().command(), "--log-level", "DEBUG"]


class _UnderFaust(StartedWorker):
    """Faust's own command, whose banner shows settings."""

    def command(self) -> list[str]:
        """See `StartedWorker.command`."""
        return [sys.executable, "-m", "faust", "-A", "app.worker", "--debug", "worker", "-l", "debug"]


@pytest.fixture
def way(make_way: Callable[..., Way], versitygw: S3Server) -> Way:
    """Every secret that a pipeline on S3 can have, one of them from the environment."""
    made = make_way(partitions=1)
    made.store = {
        "large.message.payload.store.class": "s3",
        **versitygw.config(),
        "s3.secret.key": "${env:TEST_S3_SECRET}",
        "large.message.signing.key": SIGNING,
        "large.message.signing.previous.keys": [PREVIOUS],
        "large.message.encryption.type": "aes-256-gcm",
        "large.message.encryption.key.id": "one",
        "large.message.encryption.key.secret": ENCRYPTING.hex(),
        "large.message.encryption.previous.keys": [f"older:{OLDER.hex()}"],
    }
    return made


def _check(text: str, *secrets: str) -> None:
    assert text
    keys = (each for key in (ENCRYPTING, OLDER) for each in (key.hex(), key.decode()))
    for secret in (*secrets, TOKEN, SIGNING, PREVIOUS, *keys):
        assert secret not in text


@pytest.mark.s3
@pytest.mark.parametrize("kind", [_Loud, _UnderFaust])
def test_worker_shows_no_secret(way: Way, versitygw: S3Server, kind: type[StartedWorker]) -> None:
    """With all logging on, at work and asked for its stacks, the worker shows none."""
    worker = kind(way.folder, way.settings(), way.offload())
    environ = {"TEST_S3_SECRET": versitygw.secret_key, "WIDELOAD_CONFIG": str(worker.config)}
    worker.start(environ)
    with_status = []
    try:
        worker.wait_ready()
        send(way.broker, way.raw, [(0, b"k", os.urandom(THRESHOLD + 1), [], 1)])
        until(lambda: end_offsets(way.broker, way.orders)[0] == 1, "a record has gone through")
        with_status = [worker.text(page) for page in PAGES if page in {"/pipelines", "/metrics", "/health/live"}]
        with_status += [str(worker.get(page)) for page in ("/", "/health", "/health/ready")]
        assert worker.process is not None
        worker.process.send_signal(signal.SIGUSR1)  # Faust's way to ask for the stacks of all tasks
        worker.terminate()
    finally:
        worker.kill()
    log = worker.log.read_text()
    assert "DEBUG" in log
    _check(log, versitygw.secret_key)
    _check("".join(with_status), versitygw.secret_key)


@pytest.mark.s3
def test_commands_show_no_secret(way: Way, versitygw: S3Server, tmp_path: Path) -> None:
    """`check`, with the configuration printed, and with a store that refuses or a key that is wrong, shows none."""
    for change in ({}, {"s3.session.token": TOKEN, "s3.retry.attempts": 1}, {"s3.secret.key": PREVIOUS + "/wrong"}):
        worker = WorkerProcess(tmp_path, way.settings(), way.offload(**change))
        for more in ([], ["--print"]):
            done = run(
                [sys.executable, "-m", "app.cli", "check", "-c", str(worker.config), *more],
                environ={**os.environ, "TEST_S3_SECRET": versitygw.secret_key},
            )
            assert "Traceback" not in done.stderr
            _check(done.stdout + done.stderr, versitygw.secret_key)


def test_worker_listens_on_loopback_alone(make_way: Callable[..., Way]) -> None:
    """Unless it is told otherwise, who is not on this machine does not reach the pages."""
    way = make_way(partitions=1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; says which address this machine has for others
        own: str = probe.getsockname()[0]
    with WorkerProcess(way.folder, way.settings(), way.offload()) as worker:
        worker.wait_ready()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((own, worker.port), timeout=5)


@pytest.mark.s3
def test_store_logs_no_token(way: Way, versitygw: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    """However much a worker logs, the token of a session, which travels with each request, does not show."""
    config = {**way.store, "s3.secret.key": versitygw.secret_key, "s3.session.token": TOKEN}
    caplog.set_level(logging.DEBUG)
    keep_secrets()
    with closing(open_store(config)) as store, pytest.raises(PayloadStoreError):
        store.publish("orders", b"x")
    assert "400" in caplog.text  # of urllib3, which logs each request too
    _check(caplog.text, versitygw.secret_key)


class LeakingStore:
    """A store of a user's own, whose client prints the URL and the configuration that failed."""

    def configure(self, config: dict[str, str]) -> None:
        """See `PayloadStore`."""
        self._password = config["leaking.password"]

    def publish(self, topic: str, data: bytes) -> str:  # the seed's signature
        """See `PayloadStore`."""
        return f"leaking://{topic}/1"

    def download(self, full_path: str) -> bytes:
        """See `PayloadStore`."""
        told = f"https://me:{PREVIOUS}@host/1?X-Amz-Signature={SIGNING} with {self._password}"
        raise PayloadNotFoundError(full_path) from OSError(told)


def test_a_cause_shows_no_secret(make_way: Callable[..., Way]) -> None:
    """What the client of a store says is in no dead letter, no log and no page: not a URL's secrets, nor known ones."""
    way = make_way(partitions=1)
    dead = f"{way.orders}-dead"
    more = {
        "large.message.payload.store.class": "tests.integration.test_secrets.LeakingStore",
        "leaking.password": TOKEN,
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": dead,
        "errors.deadletterqueue.context.headers.enable": True,
        "topic.creation.enable": True,
        "topic.creation.default.replication.factor": 1,
        "topic.creation.default.partitions": 1,
    }
    way.store = {}
    send(way.broker, way.orders, [(0, b"k", b"leaking://o/1", Reference("leaking://o/1").headers(), 1)])
    worker = _Loud(way.folder, way.settings(), way.inflate(**more))
    worker.start({})
    try:
        worker.wait_ready()
        until(lambda: end_offsets(way.broker, dead).get(0) == 1, "the letter is there")
        pages = "".join(worker.text(page) for page in ("/pipelines", "/metrics", "/connectors?expand=info"))
        worker.terminate()
    finally:
        worker.kill()
    (letter,) = read_all(way.broker, dead)[0]
    trace = dict(letter.headers)["__connect.errors.exception.stacktrace"]
    assert trace is not None
    assert "OSError: https://***@host/1?*** with ***" in trace.decode()
    _check(repr(letter))
    _check(worker.log.read_text())
    _check(pages)


def test_a_line_of_the_log_shows_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither its arguments nor the stack behind it, whoever has set up the handler."""
    logger, handler = logging.getLogger("a.client"), logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    try:
        for _ in range(2):
            hide_secrets(logger)
        known(TOKEN)
        error = ValueError(f"https://me:{PREVIOUS}@host")
        logger.error("it has failed with %s", TOKEN, exc_info=error)
    finally:
        logger.removeHandler(handler)
    said = capsys.readouterr().err
    assert said.startswith("it has failed with ***")
    assert "ValueError: https://***@host" in said
    _check(said)
