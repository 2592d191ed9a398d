"""The Spark session of a job: where its JVM, its memory and the Kafka connector come from.

Under `spark-submit` the JVM runs already and the caller has decided all of that. Under `python -m jobs.NAME` it is
decided here.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from types import MappingProxyType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jobs.driver.installed_spark import home, release
from jobs.driver.java import require_java
from jobs.driver.java_output import captured, start_error
from jobs.driver.jvm import has_class
from transforms.errors import ConfigurationError

__all__ = [
    "CODE",
    "DELTA_CONF",
    "INTERRUPTED",
    "SessionSettings",
    "connector_jars",
    "ending_cleanly",
    "fit_shuffles",
    "open_session",
    "require_class",
    "share_code",
    "stopping",
    "submitted",
]

CODE = Path(__file__).resolve().parents[__name__.count(".")]
"""The folder that this code is imported from: of a checkout, or site-packages."""

_DAEMON = f"{__package__}.python_daemon"

DELTA_CONF = MappingProxyType(
    {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
)
"""The settings that Delta needs when a session begins."""

INTERRUPTED = 130
"""The exit status of a job that a signal ended; shells use it for SIGINT."""

# Spark keeps up to 64 Kafka consumers, each with the records it fetched last, for five minutes after their task ends.
# With 40 partitions of 15 MB values that alone fills 1 GB of heap. Without the cache a task opens a consumer in 20 ms.
_BOUNDED_CACHES = MappingProxyType(
    {
        "spark.kafka.consumer.cache.capacity": "1",
        "spark.kafka.consumer.fetchedData.cache.timeout": "100ms",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "100ms",
    }
)

# A job over a few records takes seconds, and most of its CPU time went into compiling what runs once, and into threads
# of a collector that a heap of 1 GB on a few cores does not need. What a long job runs again and again is compiled as
# ever, a little later.
_QUICK_START = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
_ROWS_A_TASK = 10_000
_SMALL_HEAP = "-XX:+UseSerialGC"
# Java reads options from them, and does not start with two collectors.
_JAVA_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")

_SCALA = re.compile(r"_(2\.\d+)-\d")  # in the name of a jar

_MASTER = re.compile(r"^[ \t]*spark\.master[ \t]*[ \t=:][ \t]*(\S+)", re.MULTILINE)

# The job itself reports a failed query, in one sentence; Spark would log the same with its whole stack.
_QUIET_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
logger.repl.name = org.apache.spark.api.python.PythonGatewayServer
logger.repl.level = error
logger.query.name = org.apache.spark.sql.execution.streaming.MicroBatchExecution
logger.query.level = off
logger.write.name = org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2Exec
logger.write.level = off
"""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session is made of.

    Attributes:
        name: the job's name on Spark's own pages.
        jars: files of the Kafka connector; if empty, Spark fetches it, and `packages`.
        master: where the job runs, as Spark writes it (`local[2]`, `spark://host:7077`); None leaves it to Spark.
        driver_memory: heap of the driver, and of the whole job under a local master; None is Spark's own 1g.
        conf: more Spark settings, which win over all others.
        packages: what the job needs beside the connector, as `--packages` takes it.
        delta: whether the session can use Delta tables; Delta Lake is then among `packages`, or `jars`.
        verbose: leave Spark's log as it is; else nothing of it is shown.
        lasting: whether the job goes on until it is stopped, so that Spark's pages are worth their cost.
    """

    name: str
    jars: tuple[str, ...] = ()
    master: str | None = None
    driver_memory: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    delta: bool = False
    verbose: bool = False
    lasting: bool = False


def submitted() -> bool:
    """Whether `spark-submit` started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def connector_jars(listed: str) -> tuple[str, ...]:
    """The jars of a comma-separated list of files and folders, without those that PySpark ships itself.

    If Ivy fetches the connector, it fetches Hadoop, Scala and more too. A second copy of a class in another class
    loader makes casts between the two fail.

    Raises:
        ConfigurationError: an entry does not exist, a folder holds no jar, or a jar is for another Scala.
    """
    shipped = {path.name for path in home().glob("jars/*.jar")}
    jars: list[Path] = []
    for entry in filter(None, (part.strip() for part in listed.split(","))):
        path = Path(entry).expanduser()
        if path.is_dir():
            found = sorted(path.glob("*.jar"))
            if not found:
                raise ConfigurationError("--jars", f"folder {entry} holds no .jar file")
            jars += found
        elif path.is_file():
            jars.append(path)
        else:
            raise ConfigurationError("--jars", f"{entry} is neither a file nor a folder")
    if jars and not submitted():  # under spark-submit they are not used
        spark = release()
        for path in jars:
            scala = _SCALA.search(path.name)
            if scala and scala[1] != spark.scala:
                raise ConfigurationError(
                    "--jars",
                    f"{path} is for Scala {scala[1]}, and this Spark {spark.name} is built with {spark.scala}; "
                    f"give the jars of {spark.connector}, or none",
                )
    return tuple(str(path.resolve()) for path in jars if path.name not in shipped)


