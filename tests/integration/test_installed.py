"""The wheel beside an application that has an `app`, `jobs`, `stores` and `transforms` of its own.

The environment is a new one with the wheel alone. It finds the dependencies in that of the tests, but not the checkout:
a `.pth` file adds the folder of the packages, and leaves out what the `.pth` files in there would do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.integration.rest import shown
from tests.integration.topics import read_all, send
from tests.integration.worker_process import WorkerProcess, toml, until

ROOT = Path(__file__).resolve().parents[2]
THEIRS = ("app", "jobs", "stores", "transforms")
VALUE = bytes(range(256)) * 8
FILESYSTEM = {"large.message.payload.store.class": "filesystem", "filesystem.root": "payloads"}
# The job is small: most of its time would go into compiling it.
QUICK = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

# The application has modules with the very names of ours.
STORE = """
from pathlib import Path
from wideload.errors import PayloadNotFoundError

class PayloadStore:
    KEYS = ["my.folder"]

    def configure(self, config):
        self.folder = Path(config["my.folder"])

    def publish(self, topic, data):
        path = self.folder / "payload"
        path.write_bytes(data)
        return str(path)

    def download(self, full_path):
        if not Path(full_path).exists():
            raise PayloadNotFoundError(full_path)
        return Path(full_path).read_bytes()
"""
ROUND_TRIP = """
import app, jobs, stores, transforms, wideload
from wideload import ComposableDeserializer, ComposableSerializer, SerializationError
assert {each.THEIRS for each in (app, jobs, stores, transforms)} == {True}
for config in (
    {"large.message.payload.store.class": "filesystem", "filesystem.root": "payloads"},
    {"large.message.payload.store.class": "stores.store.PayloadStore", "my.folder": "."},
):
    config = {**config, "large.message.threshold.bytes": 1000}
    writer = ComposableSerializer("wideload.serializers.LargeMessageSerializer", config)
    reader = ComposableDeserializer("wideload.LargeMessageDeserializer", config)
    headers, value = [], bytes(5000)
    sent = writer.serialize("orders", headers, value)
    assert len(sent) < 1000 and headers, "it was not offloaded"
    assert reader.deserialize("orders", list(headers), sent) == value
    try:
        reader.deserialize("orders", list(headers), sent + b"0")
    except SerializationError as error:
        print(type(error.__cause__).__name__)
print(wideload.__file__)
"""
FAUST_APP = """
import faust
from wideload.serializers.faust import LargeMessageSchema, LargeMessageTopic

STORE = {"large.message.payload.store.class": "filesystem", "filesystem.root": "payloads"}
app = faust.App("theirs", broker="kafka://127.0.0.1:9", Topic=LargeMessageTopic)
orders = app.topic("orders", value_serializer="raw", schema=LargeMessageSchema(STORE))

@app.agent(orders)
async def theirs(values):
    async for value in values:
        pass
"""
TYPED = """
from wideload import ComposableSerializer, LargeMessageSerializer, PayloadStore, SerializationError
from wideload.serializers.aiokafka import DeserializingConsumer, SerializingProducer
from wideload.stores import List, open_store
from wideload.wrapper import HeaderTable

class MyStore:
    def configure(self, config: object) -> None: ...
    def publish(self, topic: str, data: bytes) -> str:
        return topic
    def download(self, full_path: str) -> bytes:
        return b""
    def id(self, data: bytes) -> str:
        return "1"
    def close(self) -> None: ...

store: PayloadStore = MyStore()
value: bytes | None = ComposableSerializer([LargeMessageSerializer], {}).serialize("orders", [], b"")

async def copied(consumer: DeserializingConsumer, producer: SerializingProducer) -> None:
    try:
        await producer.send("orders", (await consumer.getone()).value)
    except SerializationError as error:
        print(error.topic, error.retriable)
"""
WRONG = """
from wideload import LargeMessageSerialiser, PayloadStore
from wideload.stores import open_store

store: PayloadStore = object()
open_store("s3")
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment with the wheel, and the folder of an application.

    Attributes:
        scripts: the folder with `python` and `wideload`.
        packages: site-packages.
        folder: the application's; commands run there.
    """

    scripts: Path
    packages: Path
    folder: Path

    def command(self, *words: str | Path) -> list[str]:
        """A command of the environment."""
        script, *arguments = map(str, words)
        return [str(self.scripts / script), *arguments]

    def run(self, *words: str | Path, status: int = 0, environ: Mapping[str, str] | None = None) -> str:
        """What a command prints; it has to end with `status`."""
        done = subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env={**clean(), **(environ or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


class InstalledWorker(WorkerProcess):
    """The command `wideload worker` of the environment, in the folder of the application."""

    def __init__(self, installed: Installed, worker: Mapping[str, object], pipeline: Mapping[str, object]) -> None:
        super().__init__(installed.folder, worker, {"orders": pipeline})
        self.installed = installed

    def command(self) -> list[str]:
        """What is run."""
        return self.installed.command("wideload", "worker", "-c", self.config)

    def _begin(self, log: IO[bytes], _: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command(), cwd=self.installed.folder, stdout=log, stderr=log, env=clean())


def clean() -> dict[str, str]:
    """The environment without what would lead to the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}


