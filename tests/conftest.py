"""What all tests share: the broker, topics, the Spark session, and markers. How they run stands in `tests/runner`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import os
import random
import re
import secrets
import signal
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

# Each process of a run begins with this file, and the first one, which runs no test, before it starts the others. So
# what only a fixture needs is imported there.
if TYPE_CHECKING:
    from aiokafka.admin import AIOKafkaAdminClient
    from pyspark.sql import SparkSession

    from tests.integration.way import MakeTopic, Way
    from tests.kafka_release import Release
    from tests.s3_server import S3Server

# A property does not fail because the machine was busy.
settings.register_profile("wideload", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Thousands of mutants are tried (tests/mutants.py), each with the same examples.
settings.register_profile("mutants", settings.get_profile("wideload"), max_examples=50, derandomize=True, database=None)
settings.load_profile("mutants" if "MUTANT_UNDER_TEST" in os.environ else "wideload")

_TESTS = Path(__file__).parent
_TOPIC_SECONDS = 30
_SLOW_TIMEOUT_S = 900
_REDPANDA_IMAGE = "docker.redpanda.com/redpandadata/redpanda:v24.2.7"
_QUICK = {"log.cleaner.backoff.ms": "500"}  # a test waits for the log cleaner, which rests for 15 s
_FIXTURE_MARKERS = {
    "azurite": "cloud",
    "broker": "integration",
    "gcs": "cloud",
    "minio": "minio",
    "make_topic": "integration",
    "plain": "s3",
    "server": "s3",
    "spark": "spark",
    "versitygw": "s3",
}
_S3_SERVERS = {"minio", "rclone", "versitygw", "versitygw-nometa"}
_CLOUDS = {"azure", "gcs"}
_NOT_UNIT = {"integration", "s3", "cloud", "spark", "browser", "chaos"}

pytest_plugins = [f"tests.runner.{name}" for name in ("collection", "distribution", "progress")]

_broker_told = pytest.StashKey[str]()
_brokers_of_workers = pytest.StashKey[list[str]]()
_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds what `make chaos` uses: how much, and which chance."""
    group = parser.getgroup("chaos")
    volumes = "how much the tests of the marker chaos do (%(default)s)"
    group.addoption("--chaos", choices=("short", "long"), default="short", help=volumes)
    seed = "of what is random in tests; by default 1, and with --chaos=long another one each time"
    group.addoption("--seed", type=int, help=seed)


def pytest_configure(config: pytest.Config) -> None:
    """Lets an interrupt reach the processes that tests start, also under `nohup` and the like, which ignore it.

    A process that is started while its parent ignores SIGINT ignores it too, and a test that sends one would wait
    forever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not config.getoption("numprocesses", None):  # else this process runs no tests
        from tests.s3_models import share_models

        share_models()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Collects what a failed test has left open. Else the next test would get the warnings, and fail for them."""
    failed_before = item.session.testsfailed
    try:
        return (yield)
    finally:
        if item.session.testsfailed > failed_before:
            # pytest keeps the traceback of the failure, which holds the frames and so what was open in them.
            sys.last_value = sys.last_traceback = None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Lets the summary name each exception of a group. Of a run elsewhere, a line may be all that there is to read."""
    report = yield
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and call.excinfo is not None and isinstance(call.excinfo.value, BaseExceptionGroup):
        crash.message = "; ".join(repr(each.__cause__ or each) for each in call.excinfo.value.exceptions)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sets the markers that follow from the directory and from the fixtures."""
    for item in items:
        names = _markers(item)
        for name in names:
            item.add_marker(name)
        if "spark" in names or ("integration" in names and _has_kafka_python(item.path)):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            item.fixturenames.append("_left_sockets")  # type: ignore[attr-defined] # of pytest.Function
        if item.get_closest_marker("needs_kafka") is not None:
            item.fixturenames.insert(0, "_new_enough")  # type: ignore[attr-defined] # of pytest.Function
        if item.get_closest_marker("slow") or item.get_closest_marker("chaos"):
            item.add_marker(pytest.mark.timeout(_SLOW_TIMEOUT_S))
        if _NOT_UNIT.isdisjoint(marker.name for marker in item.iter_markers()):
            item.add_marker("unit")


def _markers(item: pytest.Item) -> set[str]:
    fixtures = getattr(item, "fixturenames", ())
    names = {marker for fixture, marker in _FIXTURE_MARKERS.items() if fixture in fixtures}
    if item.path.is_relative_to(_TESTS / "integration"):
        names.add("integration")
    params = getattr(getattr(item, "callspec", None), "params", {})
    texts = {each for each in params.values() if isinstance(each, str)}
    if texts & _S3_SERVERS or "minio" in names:
        names.add("s3")
    if params.get("configured") in _CLOUDS:
        names.add("cloud")
    return names | texts & {"minio"}