@contextmanager
def open_session(settings: SessionSettings) -> Iterator[SparkSession]:
    """A session for the length of a `with` block; it stops at the end. A terminal shows where Spark's pages are.

    Raises:
        ConfigurationError: the jobs do not run on this Spark, there is no Java, or Spark's JVM did not start.
    """
    installed = release()
    if not submitted():
        require_java(installed)
        if not (home() / "bin").is_dir():
            raise ConfigurationError(
                "SPARK_HOME", f"{home()} holds no bin/spark-submit; set it to a Spark, or unset it"
            )
        # Spark would use the first `python3` of PATH for its workers, which lacks the packages of this one.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if _runs_here(settings):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or Spark's pages are open to the network
    with tempfile.TemporaryDirectory(prefix="wideload-spark-") as folder:
        with nullcontext() if settings.verbose or submitted() else captured() as output:
            try:
                spark = _builder(settings, Path(folder)).getOrCreate()
            except (PySparkException, Py4JError) as error:
                raise start_error(output, error) from error
        if not submitted() and _runs_here(settings):
            share_code(spark)  # `_DAEMON` is part of it
        if submitted() and not settings.verbose:
            spark.sparkContext.setLogLevel("FATAL")
        if sys.stderr.isatty() and spark.sparkContext.uiWebUrl:
            print(f"Spark's pages, while this runs: {spark.sparkContext.uiWebUrl}", file=sys.stderr)
        try:
            yield spark
        finally:
            # If the Java process ran out of memory, it is gone already, and its own error is the one to report.
            with suppress(Py4JError, ConnectionError):
                spark.stop()


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """For the length of a `with` block SIGTERM raises `KeyboardInterrupt`, as SIGINT does.

    Without it Python would end at once and leave the session's folder behind, and Spark's tasks would go on for a time.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


@contextmanager
def stopping() -> Iterator[Event]:
    """An event that SIGINT and SIGTERM set, for the length of a `with` block, in place of their usual effect."""
    stop = Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    former = [signal.signal(number, lambda *_: stop.set()) for number in signals]
    try:
        yield stop
    finally:
        for number, handler in zip(signals, former, strict=True):
            signal.signal(number, handler)


def require_class(spark: SparkSession, name: str, option: str, what: str, package: str | None) -> None:
    """Makes sure that Spark has the package that an option needs.

    Args:
        spark: the session.
        name: a Java class of the package.
        option: the option.
        what: the name of the package for people.
        package: the package as `--packages` takes it; None if there is none for this Spark.

    Raises:
        ConfigurationError: Spark does not have it.
    """
    if not has_class(spark, name):
        hint = (
            f"no release of {what} for Spark {release().name} is known here; give its jars if there is one by now"
            if package is None
            else f"give to spark-submit: --packages {release().connector},{package}"
            if submitted()
            else f"add the jars of {package} to --jars (or WIDELOAD_SPARK_JARS), or give none, and Spark fetches them"
        )
        raise ConfigurationError(option, f"Spark has no {what}; {hint}")


def share_code(spark: SparkSession) -> None:
    """Lets Python workers on this machine import the same code as this process, wherever the process was started.

    On a cluster `--py-files` does so. Workers there do not have this process's folder, and ignore it. A second job in a
    session finds the workers of the first: Spark would start new ones for another environment.
    """
    context = spark.sparkContext
    context.environment["PYTHONPATH"] = _python_path(context.environment.get("PYTHONPATH"))


def fit_shuffles(spark: SparkSession, rows: int | None = None) -> None:
    """Sets how many partitions a shuffle has, if the user has not set a number: two a core, 8 at least.

    With Spark's default each shuffle of a cached DataFrame has 200 tasks, even if it holds little: on two cores a small
    job would spend most of its time on them.

    Args:
        spark: the session.
        rows: how many rows there are, if that is known by now; few take one partition a core.
    """
    key = "spark.sql.shuffle.partitions"
    context = spark.sparkContext
    if not context.getConf().contains(key):
        cores = context.defaultParallelism
        most = max(8, 2 * cores)
        spark.conf.set(key, str(most if rows is None else min(most, max(cores, -(-rows // _ROWS_A_TASK)))))


def _python_path(given: str | None) -> str:
    """The path with the folder of this code in it, once."""
    entries = given.split(os.pathsep) if given else []
    return os.pathsep.join(entries if str(CODE) in entries else [*entries, str(CODE)])


def _builder(settings: SessionSettings, folder: Path) -> SparkSession.Builder:
    builder: SparkSession.Builder = SparkSession.builder.appName(settings.name)
    # Parquet's older default, INT96, is deprecated and only Spark writes it.
    builder = builder.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    # Each function of a column asks Java eight more times, to tell in errors the line of our code that it stands in.
    builder = builder.config("spark.python.sql.dataFrameDebugging.enabled", "false")
    for key, value in _BOUNDED_CACHES.items():
        builder = builder.config(key, value)
    if not submitted():
        builder = _own_start(builder, settings, folder)
    if settings.master:
        builder = builder.master(settings.master)
    if settings.delta:
        for key, value in DELTA_CONF.items():
            builder = builder.config(key, value)
    for key, value in settings.conf.items():
        builder = builder.config(key, value)
    return builder


def _own_start(builder: SparkSession.Builder, settings: SessionSettings, folder: Path) -> SparkSession.Builder:
    """The settings that the caller of `spark-submit` makes otherwise."""
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    # A link that ends a job works by GET, so any page in a browser could follow it.
    builder = builder.config("spark.ui.killEnabled", "false")
    if settings.jars:
        builder = builder.config("spark.jars", ",".join(settings.jars))
    else:
        builder = builder.config("spark.jars.packages", ",".join((release().connector, *settings.packages)))
    if settings.driver_memory:
        builder = builder.config("spark.driver.memory", settings.driver_memory)
    options = _java_options(settings)
    if not settings.verbose:
        logging = folder / "log4j2.properties"
        logging.write_text(_QUIET_LOGGING, encoding="utf-8")
        options.append(f"-Dlog4j2.configurationFile={logging.as_uri()}")
    if options:
        builder = builder.config("spark.driver.extraJavaOptions", " ".join(options))
    if _runs_here(settings):
        builder = builder.config("spark.python.daemon.module", _DAEMON)
        if not settings.lasting and not sys.stderr.isatty():  # nobody is told where Spark's pages are
            builder = builder.config("spark.ui.enabled", "false")
    return builder


def _java_options(settings: SessionSettings) -> list[str]:
    """The options of the Java process that makes it quick to start, where the whole job runs in it."""
    if not _runs_here(settings):
        return []
    given = [os.environ.get(name, "") for name in _JAVA_OPTIONS]
    small = settings.driver_memory is None and "spark.driver.memory" not in settings.conf
    return [*_QUICK_START, *((_SMALL_HEAP,) if small and not any("GC" in each for each in given) else ())]


def _runs_here(settings: SessionSettings) -> bool:
    """Whether the whole job runs in one process of this machine, as far as can be seen before Spark starts."""
    folder = os.environ.get("SPARK_CONF_DIR") or Path(os.environ.get("SPARK_HOME") or "/nonexistent") / "conf"
    defaults = Path(folder) / "spark-defaults.conf"
    found = _MASTER.search(defaults.read_text("utf-8", errors="replace")) if defaults.is_file() else None
    told = (settings.conf.get("spark.master"), settings.master, os.environ.get("MASTER"), found and found[1])
    master = next(filter(None, told), "local[*]")
    return re.fullmatch(r"local(\[.*\])?", master) is not None
