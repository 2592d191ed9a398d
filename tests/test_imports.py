"""Which directory and which room may import which, and that there are no circular imports.

The tables read like those of docs/architecture.md. Imports count wherever they stand: in functions, and below `if
TYPE_CHECKING` too.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("app", "transforms", "stores", "jobs", "wideload")
EVERYTHING = "*"

# What each directory may import of ours, in addition to its own modules.
MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    "app": ("transforms", "stores"),
    "jobs": ("app.payloads", "app.kafka", "app.config", "transforms", "stores"),
    "stores": ("transforms",),
    "transforms": (),
    "wideload": ("app", "jobs", "stores", "transforms"),
}
# What each room may import of its house, in addition to its own modules. "" is the root, which no room imports.
ROOMS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "app": {
        "": (EVERYTHING,),
        "commands": (
            "pipeline", "chunks", "serializers", "deadletters", "cluster", "payloads", "kafka", "config", "local",
        ),
        "web": ("pipeline.background", "pipeline.report", "pipeline.stats", "config"),
        "pipeline": ("deadletters", "cluster", "kafka", "config"),
        "serializers": ("chunks", "kafka", "config"),
        "chunks": ("kafka", "config"),
        "deadletters": ("cluster", "kafka", "config"),
        "cluster": ("kafka", "config"),
        "payloads": ("kafka", "config"),
        "kafka": ("config",),
        "config": (),
        "local": (),
    },
    "jobs": {
        "": (EVERYTHING,),
        "ingesting": ("reading", "records", "driver"),
        "copying": ("reading", "records", "driver"),
        "payloads": ("reading", "records", "driver"),
        "reading": ("records", "driver"),
        "records": ("driver",),
        "driver": (),
    },
}  # fmt: skip
# `local` sets up the machine: it runs before anything is installed, so it knows no store.
NOT_IN: Mapping[str, tuple[str, ...]] = {"app/local": ("stores",)}
ONLY_IN: Mapping[str, tuple[str, ...]] = {
    "boto3": ("stores/kms", "stores/s3"),
    "botocore": ("stores/kms", "stores/s3"),
    "obstore": ("stores/cloud_client", "stores/gcs", "stores/azure"),
    "google": ("stores/gcs_token", "jobs/ingesting/protobuf_values"),
    "grpc_tools": ("jobs/ingesting/protobuf_values",),
    "fastavro": ("jobs/ingesting/avro_values",),
    "re2": ("jobs/ingesting/json_values",),
    "pyspark": ("jobs/",),
    "py4j": ("jobs/",),
    "faust": ("app/",),
    "click": ("app/cli.py", "app/commands/"),
    "aiohttp": ("app/web/",),
    "aiokafka": (
        "app/kafka/",
        "app/cluster/",
        "app/deadletters/",
        "app/chunks/",
        "app/serializers/",
        "app/commands/",
        "app/log_filters",
        "app/payloads/",
        "jobs/reading/",
        "jobs/copying/",
    ),
    "confluent_kafka": ("app/serializers/confluent",),
    "kafka": ("app/serializers/kafka_python",),
}
# What would give a transform a clock, an event loop, a thread or a way out.
IMPURE = {
    "asyncio", "concurrent", "datetime", "http", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "shutil", "signal", "socket", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
# What would give the data plane a separate clock, thread or random number; `app.pipeline.runtime` has them.
OF_THE_MACHINE = (
    "asyncio.to_thread", "concurrent", "os.urandom", "random", "secrets", "threading.Thread", "threading.Timer", "time",
    "uuid",
)  # fmt: skip
CALLS_OF_THE_MACHINE = {"now", "run_in_executor", "to_thread", "today", "utcnow"}


def sources() -> dict[str, str]:
    """Every module of the four directories, by its path."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@functools.cache
def parsed(source: str) -> ast.Module:
    """The source as a tree, which several checks walk."""
    return ast.parse(source)


