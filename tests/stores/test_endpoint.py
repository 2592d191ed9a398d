"""The URL of a server, as each store with a server takes it."""

from __future__ import annotations

import pytest

from app.config.secret import Secret
from stores.azure import AzureStore
from stores.endpoint import check_endpoint
from stores.gcs import GcsStore
from stores.s3 import S3Store
from stores.store import Store
from transforms.errors import ConfigurationError

STORES: dict[str, tuple[type[Store], dict[str, object]]] = {
    "azure.endpoint": (AzureStore, {"azure.container": "payloads", "azure.account.name": "acme"}),
    "gcs.endpoint": (GcsStore, {"gcs.bucket": "payloads"}),
    "s3.endpoint": (S3Store, {"s3.bucket": "payloads", "s3.region": "eu-central-1"}),
}


@pytest.mark.parametrize("key", STORES)
@pytest.mark.parametrize(
    "endpoint",
    ["localhost:9000", "http://u:hunter2@host", "http://u:hunter2/@host", "http://host:0", "http://host:65536"],
)
def test_each_store_names_its_key(key: str, endpoint: str) -> None:
    """What is no endpoint is refused before a library sees it, and without the password in it."""
    made, config = STORES[key]
    with pytest.raises(ConfigurationError, match="allowed is http:// or https://, host and port") as caught:
        made().configure({**config, key: endpoint})
    assert caught.value.key == key
    assert "hunter2" not in str(caught.value)


def test_an_endpoint_from_elsewhere_stays_hidden() -> None:
    """A value of an environment variable is not repeated."""
    with pytest.raises(ConfigurationError, match=r"^gcs\.endpoint: found \*\*\*, allowed is"):
        check_endpoint("gcs.endpoint", Secret("ftp://hunter2/"))


@pytest.mark.parametrize(
    ("endpoint", "checked"), [("HTTP://Host:80//", "http://Host:80"), ("https://[::1]:443", "https://[::1]:443")]
)
def test_an_endpoint_has_one_form(endpoint: str, checked: str) -> None:
    """Whoever looks whether it begins with `http://` sees it."""
    assert check_endpoint("gcs.endpoint", endpoint) == checked