def new_environment(folder: Path, wheel: Path, *how: str) -> tuple[Path, Path]:
    """A new environment with the wheel alone; its folders of scripts and of packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip(folder, "install", "--no-index", "--no-deps", *how, wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    return folder / "bin", packages


def pip(folder: Path | None, *arguments: str | Path) -> None:
    """Runs pip for an environment, without a network."""
    which = () if folder is None else ("--python", folder / "bin" / "python")
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *which, *arguments], env=clean(), check=True
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    pip(None, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment that has the dependencies too, beside an application."""
    scripts, packages = new_environment(tmp_path_factory.mktemp("environment"), wheel)
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    folder = tmp_path_factory.mktemp("application")
    for name in THEIRS:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("THEIRS = True\n")
    (folder / "stores" / "store.py").write_text(STORE)
    return Installed(scripts, packages, folder)


def test_wheel_has_one_name_at_the_top(wheel: Path) -> None:
    """Nothing of ours but `wideload` lands in site-packages, and the wheel says that it is typed."""
    files = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in files if ".dist-info/" not in name} == {"wideload"}
    assert "wideload/py.typed" in files
    assert "wideload/_internal/app/local/jars.lock" in files
    pages = {
        f"wideload/_internal/{path.relative_to(ROOT)}"
        for path in (*ROOT.glob("app/web/static/*"), *ROOT.glob("docs/*.md"))
    }
    assert pages <= set(files)
    assert not [name for name in files if "__pycache__" in name or name.startswith("wideload/tests")]


def test_checkout_is_not_seen(installed: Installed) -> None:
    """The environment of the tests below has no `app` but that of the application."""
    code = "import importlib.util as u; print([n for n in ('app', 'jobs', 'stores', 'transforms') if u.find_spec(n)])"
    assert installed.run("python", "-P", "-c", code) == "[]\n"


def test_uninstall_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    """After `pip uninstall` the environment has what it had before, though the package was used."""
    scripts, packages = new_environment(tmp_path / "environment", wheel, "--no-compile")
    assert sorted(path.name for path in packages.iterdir()) == [
        "wideload",
        wheel.name.partition("-py3")[0] + ".dist-info",
    ]
    used = [str(scripts / "python"), "-c", "import wideload.errors, wideload.stores"]
    subprocess.run(used, cwd=tmp_path, env=clean(), check=True)
    assert list(packages.rglob("*.pyc"))
    pip(tmp_path / "environment", "uninstall", "--yes", "wideload")
    assert list(packages.iterdir()) == []
    assert not (scripts / "wideload").exists()


def test_command_of_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    """Without the extra `worker`, the command says in one line what to install, however it is called."""
    scripts, _ = new_environment(tmp_path / "environment", wheel, "--no-compile")
    for command in ([f"{scripts}/wideload", "worker"], [f"{scripts}/python", "-m", "wideload"]):
        done = subprocess.run(command, cwd=tmp_path, env=clean(), capture_output=True, text=True, check=False)
        said = "wideload: click is not installed; run: pip install 'wideload[worker]'\n"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_serializer_beside_an_application(installed: Installed) -> None:
    """Stages and the application's own store are found by their paths, each where it is: ours and theirs."""
    *causes, place = installed.run("python", "-c", ROUND_TRIP).splitlines()
    assert causes == ["PayloadNotFoundError", "PayloadNotFoundError"]
    assert place == str(installed.packages / "wideload" / "__init__.py")


def test_processes_get_the_folder_of_the_package(installed: Installed) -> None:
    """What Spark's Python workers and the demo's processes get as PYTHONPATH holds `wideload`, and no `app` of ours."""
    code = "from wideload._internal.jobs.driver import session; from wideload._internal.app.commands import demo"
    said = installed.run("python", "-c", code + "; print(session._CODE, demo._ROOT)")
    assert said.split() == [str(installed.packages)] * 2


def test_command_line_beside_an_application(installed: Installed) -> None:
    """The script and the module are the same; each command and each job is found where the package is."""
    assert installed.run("wideload", "--version") == installed.run("python", "-m", "wideload", "--version")
    commands = installed.run("wideload", "--help")  # imports the module of each command
    assert all(name in commands for name in ("worker", "consume", "dlq", "names"))
    assert installed.run("wideload", "job", "sweep", "--help").startswith("usage: sweep ")