def imported(source: str) -> Iterator[str]:
    """The full name of everything that a module imports, wherever in it."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}: this project imports by full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_below(name: str, prefixes: Iterable[str]) -> bool:
    """Whether a dotted name is one of the prefixes, or below one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def room_of(dotted: str) -> str:
    """The room in which a module of `app` or `jobs` stands; "" is the root."""
    house, _, rest = dotted.partition(".")
    first = rest.partition(".")[0]
    return first if first in ROOMS[house] else ""


def violations(path: str, source: str) -> list[str]:
    """What the module at `path` imports though its directory or its room may not."""
    folder = path.partition("/")[0]
    module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return [
        f"{path} imports {name}"
        for name in imported(source)
        if breaks_folder(folder, path, name) or breaks_room(folder, module, name)
    ]


def breaks_folder(folder: str, path: str, name: str) -> bool:
    """Whether a directory may not import this."""
    top = name.partition(".")[0]
    ours = top in {*FOLDERS, "tests", "benchmarks"}
    if ours and not is_below(name, (folder, *MAY_IMPORT[folder])):
        return True
    if folder == "transforms" and top in IMPURE:
        return True
    if any(path.startswith(f"{place}/") and top in tops for place, tops in NOT_IN.items()):
        return True
    return not path.startswith(ONLY_IN.get(top, ("",)))


def breaks_room(house: str, module: str, name: str) -> bool:
    """Whether a room may not import this of its house."""
    if house not in ROOMS or not is_below(name, (house,)):
        return False
    room = room_of(module)
    allowed = ROOMS[house][room]
    if EVERYTHING in allowed:
        return False
    return not is_below(name.removeprefix(f"{house}."), (room, *allowed))


def machinery(path: str, source: str) -> list[str]:
    """What a module of the data plane takes from the machine itself, and not from its constructors."""
    if not path.startswith("app/pipeline/") or path == "app/pipeline/runtime.py":
        return []
    names = [name for name in imported(source) if is_below(name, OF_THE_MACHINE)]
    used = [ast.unparse(node) for node in ast.walk(parsed(source)) if isinstance(node, ast.Attribute)]
    names += [
        name for name in used if is_below(name, OF_THE_MACHINE) or name.rpartition(".")[2] in CALLS_OF_THE_MACHINE
    ]
    return [f"{path} uses {name}" for name in names]


def circle(modules: Mapping[str, str]) -> set[str]:
    """The modules, of those at these paths, of which each imports the next; none where no circle is."""
    names = {path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path for path in modules}
    graph = {name: {nearest(each, names) for each in imported(modules[path])} for name, path in names.items()}
    try:
        graphlib.TopologicalSorter({name: found - {name, None} for name, found in graph.items()}).prepare()
    except graphlib.CycleError as exc:
        return set(exc.args[1])
    return set()


def nearest(name: str, modules: Mapping[str, str]) -> str | None:
    """The module that an imported name is, or is in; None where it is none of these."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def executed(source: str) -> Iterator[str]:
    """The packages that a module imports when it runs: not those below `if TYPE_CHECKING`."""
    tree = parsed(source)
    hidden = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_types = {each for node in hidden for statement in node.body for each in ast.walk(statement)}
    for node in ast.walk(tree):
        if node not in for_types and isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            yield from (name.partition(".")[0] for name in names)


def users_packages() -> set[str]:
    """The distributions that a user of Wideload gets, with all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {re.split(r"[=<>]", each)[0] for group in project["optional-dependencies"].values() for each in group}
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return {*re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE), *extras, "py4j"}  # pyspark brings py4j


