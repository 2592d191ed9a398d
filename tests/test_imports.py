"""Who may know what: the imports of each folder, as docs and design say them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("app", "transforms", "stores", "jobs")

OURS = {
    "app": {"app", "transforms", "stores"},
    "jobs": {"jobs", "transforms", "stores"},
    "stores": {"stores", "transforms"},
    "transforms": {"transforms"},
}
ONLY_IN: dict[str, str | tuple[str, ...]] = {
    "boto3": "stores/s3",
    "botocore": "stores/s3",
    "pyspark": "jobs/",
    "py4j": "jobs/",
    "faust": "app/",
    "aiokafka": ("app/", "jobs/log", "jobs/backfill"),
    "confluent_kafka": "app/serializers/confluent",
    "kafka": "app/serializers/kafka_python",
}
# What would give a transform a clock, an event loop, a thread or a way out.
IMPURE = {
    "asyncio", "concurrent", "datetime", "http", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "shutil", "signal", "socket", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip


def imported(source: str) -> Iterator[str]:
    """The full name of everything that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # A relative import is one of the folder's own.
            assert node.level == 0, f"relative import of {node.module}: this project imports by full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(path: str, source: str) -> list[str]:
    """What the module at `path` imports though its folder may not."""
    folder = path.partition("/")[0]
    found = []
    for name in imported(source):
        top = name.partition(".")[0]
        ours = top in {*FOLDERS, "tests", "benchmarks"}
        allowed = any(name == prefix or name.startswith(f"{prefix}.") for prefix in OURS[folder])
        impure = folder == "transforms" and top in IMPURE
        if (ours and not allowed) or impure or not path.startswith(ONLY_IN.get(top, "")):
            found.append(f"{path} imports {name}")
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_point_one_way(folder: str) -> None:
    """No module imports what its folder may not know about."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths
    assert [found for path in paths for found in violations(str(path.relative_to(ROOT)), path.read_text())] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("transforms/chunk.py", "import time"),
        ("transforms/chunk.py", "def f():\n    from os import path"),
        ("transforms/chunk.py", "import aiokafka.record"),
        ("transforms/chunk.py", "from stores.store import PayloadStore"),
        ("transforms/chunk.py", "if TYPE_CHECKING:\n    import app.config.settings"),
        ("stores/filesystem.py", "from app.config.settings import Settings"),
        ("stores/filesystem.py", "import boto3"),
        ("stores/s3.py", "import app"),
        ("app/worker.py", "from jobs import ingest"),
        ("app/kafka/clients.py", "import confluent_kafka"),
        ("app/serializers/stage.py", "from kafka.serializer import Serializer"),
        ("app/worker.py", "from pyspark.sql import SparkSession"),
        ("app/worker.py", "from botocore.config import Config"),
        ("app/worker.py", "from tests.conftest import broker"),
        ("jobs/ingest.py", "import app.local.jars"),
        ("jobs/ingest.py", "import faust"),
    ],
)
def test_violation_is_found(path: str, source: str) -> None:
    """Each rule refuses what breaks it."""
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("transforms/chunk.py", "import hashlib\nfrom transforms.record import Record"),
        ("stores/s3.py", "import boto3\nfrom transforms.errors import PayloadStoreError"),
        ("app/worker.py", "import faust\nimport stores\nfrom transforms import offload"),
        ("app/serializers/kafka_python.py", "from kafka import KafkaProducer"),
        ("jobs/ingest.py", "from pyspark.sql import SparkSession\nfrom stores.registry import open_store"),
    ],
)
def test_allowed_is_not_found(path: str, source: str) -> None:
    """What a folder may know about passes."""
    assert violations(path, source) == []
