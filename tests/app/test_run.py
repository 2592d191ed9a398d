"""The checks before the worker runs."""

from __future__ import annotations

import pytest

from app.config.parsing import parse
from app.run import run_worker
from transforms.errors import ConfigurationError

ORDERS = {
    "topics": ["raw"],
    "output.topic": "orders",
    "transforms": ["offload"],
    "large.message.payload.store.class": "memory",
}


@pytest.mark.parametrize("address", ["203.0.113.7", "no.such.host.invalid", "x" * 70])
def test_address_of_the_pages_is_not_ours(address: str) -> None:
    """An address of another machine is reported under its key."""
    settings = parse({"bootstrap.servers": "localhost:1", "web.bind": address, "pipeline": {"p": ORDERS}}, {})
    with pytest.raises(ConfigurationError) as refused:
        run_worker(settings, "INFO")
    assert str(refused.value).startswith(f"web.bind: found '{address}', which is no address of this machine")