def brought_by(name: str) -> set[str]:
    """The names under which an installed distribution is imported; none where it is for other systems."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return set()
    declared = (found.read_text("top_level.txt") or "").split()
    if declared:
        return set(declared)
    # Each line of RECORD begins with the path of a file: package/module.py, module.py, module.cpython-311.so.
    files = [line.partition(",")[0] for line in (found.read_text("RECORD") or "").splitlines()]
    return {file.partition("/")[0].partition(".")[0] for file in files if file.endswith((".py", ".so", ".pyd"))}


def test_nothing_that_only_developers_install_is_imported() -> None:
    """A module runs without the stubs and tools of developers; what is only for types is below `if TYPE_CHECKING`."""
    known = {*sys.stdlib_module_names, *FOLDERS, *(name for each in users_packages() for name in brought_by(each))}
    of_modules = {path: set(executed(source)) - known for path, source in sources().items()}
    assert {path: names for path, names in of_modules.items() if names} == {}


def test_imports_point_one_way() -> None:
    """No module imports what its directory or its room may not know about; and `app/pipeline` has no separate clock."""
    found = sources()
    assert {path.partition("/")[0] for path in found} == set(FOLDERS)
    assert [each for path, source in found.items() for each in violations(path, source) + machinery(path, source)] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time", True),
        ("from time import monotonic", True),
        ("def f():\n    import random", True),
        ("from concurrent.futures import ThreadPoolExecutor", True),
        ("from uuid import uuid4", True),
        ("import threading\nthreading.Thread(target=print).start()", True),
        ("from threading import Timer", True),
        ("import asyncio\nasyncio.get_running_loop().run_in_executor(None, print)", True),
        ("import asyncio\nf = asyncio.to_thread", True),
        ("from asyncio import to_thread", True),
        ("from datetime import datetime\ndatetime.now()", True),
        ("import os\nos.urandom(4)", True),
        ("import threading\nthreading.Lock()", False),
        ("from datetime import UTC, datetime", False),
    ],
)
def test_what_the_data_plane_takes_from_the_machine_is_found(source: str, *, found: bool) -> None:
    """Each name of the clock, of threads and of chance is refused, wherever in a module; its own module has them."""
    assert bool(machinery("app/pipeline/flow.py", source)) is found
    assert machinery("app/pipeline/runtime.py", source) == machinery("app/kafka/consumer.py", source) == []


def test_no_circles() -> None:
    """No modules import each other in a circle, not for types either."""
    assert circle(sources()) == set()


@pytest.mark.parametrize("house", ROOMS)
def test_rooms_are_those_of_the_table(house: str) -> None:
    """Every directory of a house is a room, and states what it owns; each is before those that it may import."""
    rooms = {path.parent.name: path for path in (ROOT / house).glob("*/__init__.py")}
    order = list(ROOMS[house])
    assert {"", *rooms} == set(order)
    assert [room for room, path in rooms.items() if not ast.get_docstring(ast.parse(path.read_text()))] == []
    for room, allowed in ROOMS[house].items():
        below = [each.partition(".")[0] for each in allowed if each != EVERYTHING]
        assert all(order.index(each) > order.index(room) for each in below)


@pytest.mark.parametrize(
    ("path", "source", "count"),
    [
        ("transforms/chunk.py", "import time", 1),
        ("transforms/chunk.py", "def f():\n    from os import path", 1),
        ("transforms/chunk.py", "import aiokafka.record", 1),
        ("transforms/chunk.py", "from stores.store import PayloadStore", 1),
        ("transforms/chunk.py", "if TYPE_CHECKING:\n    import app.config.settings", 1),
        ("stores/filesystem.py", "from app.config.settings import Settings", 1),
        ("stores/filesystem.py", "import boto3", 1),
        ("stores/s3.py", "import app", 1),
        ("app/worker.py", "from jobs import ingest", 1),
        ("app/kafka/clients.py", "import confluent_kafka", 1),
        ("app/serializers/stage.py", "from kafka.serializer import Serializer", 1),
        ("app/worker.py", "from pyspark.sql import SparkSession", 1),
        ("app/worker.py", "from botocore.config import Config", 1),
        ("app/worker.py", "from tests.conftest import broker", 1),
        ("app/pipeline/flow.py", "import click", 1),
        ("app/pipeline/flow.py", "from aiohttp import web", 1),
        ("app/pipeline/flow.py", "def f():\n    from aiokafka.errors import KafkaError", 1),
        ("app/web/pages.py", "if TYPE_CHECKING:\n    from aiokafka import TopicPartition", 1),
        ("jobs/ingest.py", "import app.local.jars", 1),
        ("jobs/ingest.py", "import faust", 1),
        ("jobs/records/arrow.py", "import aiokafka", 1),
        ("app/local/jars.py", "from stores.store import PayloadStore", 1),
        ("app/worker.py", "from wideload import LargeMessageSerializer", 1),
        ("wideload/chunks.py", "import aiokafka", 1),
        ("app/commands/consume.py", "from app.web.pages import health", 1),
        ("app/commands/consume.py", "from app.run import run_worker", 1),
        ("app/web/pages.py", "from app.pipeline.flow import Flow", 1),
        ("app/web/pages.py", "if TYPE_CHECKING:\n    from app.kafka.topics import Topic", 1),
        ("app/pipeline/flow.py", "from app.chunks import AssemblingConsumer", 1),
        ("app/pipeline/flow.py", "def f():\n    from app.commands.console import Rows", 1),
        ("app/chunks/keys.py", "from app.serializers.options import LIMIT", 1),
        ("app/serializers/options.py", "from app.pipeline.stages import Stage", 1),
        ("app/deadletters/writer.py", "from app.pipeline.lane import Item", 1),
        ("app/cluster/preflight.py", "from app.deadletters.writer import Letters", 1),
        ("app/kafka/clients.py", "from app.cluster.preflight import Plan", 1),
        ("app/config/chunking.py", "from app.kafka.topics import Topic", 1),
        ("app/local/broker.py", "import app.config.settings", 1),
        ("app/local/broker.py", "import app", 1),
        ("jobs/copying/range.py", "from jobs.ingesting.options import parser", 1),
        ("jobs/payloads/spark_engine.py", "from jobs.sweep import main", 1),
        ("jobs/reading/log.py", "from jobs.copying.range import Range", 1),
        ("jobs/records/arrow.py", "from jobs.reading.log import Log", 1),
        ("jobs/driver/session.py", "from jobs.records.arrow import headers", 1),
        ("transforms/chunk.py", "import hashlib\nfrom transforms.record import Record", 0),
        ("stores/s3.py", "import boto3\nfrom transforms.errors import PayloadStoreError", 0),
        ("app/worker.py", "import faust\nimport stores\nfrom transforms import offload", 0),
        ("app/worker.py", "from app.web.pages import add_pages", 0),
        ("app/web/pages.py", "from app.pipeline.stats import PipelineReport\nfrom app.web.metrics import Metrics", 0),
        ("app/pipeline/flow.py", "from app.kafka.batches.batch import Batch", 0),
        ("app/serializers/kafka_python.py", "from kafka import KafkaProducer", 0),
        ("jobs/ingest.py", "from pyspark.sql import SparkSession\nfrom stores.registry import open_store", 0),
        ("jobs/copying/range.py", "from jobs.records.arrow import headers", 0),
    ],
)
def test_each_rule_is_held(path: str, source: str, count: int) -> None:
    """What a directory or a room may not know about is found, once; the rest passes."""
    assert len(violations(path, source)) == count


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ({"app/a.py": "from app.b import B", "app/b.py": "import app.a"}, {"app.a", "app.b"}),
        ({"app/a.py": "from app import b", "app/b.py": "if TYPE_CHECKING: import app.a"}, {"app.a", "app.b"}),
        (
            {"app/a.py": "from app.b import B", "app/b.py": "import app.c", "app/c.py": "def f(): import app.a"},
            {"app.a", "app.b", "app.c"},
        ),
        ({"app/a.py": "from app.b import B\nfrom app.c import C", "app/b.py": "import app.c", "app/c.py": ""}, set()),
    ],
)
def test_circle_is_found(modules: dict[str, str], found: set[str]) -> None:
    """A circle is found however long it is, and wherever in a module the import stands."""
    assert circle(modules) == found
