"""The proxy before real S3 servers: each fault is what the store's own errors say it is, and is counted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stores.s3 import S3Store
from tests.faults.proxy import Cut, Down, Error, Fault, FaultProxy, Hang, Ok, Slow
from tests.integration.worker_process import until
from tests.s3_server import S3Server
from transforms.errors import PayloadStoreError

DATA = os.urandom(3_000_000)


@pytest.fixture
def store(versitygw: S3Server, proxy: FaultProxy) -> Iterator[S3Store]:
    """A store behind the proxy that tries once, with short waits."""
    yield from _store(versitygw, proxy, **{"s3.read.timeout.ms": 3_000, "s3.connection.timeout.ms": 3_000})


def _store(server: S3Server, proxy: FaultProxy, **keys: object) -> Iterator[S3Store]:
    store = S3Store()
    behind = replace(server, endpoint=proxy.endpoint)
    store.configure({**behind.config("proxy/"), "s3.retry.attempts": 1, **keys})
    yield store
    store.close()


def test_proxy_passes_requests(store: S3Store, proxy: FaultProxy) -> None:
    """Signed requests, large bodies, listings and refusals go through, on one connection."""
    paths = [store.publish("orders", data) for data in (DATA, b"", b"small")]
    assert [store.download(path) for path in paths] == [DATA, b"", b"small"]
    assert sorted(info.size for info in store.list("orders")) == [0, 5, 3_000_000]
    with pytest.raises(PayloadStoreError, match="no payload"):
        store.download(paths[0][:-1] + "x")
    until(lambda: (proxy.counts.requests, proxy.counts.passed) == (8, 8), "all have passed")
    assert proxy.counts.connections <= 2


@pytest.mark.parametrize(
    ("fault", "counted", "says"),
    [
        (Hang(), "hung", "ReadTimeoutError"),
        (Error(503), "errors", "SlowDown"),
        (Error(507, code="XMinioStorageFull"), "errors", "HTTP 507"),
        (Cut(1_000_000, "upload"), "cuts", "ConnectionClosedError|ConnectionError|HTTPClientError"),
        (Slow(30.0), "slowed", "ReadTimeoutError"),  # it gives up long before
    ],
    ids=lambda value: type(value).__name__,
)
def test_proxy_breaks_uploads(store: S3Store, proxy: FaultProxy, fault: Fault, counted: str, says: str) -> None:
    """Each fault is an error that may pass; when it is over, the same works."""
    proxy.switch(fault)
    with pytest.raises(PayloadStoreError, match=says) as caught:
        store.publish("orders", DATA)
    assert caught.value.retriable
    assert getattr(proxy.counts, counted) == 1
    proxy.switch(Ok())
    assert store.download(store.publish("orders", DATA)) == DATA


def test_proxy_cuts_downloads(store: S3Store, proxy: FaultProxy) -> None:
    """An answer that ends in the middle of its body is an error that may pass; one that is shorter than that is not."""
    path, short = store.publish("orders", DATA), store.publish("orders", b"short")
    proxy.switch(Cut(1_000_000, "download"))
    with pytest.raises(PayloadStoreError, match=r"closed after|Connection broken") as caught:
        store.download(path)
    assert (caught.value.retriable, proxy.counts.cuts) == (True, 1)
    assert store.download(short) == b"short"


def test_proxy_goes_down(store: S3Store, proxy: FaultProxy) -> None:
    """While it is down connections are refused, those that were open too; it comes back on the same port."""
    path = store.publish("orders", DATA)
    proxy.switch(Down())
    requests = proxy.counts.requests
    with pytest.raises(PayloadStoreError, match="Connection") as caught:
        store.download(path)
    # It was refused, and not kept waiting until it gave up.
    assert (caught.value.retriable, "imeout" in str(caught.value), proxy.counts.requests) == (True, False, requests)
    proxy.switch(Ok())
    assert store.download(path) == DATA
    assert (proxy.counts.requests, proxy.counts.downs) == (requests + 1, 1)


def test_proxy_answers_a_share_with_errors(store: S3Store, proxy: FaultProxy) -> None:
    """About the share that was asked for fails, the others pass."""
    proxy.switch(Error(503, share=0.5))
    failed = 0
    for _ in range(40):
        try:
            store.publish("orders", b"small")
        except PayloadStoreError:
            failed += 1
    assert 10 <= failed <= 30
    until(lambda: (proxy.counts.errors, proxy.counts.passed) == (failed, 40 - failed), "all are counted")
