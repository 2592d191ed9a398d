"""What Spark's exceptions mean to the person who runs a job, in one sentence."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from jobs.driver.installed_spark import release
from transforms import errors
from transforms.errors import ConfigurationError, WideloadError
from transforms.masking import HIDDEN, masked

SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)
"""The errors of a call into Spark; a `ConnectionError` says that its Java process is gone."""

_CONNECT_SECONDS = 5.0
# The end of a Python traceback: the error stands behind indented lines, and is not indented itself.
_RAISED = re.compile(r"^ {2,}\S.*\n((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*): (.+)$", re.MULTILINE)
_BAD_VALUE = re.compile(r"\[USER_RAISED_EXCEPTION\] (topic \S+ partition \d+ offset \d+: the value, .*?) SQLSTATE")
_CAUSE = re.compile(r"^\s*Caused by: (.*\S)", re.MULTILINE)
_SECRET = re.compile(r"password|secret|jaas|token|\.key$|credential", re.IGNORECASE)
_FULL = r"IOException: (No space left on device|Disk quota exceeded)"

# What Spark says, the option to blame (none if the job failed), and the reason for people, with the groups of what it
# says. The first that fits counts.
# fmt: off
_OF_EXECUTORS = (
    (r"PYTHON_VERSION_MISMATCH\] Python in worker has different version: ([\d.]+) than that in driver: ([\d.]+)",
        "PYSPARK_PYTHON",
        ("executors run Python {0}, and the driver runs {1}; both need the same minor version: set PYSPARK_PYTHON (or "
        "spark.pyspark.python) to such a one on executors")),
    (r'Cannot run program "([^"]+)"', "PYSPARK_PYTHON",
        "executors have no {0}; set it (or spark.pyspark.python) to a Python that exists there"),
    (r"(?s)(?:^ *(\w*Error: [^\n]*|[^\n]* (?:requires|needs) Python [^\n]*)\n.*)?reading the port number from pyspark",
        "PYSPARK_PYTHON",
        ("the Python of executors cannot run PySpark ({0}); set it (or spark.pyspark.python) to one of the same minor "
        "version as the driver's")),
    (r"^(?:ModuleNotFoundError|ImportError): No module named '((?:wideload|app|jobs|transforms|stores)\b[\w.]*)'",
        "executors",
        ("do not have the code of wideload (no module {0}); pass it with --py-files jobs.zip (`python -m "
            "wideload.jobs.archive jobs.zip` creates it), or install the same version of wideload there")),
    (r"(?:^(?:ModuleNotFoundError|ImportError): No module named '|PACKAGE_NOT_INSTALLED\] )(\w+)", "executors",
        "have no {0}; install it there, or set PYSPARK_PYTHON or spark.pyspark.python to a Python that has it"),
)
_MEANINGS = (
    *_OF_EXECUTORS,
    (rf"{_FULL}(?=(?:\n\s+at .*){{0,12}}\n\s+at org\.apache\.spark\.(?:storage|shuffle|io|util\.collection)\.)", None,
        ("the disk is full where Spark stores data that does not fit into memory ({0}); free space there, or set "
            "another directory with --conf spark.local.dir=DIRECTORY (on a cluster: SPARK_LOCAL_DIRS of its workers)")),
    (rf"rows to (\S+?)\.? (?:.*\n)*.*{_FULL}", None,
        "the disk of {0}, where the rows are written, is full ({1}); free space, and run the job again"),
    (_FULL, None,
        ("a disk that Spark writes to is full, most likely that of the checkpoint ({0}); free space, and run the "
            "job again")),
    (r"Failed to find (the )?data source: kafka|DATA_SOURCE_NOT_FOUND", "--jars", "{connector}"),
    (r"UnknownTopicOrPartitionException|InvalidTopicException", "--topic",
        "{source} is not on the broker at {servers}; create it, or check its name"),
    (r"CONCURRENT_STREAM_LOG_UPDATE|CONCURRENT_QUERY|Race while writing batch|Multiple streaming jobs detected",
        "--checkpoint", "another run is using it; start this run again when the other one has ended"),
    (r"DELTA_CONCURRENT_|\bio\.delta\.exceptions\.Concurrent", "--output",
        "another run is writing to this table; start this run again when the other one has ended"),
    (r"KAFKA_DATA_LOSS|Some data may have been lost|is not there, the first one is", "--no-fail-on-data-loss",
        ("records of {source} that the checkpoint needs are no longer in Kafka (retention, or the topic was "
            "created again); set this option to continue without them, or use a new --checkpoint and --output")),
    (r"(Sasl|Ssl)AuthenticationException|(Topic|Group|Cluster)AuthorizationException", "--kafka-option",
        "the broker at {servers} refuses these credentials, or they may not read {source}"),
    (r"org\.apache\.kafka\.common\.errors\.TimeoutException|Timed out waiting for a node assignment",
        "--bootstrap-servers",
        ("{servers} accepts connections but does not respond as a Kafka broker; check kafka.security.protocol and the "
        "port")),
    (r"kafka\.common\.config\.ConfigException|Failed to (construct kafka consumer|create new KafkaAdminClient)",
        "--kafka-option",
        "Kafka's client refuses the options; check the names and values of kafka.* (--verbose shows its message)"),
    (r"OutOfMemoryError", None,
        ("a task ran out of memory; increase --driver-memory (on a cluster: --conf spark.executor.memory), or use "
            "fewer cores, each of which holds a row group and some copies of its largest record")),
)
# fmt: on


class JobFailedError(WideloadError):
    """A job began its work and could not finish."""


def no_connector() -> str:
    """What to do if Spark has no Kafka connector."""
    return f"Spark has no Kafka connector; specify its jars, or with spark-submit: --packages {release().connector}"


def require_broker(servers: str) -> None:
    """Tries the bootstrap servers in turn, so that the user hears of a wrong address within seconds, not minutes.

    Raises:
        ConfigurationError: an address is not host:port, or no server takes a connection.
    """
    refusals = []
    for server in filter(None, (part.strip() for part in servers.split(","))):
        host, _, port = server.rpartition("://")[2].rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigurationError("--bootstrap-servers", f"{server!r} is not host:port")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            refusals.append(f"{server} ({getattr(error, 'strerror', None) or error})")
        else:
            return
    found = ", ".join(refusals) or "no address is given"
    raise ConfigurationError("--bootstrap-servers", f"no broker answers: {found}")


def executor_error(error: Exception) -> WideloadError | None:
    """What an error of Spark says of the Python of executors, in a sentence; None if it is about something else."""
    return _meaning(_OF_EXECUTORS, _text(error))


def overflowed(error: Exception) -> bool:
    """Whether Spark's Kafka source met a timestamp that Spark cannot hold; it does not say which."""
    return "ArithmeticException: long overflow" in _text(error)


