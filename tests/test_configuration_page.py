"""The configuration page and the definitions of the keys agree."""

from __future__ import annotations

import tomllib

from app.chunks import keys as chunks
from app.config.client import LIMIT
from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS
from app.config.parsing import parse
from app.config.settings import PIPELINE_KEYS, WORKER_KEYS
from app.config.wrapping import HEADER_KEY
from app.serializers import options
from docs.configuration_page import DESERIALIZER_KEYS, EXAMPLE, PAGE, SERIALIZER_KEYS, page
from stores.registry import STORE_NAMES, store_keys
from stores.store import COMMON_KEYS


def test_page_is_up_to_date() -> None:
    """The page in docs/ is the one generated from the keys."""
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/configuration.md is stale: run make docs"


def test_page_has_each_key_once() -> None:
    """Every key of the worker, of pipelines, of all stores and of both kinds of client has one row."""
    stores = [key for name in STORE_NAMES for key in store_keys(name) or ()]
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    expected = [*WORKER_KEYS, *PIPELINE_KEYS, *COMMON_KEYS, *stores, *CONSUMER_KEYS, *PRODUCER_KEYS]
    expected.append(HEADER_KEY)  # one for each number
    # The clients' own, which do not stand in the file.
    expected += [*SERIALIZER_KEYS, options.STORE_KEY, *options.PRODUCER_KEYS]
    expected += [*DESERIALIZER_KEYS, options.STORE_KEY, *options.CONSUMER_KEYS]
    of_chunks = [chunks.STRATEGY, *chunks.PRODUCER_KEYS, *chunks.CONSUMER_KEYS]
    expected += [key for key in of_chunks if key is not LIMIT]  # the worker's own stands for theirs
    assert sorted(row.split("`")[1] for row in rows) == sorted(key.name for key in expected)
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)


def test_page_marks_secrets() -> None:
    """Secret keys are marked, and no others."""
    marked = {line.split("`")[1] for line in page().splitlines() if line.startswith("| `") and "*Secret.*" in line}
    assert marked == {
        "large.message.encryption.key.secret",
        "large.message.encryption.previous.keys",
        "large.message.signing.key",
        "large.message.signing.previous.keys",
        "sasl.oauthbearer.client.credentials.client.secret",
        "web.control.token",
        "sasl.password",
        "ssl.key.password",
        "azure.account.key",
        "azure.client.secret",
        "azure.sas.token",
        "gcs.credentials.json",
        "s3.secret.key",
        "s3.session.token",
    }


def test_example_loads() -> None:
    """The example on the page is a valid configuration."""
    document = tomllib.loads(EXAMPLE.replace("${file:/run/secrets/payloads}", "${env:PAYLOADS_KEY}"))
    settings = parse(document, {"PAYLOADS_KEY": "k"})
    assert [pipeline.name for pipeline in settings.pipelines] == ["orders-offload", "orders-inflate"]
    assert {pipeline.producer["producer.compression.type"] for pipeline in settings.pipelines} == {"zstd"}
