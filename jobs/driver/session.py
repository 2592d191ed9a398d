"""The Spark session of a job: where its JVM, its memory and the Kafka connector come from.

Under `spark-submit` the JVM runs already and the caller has decided all of that. Under `python -m jobs.NAME` it is
decided here.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from jobs.driver.installed_spark import home, release
from jobs.driver.java import captured, require_java, start_error
from jobs.driver.jvm import has_class
from transforms.errors import ConfigurationError

_CODE = Path(__file__).resolve().parents[__name__.count(".")]  # of a checkout, or site-packages

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

# Spark keeps up to 64 Kafka consumers, each with the records it fetched last, for five minutes after their task ends.
# With 40 partitions of 15 MB values that alone fills 1 GB of heap. Without the cache a task opens a consumer in 20 ms.
_BOUNDED_CACHES = {
    "spark.kafka.consumer.cache.capacity": "1",
    "spark.kafka.consumer.fetchedData.cache.timeout": "100ms",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "100ms",
}

_SHUFFLES = "spark.sql.shuffle.partitions"

_SCALA = re.compile(r"_(2\.\d+)-\d")  # in the name of a jar

_MASTER = re.compile(r"^[ \t]*spark\.master[ \t]*[ \t=:][ \t]*(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session is made of.

    Attributes:
        name: the job's name on Spark's own pages.
        jars: files of the Kafka connector; if empty, Spark fetches `packages`.
        master: where the job runs, as Spark writes it (`local[2]`, `spark://host:7077`); None leaves it to Spark.
        driver_memory: heap of the driver, and of the whole job under a local master; None is Spark's own 1g.
        conf: more Spark settings, which win over all others.
        packages: what the job needs, as `--packages` takes it: the connector, if it reads with Spark's own source.
        delta: whether the session can use Delta tables; Delta Lake is then among `packages`, or `jars`.
        verbose: leave Spark's log as it is; else nothing of it is shown.
    """

    name: str
    jars: tuple[str, ...] = ()
    master: str | None = None
    driver_memory: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    delta: bool = False
    verbose: bool = False