def explained(
    error: Exception,
    *,
    servers: str = "",
    source: str = "",
    options: Mapping[str, str] = MappingProxyType({}),
    fault: str | None = None,
) -> WideloadError:
    """`error` as a sentence: a `ConfigurationError` if the user can set it right, else a `JobFailedError`.

    Args:
        error: one of `SPARK_ERRORS`.
        servers: the bootstrap servers.
        source: the topics or the pattern that Spark's Kafka source reads.
        options: the options of that source; the message shows no secret among their values.
        fault: what is wrong with a value that `error` names, if somebody has looked.
    """
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return JobFailedError(
            "Spark's Java process ended, most likely because it ran out of memory; increase --driver-memory (with "
            "spark-submit: the --driver-memory of spark-submit), or use fewer cores with --master 'local[1]'"
        )
    text = _text(error)
    if bad := _BAD_VALUE.search(text):
        what = f"{bad[1]}: {fault}" if fault else bad[1]
        return JobFailedError(
            f"{what}; --on-bad-value null continues, and writes the bytes of such values to a separate column"
        )
    found = _meaning(_MEANINGS, text, servers=servers, source=source, connector=no_connector())
    return found or JobFailedError(_without_secrets(_cause(text), options))


def _text(error: Exception) -> str:
    """All that an error says. PySpark leaves Java's causes out of some, and has the whole error of Java behind them."""
    java = error.__context__
    return f"{error}\n{java}" if isinstance(java, Py4JJavaError) else str(error)


def _meaning(
    meanings: Sequence[tuple[str, str | None, str]], text: str, *, source: str = "", **words: str
) -> WideloadError | None:
    """What the user can set right, or knows best; None if there is no such thing."""
    for pattern, key, reason in meanings:
        if found := re.search(pattern, text, re.MULTILINE):
            sentence = reason.format(*found.groups("no reason was reported"), source=source, **words)
            if key == "--topic" and ", " in source:  # Spark does not say which, and it may be of another option
                return ConfigurationError("topics", f"one of {sentence}")
            return ConfigurationError(key, sentence) if key else JobFailedError(sentence)
    return None


def _cause(text: str) -> str:
    """The innermost cause that Spark names, without the stack; for a Python worker, the error that it raised."""
    if raised := _RAISED.search(text):
        name, message = raised.groups()
        ours = name.startswith((f"{errors.__name__}.", f"{__name__}."))
        return message if ours else f"{name.rpartition('.')[2]}: {message}"
    causes = _CAUSE.findall(text)
    return causes[-1] if causes else next(filter(None, map(str.strip, text.splitlines())), "Spark reported no reason")


def _without_secrets(text: str, options: Mapping[str, str]) -> str:
    for key, value in options.items():
        if value and _SECRET.search(key):
            text = text.replace(value, HIDDEN)
    return masked(text)
