"""What every store does where a bucket keeps its payloads."""

from __future__ import annotations

import pytest

from stores.bucket import KeptError
from stores.cloud import CloudStore
from stores.s3 import S3Store
from tests.stores.test_s3 import NAME


def assert_a_second_put_has_another_name(store: CloudStore | S3Store, reason: str) -> None:
    """What is published again gets another name, which is read; what is there is not removed, for this reason."""
    store.check()
    store.check()
    first, second = (store.put(*NAME, b"data") for _ in range(2))
    assert first == store.root.path(*NAME)
    assert second.startswith(f"{first}-")
    assert store.root.holds(second)
    assert store.get(second, 4) == b"data"
    with pytest.raises(KeptError, match=reason) as caught:
        store.delete(first)
    assert not caught.value.retriable