def test_faust_app_named_app(installed: Installed, tmp_path: Path) -> None:
    """`faust -A app` runs the user's app.py, which imports our schema; `-A wideload.worker` runs our app."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "app.py").write_text(FAUST_APP)
    alone = Installed(installed.scripts, installed.packages, folder)
    assert "@theirs" in alone.run("python", "-m", "faust", "-A", "app", "agents")
    config = tmp_path / "wideload.toml"
    config.write_text(
        toml(
            {"bootstrap.servers": "127.0.0.1:9"},
            {"inflating": {"topics": ["raw"], "output.topic": "orders", "transforms": ["inflate"], **FILESYSTEM}},
        )
    )
    ours = installed.run(
        "python", "-m", "faust", "-A", "wideload.worker", "agents", environ={"WIDELOAD_CONFIG": str(config)}
    )
    assert "Agents" in ours


@pytest.mark.slow
def test_users_file_is_typed(installed: Installed, tmp_path: Path) -> None:
    """`mypy --strict` passes a file that imports from `wideload`, and finds what is wrong in another one."""
    (installed.folder / "typed.py").write_text(TYPED)
    (installed.folder / "wrong.py").write_text(WRONG)
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "--config-file="),
            *("--cache-dir", tmp_path, "--python-executable", installed.scripts / "python", "typed.py", "wrong.py"),
        ],
        cwd=installed.folder,
        env=clean(),
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in checked.stdout.splitlines() if ": error: " in line]
    assert [line.partition(":")[0] for line in errors] == ["wrong.py"] * 3, checked.stdout + checked.stderr
    assert [line.rpartition(" ")[2] for line in errors] == ["[attr-defined]", "[assignment]", "[arg-type]"]


@pytest.mark.slow
@pytest.mark.spark
def test_worker_and_spark_job_beside_an_application(
    installed: Installed, broker: str, make_topic: Callable[..., str]
) -> None:
    """`wideload check` and the worker run where the application is; so does a Spark job, on executors too."""
    raw, orders = make_topic(), make_topic()
    store = {**FILESYSTEM, "filesystem.root": str(installed.folder / "payloads")}
    to = {"topics": [raw], "output.topic": orders, "transforms": ["offload"], "large.message.threshold.bytes": 1000}
    send(broker, raw, [(0, b"k", VALUE, [], 1_600_000_000_000)])
    worker = InstalledWorker(installed, {"bootstrap.servers": broker}, {**to, **store})
    assert installed.run("wideload", "check", "-c", worker.config).splitlines()[-1] == "OK"
    with worker:
        until(lambda: read_all(broker, orders).get(0), "the worker has offloaded the value")
        assert "<h1>Wideload" in shown(worker.port, "/")[1]
        assert shown(worker.port, "/docs/worker.md")[1].startswith("# The worker")
        # Loggers have the names that they have in the checkout.
        assert "INFO wideload.pipeline.flow: pipeline orders reads" in worker.log.read_text()
        loggers = worker.get("/admin/loggers")[1]
        assert {"wideload.pipeline", "wideload.web.rest"} <= set(loggers)
        assert not [name for name in loggers if name.startswith(("wideload._", *THEIRS))]
        assert worker.terminate() == 0
    (found,) = read_all(broker, orders)[0]
    assert len(found.value or b"") < len(VALUE)

    from app.local import jars, spark_start

    keys = [word for key, value in store.items() for word in ("--store", f"{key}={value}")]
    report = installed.run(
        *("python", "-m", "wideload.jobs.audit", "--bootstrap-servers", broker, "--topic", orders, *keys),
        *("--jars", ",".join(map(str, jars.ensure("spark"))), "--master", "local[1]"),
        *(word for key, value in QUICK.items() for word in ("--conf", f"{key}={value}")),
        environ={"SPARK_LOCAL_IP": "127.0.0.1", **spark_start.environ(short_run=True)},
    )
    summary = json.loads(report.splitlines()[-1])
    assert (summary["status"], summary["topics"]) == ("ok", {orders: {"ok": 1}})


def test_code_of_the_jobs_as_a_zip(installed: Installed, tmp_path: Path) -> None:
    """The archive from an installed package has the package under its name, without the worker, and can be imported."""
    installed.run("python", "-m", "wideload.jobs.archive", tmp_path / "jobs.zip")
    names = zipfile.ZipFile(tmp_path / "jobs.zip").namelist()
    assert {name.partition("/")[0] for name in names} == {"wideload"}
    app = "wideload/_internal/app/"
    of_app = {name.removeprefix(app).partition("/")[0] for name in names if name.startswith(app)}
    assert of_app == {"__init__.py", "config", "kafka", "payloads"}
    code = "import wideload.jobs.inflate as m, wideload.stores.s3; print(m.inflate.__module__, m.__file__)"
    (installed.folder / "alone.py").write_text(code)
    bare = {"PYTHONPATH": f"{tmp_path / 'jobs.zip'}{os.pathsep}{sysconfig.get_path('purelib')}"}
    said = subprocess.run(
        [sys.executable, "-S", "alone.py"],
        cwd=installed.folder,
        env={**clean(), **bare},
        capture_output=True,
        check=True,
    ).stdout.decode()
    assert said == f"wideload._internal.jobs.inflate {tmp_path / 'jobs.zip'}/wideload/jobs/inflate.py\n"


def test_script_of_the_image_runs(installed: Installed) -> None:
    """docker/prepare.py, which is no part of the package, finds its modules in an installed one."""
    assert "TOPIC=BYTES" in installed.run("python", ROOT / "docker" / "prepare.py", "--help")
