"""What Spark's exceptions come to in one sentence."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from jobs.driver.failures import JobFailedError, explained

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
        ("ModuleNotFoundError: No module named 'cramjam'", "ModuleNotFoundError: No module named 'cramjam'"),
        ("stores.other.OddError: *** is wrong", "OddError: *** is wrong"),
    ],
)
def test_explained_what_a_python_worker_raised(raised: str, message: str) -> None:
    """It is said as it was raised, without the stack; the project's own errors are sentences already."""
    error = PySparkException(TRACEBACK.replace("{raised}", raised))
    found = explained(error, servers="b:1", source="t", options={})
    assert (type(found), str(found)) == (JobFailedError, message)
