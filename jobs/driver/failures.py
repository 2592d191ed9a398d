"""What Spark's exceptions mean to the person who runs a job, in one sentence."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from jobs.driver.installed_spark import release
from transforms import errors
from transforms.errors import ConfigurationError, WideloadError
from transforms.masking import HIDDEN, masked

__all__ = [
    "SPARK_ERRORS",
    "TWO_RUNS",
    "JobFailedError",
    "executor_error",
    "explained",
    "no_connector",
    "overflowed",
    "records_lost",
    "require_broker",
]

SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)
"""The errors of a call into Spark; a `ConnectionError` says that its Java process is gone."""

NO_TOPIC = "{source} is not on the broker at {servers}; create it, or check its name"

TWO_RUNS = "another run works with it at the same time; run this one again when that one has ended"

_CONNECT_SECONDS = 5.0
# The end of a Python traceback: the error stands behind indented lines, and is not indented itself.
_RAISED = re.compile(r"^ {2,}\S.*\n((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*): (.+)$", re.MULTILINE)
_BAD_VALUE = re.compile(r"\[USER_RAISED_EXCEPTION\] (topic \S+ partition \d+ offset \d+: the value, .*?) SQLSTATE")
_NO_MODULE = re.compile(r"^(?:ModuleNotFoundError|ImportError): No module named '([\w.]+)'", re.MULTILINE)
_NO_ARROW = re.compile(r"PACKAGE_NOT_INSTALLED\] (\w+)")
_OTHER_PYTHON = re.compile(
    r"PYTHON_VERSION_MISMATCH\] Python in worker has different version: ([\d.]+) than that in driver: ([\d.]+)"
)
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_NO_WORKER = re.compile(r"^ *(\w*Error: .*|.* (?:requires|needs) Python .*)$", re.MULTILINE)
_OWN_CODE = ("wideload", "jobs", "transforms", "stores")
_SECRET = re.compile(r"password|secret|jaas|token|\.key$|credential", re.IGNORECASE)


class JobFailedError(WideloadError):
    """A job began its work and could not finish."""


def no_connector() -> str:
    """What to do if Spark has no Kafka connector."""
    return f"Spark has no Kafka connector; give its jars, or to spark-submit: --packages {release().connector}"


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


def executor_error(text: str) -> ConfigurationError | None:
    """What an error of Spark says of the Python of executors, in a sentence; None if it is about something else."""
    if other := _OTHER_PYTHON.search(text):
        return ConfigurationError(
            "PYSPARK_PYTHON",
            f"executors run Python {other[1]}, and the driver runs {other[2]}; both need the same minor version: set "
            "PYSPARK_PYTHON (or spark.pyspark.python) to such a one on executors",
        )
    if none := _NO_PYTHON.search(text):
        return ConfigurationError(
            "PYSPARK_PYTHON", f"executors have no {none[1]}; set it (or spark.pyspark.python) to a Python that is there"
        )
    if "reading the port number from pyspark.daemon" in text:
        found = _NO_WORKER.search(text)
        reason = f" ({found[1].strip()})" if found else ""
        return ConfigurationError(
            "PYSPARK_PYTHON",
            f"the Python of executors cannot run PySpark{reason}; set it (or spark.pyspark.python) to one of the same "
            "minor version as the driver's",
        )
    if missing := _NO_MODULE.search(text) or _NO_ARROW.search(text):
        name = missing[1].partition(".")[0]
        if name in _OWN_CODE:
            return ConfigurationError(
                "executors",
                f"have not the code of wideload (no module {name}); give it with --py-files jobs.zip "
                "(`python -m wideload.jobs.archive jobs.zip` makes it), or install the same wideload there",
            )
        return ConfigurationError(
            "executors",
            f"have no {name}; install it there, or name a Python that has it with PYSPARK_PYTHON or "
            "spark.pyspark.python",
        )
    return None


def records_lost(error: Exception) -> bool:
    """Whether Spark could not read records because Kafka had deleted them."""
    return re.search(r"KAFKA_DATA_LOSS|Some data may have been lost|OffsetOutOfRange", str(error)) is not None


def overflowed(error: Exception) -> bool:
    """Whether Spark's Kafka source met a timestamp that Spark cannot hold; it does not say which."""
    return "ArithmeticException: long overflow" in str(error)


