"""What Spark's exceptions come to in one sentence."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from jobs.driver.failures import JobFailedError, executor_error, explained
from transforms.errors import ConfigurationError

TRACEBACK = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "jobs/payloads/inventory.py", line 1, in _list
    yield store.list(topic)
          ^^^^^^^^^^^^^^^^^
{raised}

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        ("transforms.errors.PayloadStoreError: ListObjectsV2 s3://b/ failed: no", "ListObjectsV2 s3://b/ failed: no"),
        ("stores.other.OddError: *** is wrong", "OddError: *** is wrong"),
    ],
)
def test_explained_what_a_python_worker_raised(raised: str, message: str) -> None:
    """It is said as it was raised, without the stack; the project's own errors are sentences already."""
    error = PySparkException(TRACEBACK.replace("{raised}", raised))
    found = explained(error, servers="b:1", source="t", options={})
    assert (type(found), str(found)) == (JobFailedError, message)


@pytest.mark.parametrize(
    "text",
    [
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [CONCURRENT_STREAM_LOG_UPDATE] Con",
        "java.lang.IllegalStateException: Race while writing batch 3",
    ],
)
def test_two_runs_with_one_checkpoint(text: str) -> None:
    """Where Spark's logs tell of another run, the user is told so, with what to do."""
    error = explained(PySparkException(text), servers="h:1", source="t", options={})
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith("--checkpoint: another run is using it; start this run again when")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            TRACEBACK.format(raised="ModuleNotFoundError: No module named 'cramjam'"),
            "executors: have no cramjam; install",
        ),
        (
            TRACEBACK.format(raised="ModuleNotFoundError: No module named 'jobs'"),
            "do not have the code of wideload",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11, PySpark",
            "PYSPARK_PYTHON: executors run Python 3.9, and the driver runs 3.11; both need the same minor version",
        ),
        ("[PACKAGE_NOT_INSTALLED] PyArrow >= 11.0.0 must be installed; however, it was not found.", "have no PyArrow"),
        (
            "  SyntaxError: invalid syntax\nEOFException occurred while reading the port number from pyspark.daemon's",
            "the Python of executors cannot run PySpark (SyntaxError: invalid syntax); set it",
        ),
        (
            'java.io.IOException: Cannot run program "python9": error=2',
            "PYSPARK_PYTHON: executors have no python9; set",
        ),
    ],
)
def test_what_executors_lack(text: str, words: str) -> None:
    """What is missing on executors is told by its name, with what to do."""
    error = executor_error(PySparkException(text))
    assert words in str(error)
    assert str(explained(PySparkException(text), servers="h:1", source="t", options={})) == str(error)
    assert executor_error(PySparkException("anything else")) is None
