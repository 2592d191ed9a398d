"""What a job sets in the session that it is given."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from jobs.driver.session import share_code

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("given", [None, "/mine", f"{REPOSITORY}{os.pathsep}/mine"])
def test_share_code_once(given: str | None) -> None:
    """A second job in a session leaves the path of the Python workers as it is: Spark starts new ones for another."""
    environment = {} if given is None else {"PYTHONPATH": given}
    spark = cast("SparkSession", SimpleNamespace(sparkContext=SimpleNamespace(environment=environment)))
    share_code(spark)
    once = dict(environment)
    share_code(spark)
    entries = environment["PYTHONPATH"].split(os.pathsep)
    assert environment == once
    assert entries.count(str(REPOSITORY)) == 1
    assert given is None or "/mine" in entries
