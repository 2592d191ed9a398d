"""The configuration page and the definitions of the properties agree."""

from __future__ import annotations

import re
import tomllib
from collections import Counter

from app.chunks import keys as chunks
from app.config.client import LIMIT
from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS
from app.config.parsing import parse
from app.config.settings import PIPELINE_KEYS, WORKER_KEYS
from app.config.wrapping import HEADER_KEY
from app.serializers import options
from docs.configuration_page import DESERIALIZER_KEYS, EXAMPLE, PAGE, SERIALIZER_KEYS, anchors, page
from stores.registry import STORE_NAMES, store_keys
from stores.store import COMMON_KEYS


def described() -> list[tuple[str, str, str]]:
    """Of each property on the page: its anchor, its name, and the cells of its table."""
    heading = re.compile(
        r'^### <a id="(\S+)"></a>`(\S+)`\n\n\S.*\n\n'
        r"\| type \| default \| valid values \|\n\| --- \| --- \| --- \|\n\| (.*) \|\n",
        re.MULTILINE,
    )
    return heading.findall(page())


def test_each_property_has_one_anchor() -> None:
    """A link leads to each property: by its name, or with a prefix that shows the client; each has its whole table."""
    found = described()
    assert [(anchor, name) for anchor, name, _ in found] == [(anchor, key.name) for anchor, key in anchors()]
    assert [anchor for anchor, times in Counter(re.findall(r'<a id="([^"]+)">', page())).items() if times > 1] == []
    assert page().count("\n### ") == len(found)
    plain = {anchor for anchor, name, _ in found if anchor == name}
    assert {"in.flight.bytes", "errors.retry.timeout", "s3.bucket", "wrapper.header.NUMBER"} <= plain
    assert {anchor.removesuffix(name) for anchor, name, _ in found} == {
        "", "serializers-", "deserializers-", "chunks-producer-", "chunks-consumer-"
    }  # fmt: skip
    assert all(cells.count(" | ") == 2 for _, _, cells in found)


def test_links_to_properties_lead_to_one() -> None:
    """What a page links to on this page is the anchor of a property, or a section."""
    titles = re.findall("^## (.*)$", page(), re.MULTILINE)
    sections = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    known = sections | {anchor for anchor, _ in anchors()}
    texts = [path.read_text(encoding="utf-8") for path in (*PAGE.parent.glob("*.md"), PAGE.parents[1] / "README.md")]
    links = [link for text in texts for link in re.findall(r"configuration\.md#([^)\s`]+)", text)]
    assert len(links) > 10
    assert [link for link in links if link not in known] == []


def test_tables() -> None:
    """Defaults have their unit, and the values that are allowed are those of the definitions."""
    cells = {anchor: cells for anchor, _, cells in described()}
    assert cells["in.flight.bytes"] == "bytes | `268435456` (256 MiB) | 1 or more"
    assert cells["producer.request.timeout.ms"] == "int | `40000` (40 seconds) | 1 to 2,147,483,647"
    assert cells["consumer.session.timeout.ms"].startswith("int | `45000` (45 seconds) |")
    assert cells["errors.retry.delay.max.ms"] == "int | `60000` (1 minute) | 1 or more"
    assert cells["errors.retry.timeout"] == "int | `-1` | -1 or more"
    assert cells["errors.tolerance"] == "string | `none` | `none`, `all`"
    assert cells["web.control.enable"] == "boolean | `false` | `true`, `false`"
    assert cells["s3.prefix"] == "string | empty | "
    assert cells["topics"] == "list | **required** | list of strings"
    assert cells["large.message.signing.previous.keys"] == "list of passwords | not set | list of strings"


def test_page_has_each_property_once() -> None:
    """Every property of the worker, of pipelines, of all stores and of both kinds of client is described."""
    stores = [key for name in STORE_NAMES for key in store_keys(name) or ()]
    expected = [*WORKER_KEYS, *PIPELINE_KEYS, *COMMON_KEYS, *stores, *CONSUMER_KEYS, *PRODUCER_KEYS]
    expected.append(HEADER_KEY)  # one for each number
    # The clients' own, which do not stand in the file.
    expected += [*SERIALIZER_KEYS, options.STORE_KEY, *options.PRODUCER_KEYS]
    expected += [*DESERIALIZER_KEYS, options.STORE_KEY, *options.CONSUMER_KEYS]
    of_chunks = [chunks.STRATEGY, *chunks.PRODUCER_KEYS, *chunks.CONSUMER_KEYS]
    expected += [key for key in of_chunks if key is not LIMIT]  # the worker's own stands for theirs
    assert sorted(name for _, name, _ in described()) == sorted(key.name for key in expected)


def test_page_marks_secrets() -> None:
    """Secret properties are passwords, and no others."""
    assert {name for _, name, cells in described() if "password" in cells.split(" | ")[0]} == {
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
