"""Stages, each by itself, on the store for tests."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import pytest

from app.pipeline.stages import InflateStage
from app.pipeline.stats import PipelineStats
from stores.registry import open_store
from tests.app.pipeline.chains import begun, chain_of, memory, offload_stage, settings_of, taken
from tests.app.pipeline.plain_store import PlainStore
from transforms.compression import CODECS, Codec
from transforms.errors import PayloadTooLargeError
from transforms.record import Record


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_digest_names_the_stored_bytes(codec: Codec | None) -> None:
    """The default id is the SHA-256 of what is stored, compressed or not, so that a replay rewrites the object."""
    store = memory()
    stage = offload_stage(store, 0, compression=codec or "none")
    record = Record(None, b"value " * 500)
    paths = {taken(stage, record)[0].value, taken(stage, record)[0].value}
    (path,) = paths
    assert path is not None
    stored = store.download(path.decode())
    assert path.decode().rpartition("/")[2] == hashlib.sha256(stored).hexdigest()
    assert (stored == record.value) is (codec is None)


def test_value_that_does_not_shrink_is_stored_as_it_is() -> None:
    """The digest is then that of the value, and the reference names no compression."""
    store = memory()
    stage = offload_stage(store, 0, compression="zstd")
    value = hashlib.sha256(b"").digest()
    record = Record(None, value)
    (reference,) = taken(stage, record)
    assert reference.value is not None
    assert reference.value.decode().endswith(f"/orders/{hashlib.sha256(value).hexdigest()}")
    assert "large-message.compression" not in dict(reference.headers)


def test_own_store_names_its_payloads_itself() -> None:
    """A store that offers no more than the seed's interface is used through it."""
    store = open_store({"large.message.payload.store.class": f"{PlainStore.__module__}:PlainStore"})
    record = Record(b"k", b"v" * 200)
    offload = offload_stage(store)
    (reference,) = taken(offload, record)
    assert reference.value == b"plain://orders/0"
    assert taken(InflateStage(settings_of(["inflate"]), store, PipelineStats()), reference) == (record,)


def test_a_reference_without_a_size_is_measured() -> None:
    """The store says how long a payload is; the record then reserves that much, and no more of it is read."""
    store = memory(large_message_max_bytes=1_000)
    path = store.publish("orders", bytes(600))
    headers = (("large-message", b"true"),)
    chain = chain_of(["inflate"], store, large_message_max_bytes=1_000)
    work = begun(chain, Record(b"k", path.encode(), headers))
    assert (work.lacks_size, work.reserve_bytes) == (True, 0)
    measured = chain.go_on(work)
    assert (measured.lacks_size, measured.reserve_bytes) == (False, 600)
    assert chain.go_on(measured).records[0].value == bytes(600)
    cast(Any, store).put("orders", path.rpartition("/")[2], bytes(700))
    again = chain.go_on(measured)
    assert (again.step is None, again.reserve_bytes, chain.go_on(again).records[0].value) == (False, 700, bytes(700))


def test_a_payload_is_measured_before_it_is_refused() -> None:
    """One that is over the limit fails before anything is reserved for it."""
    store = memory(large_message_max_bytes=10_000)
    path = store.publish("orders", bytes(1_001))
    chain = chain_of(["inflate"], store, large_message_max_bytes=1_000)
    with pytest.raises(PayloadTooLargeError, match="1,001 bytes, the limit is 1,000"):
        chain.go_on(begun(chain, Record(b"k", path.encode(), (("large-message", b"true"),))))