def submitted() -> bool:
    """Whether `spark-submit` started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def connector_jars(listed: str) -> tuple[str, ...]:
    """The jars of a comma-separated list of files and directories, without those that PySpark ships itself.

    If Ivy fetches the connector, it fetches Hadoop, Scala and more too. A second copy of a class in another class
    loader makes casts between the two fail.

    Raises:
        ConfigurationError: an entry does not exist, a directory holds no jar, or a jar is for another Scala.
    """
    shipped = {path.name for path in home().glob("jars/*.jar")}
    jars: list[Path] = []
    for entry in filter(None, (part.strip() for part in listed.split(","))):
        path = Path(entry).expanduser()
        if path.is_dir():
            found = sorted(path.glob("*.jar"))
            if not found:
                raise ConfigurationError("--jars", f"directory {entry} contains no .jar file")
            jars += found
        elif path.is_file():
            jars.append(path)
        else:
            raise ConfigurationError("--jars", f"{entry} is neither a file nor a directory")
    if jars and not submitted():  # under spark-submit they are not used
        spark = release()
        for path in jars:
            scala = _SCALA.search(path.name)
            if scala and scala[1] != spark.scala:
                raise ConfigurationError(
                    "--jars",
                    f"{path} is for Scala {scala[1]}, and this Spark {spark.name} is built with {spark.scala}; use "
                    f"the jars of {spark.connector}, or none",
                )
    return tuple(str(path.resolve()) for path in jars if path.name not in shipped)


@contextmanager
def open_session(settings: SessionSettings) -> Iterator[SparkSession]:
    """A session for the length of a `with` block; it stops at the end. A terminal shows where Spark's pages are.

    In the block SIGTERM raises `KeyboardInterrupt`, as SIGINT does, so that Spark's tasks do not outlive the job.

    Raises:
        ConfigurationError: the jobs do not run on this Spark, there is no Java, or Spark's JVM did not start.
    """
    installed = release()
    if not submitted():
        require_java(installed)
        if not (home() / "bin").is_dir():
            raise ConfigurationError(
                "SPARK_HOME", f"{home()} holds no bin/spark-submit; set it to an installation of Spark, or unset it"
            )
        # Spark would use the first `python3` of PATH for its workers, which lacks the packages of this one.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if _runs_here(settings):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or Spark's pages are open to the network
    with nullcontext() if settings.verbose or submitted() else captured() as output:
        try:
            spark = SparkSession.builder.appName(settings.name).config(map=_conf(settings)).getOrCreate()
        except (PySparkException, Py4JError) as error:
            raise start_error(output, error) from error
    _share_code(spark)
    if not spark.sparkContext.getConf().contains(_SHUFFLES):
        # Spark's default of 200 tasks is most of what a small job takes, even where they hold little.
        spark.conf.set(_SHUFFLES, str(max(8, 2 * spark.sparkContext.defaultParallelism)))
    if submitted() and not settings.verbose:
        spark.sparkContext.setLogLevel("FATAL")
    if sys.stderr.isatty() and spark.sparkContext.uiWebUrl:
        print(f"Spark's web UI, while this runs: {spark.sparkContext.uiWebUrl}", file=sys.stderr)
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield spark
    finally:
        signal.signal(signal.SIGTERM, former)
        # If the Java process ran out of memory, it is gone already, and its own error is the one to report.
        with suppress(Py4JError, ConnectionError):
            spark.stop()


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
            f"no release of {what} for Spark {release().name} is known here; if there is one now, pass its jars"
            if package is None
            else f"pass to spark-submit: --packages {release().connector},{package}"
            if submitted()
            else f"add the jars of {package} to --jars (or WIDELOAD_SPARK_JARS), or specify none, and Spark "
            f"downloads them"
        )
        raise ConfigurationError(option, f"Spark has no {what}; {hint}")


def _share_code(spark: SparkSession) -> None:
    """Lets Python workers on this machine import the same code as this process, wherever the process was started.

    On a cluster `--py-files` does so. Workers there do not have this process's directory, and ignore it.
    """
    environment = spark.sparkContext.environment
    given = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([*([given] if given else ()), str(_CODE)])


def _conf(settings: SessionSettings) -> dict[str, Any]:
    conf: dict[str, Any] = {
        # Parquet's older default, INT96, is deprecated and only Spark writes it.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.session.timeZone": "UTC",
        **_BOUNDED_CACHES,
    }
    if not submitted():
        conf["spark.ui.showConsoleProgress"] = "false"
        # A link that ends a job works by GET, so any page in a browser could follow it.
        conf["spark.ui.killEnabled"] = "false"
        if settings.jars:
            conf["spark.jars"] = ",".join(settings.jars)
        elif settings.packages:
            conf["spark.jars.packages"] = ",".join(settings.packages)
        if settings.driver_memory:
            conf["spark.driver.memory"] = settings.driver_memory
    if settings.master:
        conf["spark.master"] = settings.master
    return conf | (_DELTA if settings.delta else {}) | dict(settings.conf)


def _runs_here(settings: SessionSettings) -> bool:
    """Whether the whole job runs in one process of this machine, as far as can be seen before Spark starts."""
    folder = os.environ.get("SPARK_CONF_DIR") or Path(os.environ.get("SPARK_HOME") or "/nonexistent") / "conf"
    defaults = Path(folder) / "spark-defaults.conf"
    found = _MASTER.search(defaults.read_text("utf-8", errors="replace")) if defaults.is_file() else None
    told = (settings.conf.get("spark.master"), settings.master, os.environ.get("MASTER"), found and found[1])
    master = next(filter(None, told), "local[*]")
    return re.fullmatch(r"local(\[.*\])?", master) is not None