@functools.cache
def _has_kafka_python(path: Path) -> bool:
    """Whether a file of tests names kafka-python, our classes on it, or the clients of which those are some."""
    text = path.read_text(encoding="utf-8")
    return re.search(r"kafka_python|KafkaPython|client_readers|client_writers|\bkafka import", text) is not None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Reports to the printing process which broker this worker of pytest-xdist had."""
    told = session.config.stash.get(_broker_told, None)
    if told is not None and hasattr(session.config, "workeroutput"):
        session.config.workeroutput["broker"] = told


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Notes what a worker reported."""
    told = getattr(node, "workeroutput", {}).get("broker")
    if told is not None:
        node.config.stash.setdefault(_brokers_of_workers, []).append(told)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says which broker the tests ran on, or which brokers."""
    own = config.stash.get(_broker_told, None)
    for told in sorted({*config.stash.get(_brokers_of_workers, []), *([own] if own else [])}):
        terminalreporter.write_line(f"broker: {told}")


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> Iterator[str]:
    """`bootstrap.servers` of a real broker: that of KAFKA_BOOTSTRAP_SERVERS, else Redpanda, else the embedded node."""
    with contextlib.ExitStack() as stack:
        told, bootstrap = _any_broker(stack)
        pytestconfig.stash[_broker_told] = f"{told} at {bootstrap}"
        yield bootstrap


@pytest.fixture
def _new_enough(request: pytest.FixtureRequest, kafka_release: Release) -> None:
    """Skips a test of the marker `needs_kafka` with an older broker."""
    from tests.kafka_release import text_of

    marker = request.node.get_closest_marker("needs_kafka")
    if marker is None:
        return  # of a function of which another case has it: they share the names of their fixtures
    needed, why = marker.args
    if kafka_release < needed:
        pytest.skip(f"needs Kafka {text_of(needed)}, and the broker is one of {text_of(kafka_release)}: {why}")


@pytest.fixture(scope="session")
def kafka_release(broker: str) -> Release:
    """How new the broker is."""
    from tests.kafka_release import release_of

    return release_of(broker)


@pytest.fixture
def chaos(pytestconfig: pytest.Config) -> str:
    """How much a test of the marker `chaos` does: `short` in `make test`, `long` in `make chaos`."""
    return str(pytestconfig.getoption("chaos"))


@pytest.fixture
def seed(pytestconfig: pytest.Config, chaos: str) -> int:
    """Of what is random in a test: `--seed N`, else 1, and for long chaos another one each time. It is printed."""
    given: int | None = pytestconfig.getoption("seed")
    chosen = given if given is not None else 1 if chaos == "short" else secrets.randbelow(2**32)
    print(f"seed {chosen}: to have it again, --chaos={chaos} --seed={chosen}")  # noqa: T201  # pytest shows it
    return chosen


@pytest.fixture
def rng(seed: int) -> random.Random:
    """What is random in a test."""
    return random.Random(seed)


@pytest.fixture
def least_session_ms(broker: str, pytestconfig: pytest.Config) -> int:
    """The shortest session that the broker lets a consumer have: the embedded one is set to one second."""
    return 2_000 if pytestconfig.stash[_broker_told].startswith("embedded") else 6_000


@pytest.fixture(scope="module")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server for the tests of a file."""
    from tests.s3_server import s3_server_or_skip

    with s3_server_or_skip("versitygw", tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def make_way(broker: str, make_topic: MakeTopic, tmp_path: Path, least_session_ms: int) -> Callable[..., Way]:
    """Makes the topics and the configuration of one test."""
    from tests.integration.way import PARTITIONS, Way

    def make(partitions: int = PARTITIONS, large: int = 2_000_000) -> Way:
        return Way(broker, make_topic, tmp_path, partitions=partitions, large=large, session_ms=least_session_ms)

    return make


def _any_broker(stack: contextlib.ExitStack) -> tuple[str, str]:
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        return "KAFKA_BOOTSTRAP_SERVERS", given
    if _docker_answers():
        from testcontainers.kafka import RedpandaContainer

        container = stack.enter_context(RedpandaContainer(_REDPANDA_IMAGE))
        return f"Redpanda in Docker ({_REDPANDA_IMAGE})", container.get_bootstrap_server()
    from app.local import jars
    from app.local.broker import EmbeddedBroker
    from transforms.errors import WideloadError

    try:
        embedded = stack.enter_context(EmbeddedBroker(_QUICK))
    except WideloadError as exc:
        pytest.fail(f"no broker: {exc}\nOr set KAFKA_BOOTSTRAP_SERVERS.", pytrace=False)
    (version,) = (jar.coordinates.split(":")[2] for jar in jars.read_lock("kafka") if ":kafka_2.13:" in jar.coordinates)
    return f"embedded Kafka {version}", embedded.bootstrap_servers


def _docker_answers() -> bool:
    import docker.client
    import docker.errors

    with warnings.catch_warnings():
        # Where no engine answers, docker-py leaves the socket open with which it asked.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            docker.client.from_env(timeout=2).close()
        except docker.errors.DockerException:
            return False
        finally:
            gc.collect()
    return True


@pytest.fixture
def make_topic(request: pytest.FixtureRequest, broker: str) -> Iterator[MakeTopic]:
    """Makes topics that no other test has, and deletes them at the end: `make_topic(partitions=1, **configs)`.

    A config is given by its Kafka name: `make_topic(6, **{"max.message.bytes": 30_000_000})`. With `named` a topic has
    that name, which must be new.
    """
    with _topic_maker(request.node.name, broker) as make:
        yield make


@pytest.fixture(scope="module")
def make_module_topic(request: pytest.FixtureRequest, broker: str) -> Iterator[MakeTopic]:
    """As `make_topic`, for all tests of a file."""
    with _topic_maker(Path(request.node.name).stem, broker) as make:
        yield make


@contextlib.contextmanager
def _topic_maker(test: str, broker: str) -> Iterator[MakeTopic]:
    made: list[str] = []
    prefix = re.sub(r"[^a-zA-Z0-9._-]+", "-", test)[:60].strip("-.")

    def make(partitions: int = 1, *, named: str | None = None, **configs: object) -> str:
        name = named or f"{prefix}-{next(_numbers)}-{secrets.token_hex(3)}"
        _blocking(_create(broker, name, partitions, {key: str(value) for key, value in configs.items()}))
        made.append(name)
        return name

    yield make
    if made:
        _blocking(_delete(broker, made))


def _blocking(coroutine: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine, from a test that is a coroutine itself or not."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, coroutine).result(_TOPIC_SECONDS)


async def _create(bootstrap: str, name: str, partitions: int, configs: dict[str, str]) -> None:
    from aiokafka.admin import NewTopic

    async with _admin(bootstrap) as admin:
        response = await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
        for topic, code, *message in response.topic_errors:
            assert code == 0, f"topic {topic} was not created: error {code} {message}"
        deadline = time.monotonic() + _TOPIC_SECONDS
        while True:
            (topic,) = await admin.describe_topics([name])
            if [partition["leader"] >= 0 for partition in topic["partitions"]] == [True] * partitions:
                return
            assert time.monotonic() < deadline, f"topic {name} has partitions without a leader: {topic}"


async def _delete(bootstrap: str, names: list[str]) -> None:
    async with _admin(bootstrap) as admin:
        await admin.delete_topics(names)


@contextlib.asynccontextmanager
async def _admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local Spark session with the Kafka connector, in UTC."""
    from pyspark.sql import SparkSession

    from app.local import jars, spark_start

    folder = tmp_path_factory.mktemp("spark")
    events = folder / "events"  # a test looks for secrets in it
    events.mkdir()
    # Spark would take the first `python3` of PATH for its workers, and the host's name for its address.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # The processes that tests start take this from the environment, too.
    os.environ.update(spark_start.environ(short_run=True))
    found = jars.ensure("spark")
    builder = SparkSession.builder
    if any(path.name.startswith("delta-spark") for path in found):
        # It asks for this when the session begins, and no other table notices.
        builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    session = (
        builder.master("local[2]")
        .appName("wideload-tests")
        .config("spark.jars", ",".join(map(str, found)))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={folder}")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", events.as_uri())
        .config("spark.eventLog.compress", "false")
        .config("spark.python.daemon.module", "tests.spark_daemon")
        .config("spark.executorEnv.PYTHONPATH", str(_TESTS.parent))
        # Plans are small, and run once: to make Java code of each takes longer than to run it without.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Spark compiles what it runs, as it does by default, and for users."""
    keys = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {key: spark.conf.get(key) for key in keys}
    for key, value in keys.items():
        spark.conf.set(key, value)
    yield
    for key, found in before.items():
        spark.conf.set(key, str(found))


@pytest.fixture
def _left_sockets() -> Iterator[None]:
    """Collects the sockets that PySpark and kafka-python leave open, in their test, which ignores the warning.

    kafka-python 3.0.12 leaves one in about one of a hundred consumers, its own class too.
    """
    yield
    gc.collect()
