"""Fixtures of the tests with faults: one S3 server, and a proxy before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.proxy import FaultProxy
from tests.s3_server import S3Server


@pytest.fixture
def proxy(versitygw: S3Server) -> Iterator[FaultProxy]:
    """A proxy before the server, which lets everything pass until it is told otherwise."""
    with FaultProxy(versitygw.endpoint) as proxy:
        yield proxy