def explained(
    error: Exception, *, servers: str, source: str, options: Mapping[str, str], fault: str | None = None
) -> WideloadError:
    """`error` as a sentence: a `ConfigurationError` if the user can set it right, else a `JobFailedError`.

    Args:
        error: one of `SPARK_ERRORS`.
        servers: the bootstrap servers.
        source: the topics or the pattern that the job reads.
        options: the options of the Kafka source; the message shows no secret among their values.
        fault: what is wrong with a value that `error` names, if somebody has looked.
    """
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return JobFailedError(
            "Spark's Java process ended, most likely because it ran out of memory; give it more with --driver-memory "
            "(under spark-submit: its own --driver-memory), or fewer cores with --master 'local[1]'"
        )
    text = str(error)
    bad = _BAD_VALUE.search(text)
    if bad:
        what = f"{bad[1]}: {fault}" if fault else bad[1]
        return JobFailedError(
            f"{what}; --on-bad-value null goes on, with the bytes of such values in a column of their own"
        )
    return executor_error(text) or _meaning(text, servers, source) or JobFailedError(_said(text, options))


def _meaning(text: str, servers: str, source: str) -> WideloadError | None:
    """What the user can set right, or knows best; None if there is no such thing."""
    for pattern, key, reason in _MEANINGS:
        if re.search(pattern, text):
            told = reason.format(servers=servers, source=source, connector=no_connector())
            if key == "--topic" and ", " in source:  # Spark does not say which, and it may be of another option
                return ConfigurationError("topics", f"one of {told}")
            return ConfigurationError(key, told)
    if "OutOfMemoryError" in text:
        return JobFailedError(
            "a task ran out of memory; give more with --driver-memory (on a cluster: --conf spark.executor.memory), "
            "or fewer cores, each of which holds a row group and some copies of its largest record"
        )
    return None


def _said(text: str, options: Mapping[str, str]) -> str:
    return _without_secrets(_cause(text), options)


# What Spark says, the option to blame, and the reason for people.
# fmt: off
_MEANINGS = (
    (r"Failed to find (the )?data source: kafka|DATA_SOURCE_NOT_FOUND", "--jars", "{connector}"),
    (r"UnknownTopicOrPartitionException|InvalidTopicException", "--topic", NO_TOPIC),
    (r"CONCURRENT_STREAM_LOG_UPDATE|CONCURRENT_QUERY|Race while writing batch", "--checkpoint", TWO_RUNS),
    (r"KAFKA_DATA_LOSS|Some data may have been lost|is not there, the first one is", "--no-fail-on-data-loss",
        ("records of {source} that the checkpoint needs are gone from Kafka (retention, or the topic was made anew); "
        "give this option to go on without them, or a new --checkpoint and --output")),
    (r"(Sasl|Ssl)AuthenticationException|(Topic|Group|Cluster)AuthorizationException", "--kafka-option",
        "the broker at {servers} refuses these credentials, or they may not read {source}"),
    (r"org\.apache\.kafka\.common\.errors\.TimeoutException|Timed out waiting for a node assignment",
        "--bootstrap-servers",
        ("{servers} takes connections but does not answer as a Kafka broker; check kafka.security.protocol and the "
        "port")),
    (r"kafka\.common\.config\.ConfigException|Failed to (construct kafka consumer|create new KafkaAdminClient)",
        "--kafka-option",
        "Kafka's client refuses the options; check the names and values of kafka.* (--verbose shows what it says)"),
)
# fmt: on


def _cause(text: str) -> str:
    """The innermost cause that Spark names, without the stack; for a Python worker, the error that it raised."""
    raised = _RAISED.findall(text)
    if raised:
        name, message = raised[0]
        ours = name.startswith((f"{errors.__name__}.", f"{__name__}."))
        return str(message) if ours else f"{name.rpartition('.')[2]}: {message}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes or lines or ["Spark gives no reason"])[-1 if causes else 0]


def _without_secrets(text: str, options: Mapping[str, str]) -> str:
    for key, value in options.items():
        if value and _SECRET.search(key):
            text = text.replace(value, HIDDEN)
    return masked(text)
