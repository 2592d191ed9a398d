"""docker/prepare.py, the one-shot service of docker-compose.yml, against a real broker and a real S3 server."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from app.config.settings import ClientSettings
from app.kafka.clients import admin
from app.kafka.topics import topics
from tests.forks import run
from tests.integration.worker_process import toml
from tests.s3_server import S3Server, free_port

ROOT = Path(__file__).parent.parent.parent


class Setting:
    """A configuration with its own names, and its command."""

    def __init__(self, broker: str, s3: S3Server, folder: Path) -> None:
        self.broker = broker
        name = f"prepare-{secrets.token_hex(4)}"
        self.bucket = name
        self.raw, self.orders = f"{name}-raw", f"{name}-orders"
        self.config = folder / "wideload.toml"
        pipeline = {
            "topics": [self.raw],
            "output.topic": self.orders,
            "transforms": ["offload"],
            "large.message.payload.store.class": "s3",
            "s3.endpoint": s3.endpoint,
            "s3.region": s3.region,
            "s3.bucket": self.bucket,
            "s3.access.key": "${env:S3_ACCESS_KEY}",
            "s3.secret.key": "${env:S3_SECRET_KEY}",
        }
        self.config.write_text(toml({"bootstrap.servers": broker}, {"offload": pipeline}), encoding="utf-8")
        self.environ = {**os.environ, "S3_ACCESS_KEY": s3.access_key, "S3_SECRET_KEY": s3.secret_key}

    def command(self, *arguments: str) -> list[str]:
        """What compose runs."""
        return [
            sys.executable,
            str(ROOT / "docker" / "prepare.py"),
            f"--config={self.config}",
            "--partitions=3",
            *arguments,
        ]

    def prepare(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs it."""
        return run(self.command(*arguments), environ=self.environ)

    def found(self) -> dict[str, tuple[int, int]]:
        """Partitions and max.message.bytes of the topics that exist."""

        async def look() -> dict[str, tuple[int, int]]:
            async with admin(ClientSettings(self.broker)) as connection:
                there = await topics(connection, [self.raw, self.orders])
            return {name: (topic.partitions, topic.max_message_bytes) for name, topic in there.items()}

        return asyncio.run(look())


@pytest.fixture
def setting(broker: str, versitygw: S3Server, tmp_path: Path) -> Setting:
    """Topics and a bucket that do not exist yet."""
    return Setting(broker, versitygw, tmp_path)


def test_prepare_creates_topics_and_bucket(setting: Setting) -> None:
    """All topics and buckets of the configuration exist afterwards, with the sizes of the command."""
    done = subprocess.run(  # with an interpreter of its own, as compose starts one
        setting.command(f"{setting.raw}=33554432", f"{setting.orders}=1048576"),
        env={**setting.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert setting.found() == {setting.raw: (3, 33_554_432), setting.orders: (3, 1_048_576)}
    assert f"bucket {setting.bucket} created" in done.stdout


def test_prepare_twice_changes_nothing(setting: Setting) -> None:
    """A second run succeeds, and changes nothing."""
    assert setting.prepare(f"{setting.raw}=33554432", f"{setting.orders}=1048576").returncode == 0
    done = setting.prepare(f"{setting.raw}=2000000", f"{setting.orders}=1048576")
    assert (done.returncode, done.stderr) == (0, "")
    assert "created" not in done.stdout
    assert setting.found()[setting.raw] == (3, 33_554_432)


def test_prepare_without_a_topic_of_the_configuration_creates_nothing(setting: Setting) -> None:
    """A topic of the configuration that the command does not list is an error, before anything is created."""
    done = setting.prepare(f"{setting.raw}=33554432")
    assert done.returncode == 2
    assert done.stderr == (
        f"prepare: [pipeline.offload] topics: topic {setting.orders} is not in the arguments; "
        f"add {setting.orders}=BYTES\n"
    )
    assert setting.found() == {}


def test_prepare_with_a_wrong_key_says_so_without_it(setting: Setting) -> None:
    """A refused credential gives one line without the secret, and status 1."""
    setting.environ["S3_SECRET_KEY"] = "not-the-secret"
    done = setting.prepare(f"{setting.raw}=33554432", f"{setting.orders}=1048576")
    assert done.returncode == 1
    assert done.stderr.startswith(f"prepare: bucket {setting.bucket} cannot be created: ")
    assert done.stderr.count("\n") == 1
    assert "not-the-secret" not in done.stdout + done.stderr


def test_prepare_without_a_broker_says_so(setting: Setting) -> None:
    """A broker that does not answer gives one line and status 2."""
    nowhere = f"127.0.0.1:{free_port()}"
    setting.config.write_text(setting.config.read_text(encoding="utf-8").replace(setting.broker, nowhere))
    done = setting.prepare(f"{setting.raw}=33554432", f"{setting.orders}=1048576")
    assert done.returncode == 2
    assert done.stderr.startswith(f"prepare: bootstrap.servers: no broker answers at {nowhere}")
    assert done.stderr.count("\n") == 1
