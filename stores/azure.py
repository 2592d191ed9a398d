"""Payloads in Azure Blob Storage: `abs://<container>/<prefix>/<topic>/<id>`, as bakdata's serde writes it.

Objects are put, read and listed by obstore. A delete has the ETag that was looked at as its condition, which obstore
cannot do: it is signed with the key of the account, or goes to a URL that obstore signs, or to one with the shared
access signature of the keys.

The role needed is Storage Blob Data Contributor on the container, or a shared access signature with `rwdl`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Never, cast
from urllib.parse import quote, urlsplit

from stores.cloud import CloudStore, client_keys
from stores.endpoint import check_endpoint
from stores.keys import REQUIRED, Key, Value
from stores.store import ExpiryRule
from transforms.errors import ConfigurationError, PayloadStoreError

if TYPE_CHECKING:
    from stores.cloud_client import CloudClient, Found
    from stores.cloud_errors import Cloud
    from stores.cloud_rest import Rest

__all__ = ["AzureStore"]

_VERSION = "2023-11-03"  # of Azure's interface, the one that obstore asks for
_SIGNED_FOR = timedelta(minutes=15)
_UNCHANGED = re.compile(r"[a-zA-Z0-9._/-]*")  # the characters that no URL writes otherwise
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")


class AzureStore(CloudStore):
    """See `stores.cloud.CloudStore`."""

    SCHEME: ClassVar[str] = "abs"
    START: ClassVar[str] = "azure"
    CONTAINER: ClassVar[str] = "container"
    CONTAINER_NAME: ClassVar[re.Pattern[str]] = re.compile(r"(?!.*--)[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
    CONTAINER_ALLOWED: ClassVar[str] = "3 to 63 characters a-z, 0-9 and '-', a-z or 0-9 at both ends, without '--'"

    KEYS: ClassVar[Sequence[Key]] = (
        Key("azure.container", "string", "The container. It must exist.", default=REQUIRED),
        Key("azure.account.name", "string", "The storage account.", default=REQUIRED),
        Key(
            "azure.endpoint",
            "string",
            "The URL of the blob service, if it is not `https://ACCOUNT.blob.core.windows.net`: for example of a "
            "sovereign cloud, a private endpoint, or an emulator (`http://localhost:10000/devstoreaccount1`). "
            "`http://` requires `azure.account.key`.",
        ),
        Key(
            "azure.account.key",
            "string",
            "The key of the account. Default: environment variables (`AZURE_CLIENT_ID`, `AZURE_TENANT_ID`, "
            "`AZURE_CLIENT_SECRET`), workload identity (`AZURE_FEDERATED_TOKEN_FILE`) or managed identity.",
            secret=True,
        ),
        Key("azure.sas.token", "string", "A shared access signature, instead of an account key.", secret=True),
        Key(
            "azure.client.id",
            "string",
            "The application that authenticates with `azure.client.secret`. Without a secret: the managed or workload "
            "identity to use.",
        ),
        Key(
            "azure.client.secret", "string", "The secret of `azure.client.id`; requires `azure.tenant.id`.", secret=True
        ),
        Key("azure.tenant.id", "string", "The tenant of `azure.client.id`."),
        *client_keys("azure", "abs://container/prefix/topic/id"),
    )

    def client(self, values: Mapping[str, Value | None]) -> CloudClient:
        """See `CloudStore.client`."""
        account, container = cast("str", values["azure.account.name"]), cast("str", values["azure.container"])
        if not _ACCOUNT.fullmatch(account):
            raise ConfigurationError(
                "azure.account.name", f"found {account!r}, allowed are 3 to 24 characters a-z and 0-9"
            )
        given = cast("str | None", values["azure.endpoint"]) or f"https://{account}.blob.core.windows.net"
        endpoint = check_endpoint("azure.endpoint", given, r"(/[a-z0-9]{3,24})?", "and perhaps the account")
        credentials = _credentials(values)
        plain = endpoint.startswith("http://")
        if plain and "account_key" not in credentials:
            raise ConfigurationError(
                "azure.endpoint",
                "begins with http://, so the token could be intercepted; use https://, or azure.account.key, which "
                "signs requests and is not sent",
            )
        try:
            from obstore.exceptions import BaseError
            from obstore.store import AzureStore as Container

            from stores.cloud_client import CloudClient, client_options
            from stores.cloud_rest import Rest
        except ImportError as exc:
            raise ConfigurationError(
                "large.message.payload.store.class",
                f"found 'azure', which needs obstore and requests ({exc}); install them: pip install 'wideload[azure]'",
            ) from exc
        times = self.times(values)
        self._account = account
        self._account_key, self._sas = credentials.get("account_key"), credentials.get("sas_key")
        if self._account_key is None and self._sas is None:
            _check_signable(account, endpoint, cast("str", values["azure.prefix"]))
        self._container_url = f"{endpoint}/{container}"
        self._rest: Rest = Rest.opened(times.connect_ms, times.read_ms, self._threads)

        def made(*, reading: bool) -> Container:
            options = client_options(times, self._threads, plain=plain, reading=reading)
            config = {"account_name": account, "endpoint": endpoint, **credentials}
            return Container(
                container,
                config=cast("Any", config),
                client_options=cast("Any", options),
                retry_config={"max_retries": 0},
            )

        try:
            reader, writer = made(reading=True), made(reading=False)
        except BaseError as exc:
            # obstore's message may contain part of the key, so it is not shown.
            reason = "is not an account key" if "Invalid Access Key" in str(exc) else "is refused by obstore"
            raise ConfigurationError(_key_of(credentials), reason) from None
        return CloudClient(reader, writer, times, _cloud(container, _key_of(credentials)))

    def pages_below(self, prefix: str) -> Iterator[Sequence[Found]]:
        """See `CloudStore.pages_below`."""
        yield from self._client.pages(prefix.removesuffix("/"), f"{self._container_uri}{prefix}")

    def folders_below(self, prefix: str) -> Iterator[str]:
        """See `BucketStore.folders_below`; all are in memory together."""
        for folder in self._client.folders(prefix.removesuffix("/"), f"{self._container_uri}{prefix}"):
            yield f"{folder}/"

    def delete_key(self, key: str, path: str) -> None:
        """See `CloudStore.delete_key`."""
        self._delete(key, path, {})

    def delete_found(self, found: Found, path: str) -> bool:
        """See `CloudStore.delete_found`. An account with versions keeps what is deleted as an old one."""
        if found.etag is None:
            raise PayloadStoreError(f"Azure delete {path} failed: the server returns no ETag", key="azure.endpoint")
        self._delete(found.key, path, {"If-Match": found.etag})
        return found.version is not None

    def expiry_rules(self, topic: str) -> Sequence[ExpiryRule]:  # noqa: ARG002
        """See `Lifecycle.expiry_rules`; always raises, since the rules cannot be read with these credentials."""
        self._no_rules("get-rules")

    def set_expiry(self, topic: str, days: int | None) -> bool:  # noqa: ARG002
        """See `Lifecycle.set_expiry`; always raises."""
        self._no_rules("set-rules")

    def close(self) -> None:
        self._rest.session.close()

    def _no_rules(self, operation: str) -> Never:
        raise PayloadStoreError(
            f"Azure {operation} {self._container_uri} failed: the rules are the account's management policy, which "
            "cannot be read or written with permissions on its blobs; see them in the portal (Lifecycle "
            "management) or with `az storage account management-policy show`"
        )

    def _delete(self, key: str, path: str, condition: Mapping[str, str]) -> None:
        from stores.cloud_client import ChangedError
        from stores.cloud_rest import RestError

        url = f"{self._container_url}/{quote(key)}"
        if self._sas:
            url = f"{url}?{self._sas}"
        elif self._account_key is None:
            url = self._client.signed("DELETE", key, path, _SIGNED_FOR)

        def send(seconds: float) -> None:
            headers = {"x-ms-version": _VERSION, **condition}
            if self._account_key is not None:
                headers |= _signature(self._account, self._account_key, url, headers)
            try:
                self._rest.send("DELETE", url, seconds, headers=headers)
            except RestError as exc:
                if exc.status == HTTPStatus.PRECONDITION_FAILED and condition and "ConditionNotMet" in str(exc):
                    raise ChangedError from None
                raise

        self._client.call(send, "delete", path)


def _credentials(values: Mapping[str, Value | None]) -> dict[str, str]:
    """The configured credentials, as obstore names them. obstore adds those that it finds in the environment."""
    key, sas, client, secret, tenant = (
        cast("str | None", values[f"azure.{name}"])
        for name in ("account.key", "sas.token", "client.id", "client.secret", "tenant.id")
    )
    if key is not None and sas is not None:
        raise ConfigurationError("azure.sas.token", "cannot be combined with azure.account.key")
    if secret is not None and (client is None or tenant is None):
        raise ConfigurationError("azure.client.secret", "also requires azure.client.id and azure.tenant.id")
    if secret is not None and (key is not None or sas is not None):
        raise ConfigurationError("azure.client.secret", "cannot be combined with azure.account.key or azure.sas.token")
    if key is not None:
        return {"account_key": str(key), "credential_type": "access_key"}
    if sas is not None:
        return {"sas_key": str(sas).removeprefix("?"), "credential_type": "sas_token"}
    found = {"client_id": client, "client_secret": secret, "tenant_id": tenant}
    named = {name: str(value) for name, value in found.items() if value is not None}
    return named if secret is None else {**named, "credential_type": "client_secret"}


def _check_signable(account: str, endpoint: str, prefix: str) -> None:
    """Refuses what obstore would sign incorrectly: it signs a URL as it is sent, and Azure verifies the decoded URL."""
    if not _UNCHANGED.fullmatch(prefix):
        raise ConfigurationError(
            "azure.prefix",
            f"found {prefix!r}, allowed are the characters a-z, A-Z, 0-9, '.', '_', '-' and '/', unless "
            "azure.account.key or azure.sas.token is set",
        )
    host, _, path = endpoint.partition("://")[2].partition("/")
    if account not in host and path != account:
        raise ConfigurationError(
            "azure.endpoint",
            f"found {endpoint!r}; the host name must contain the storage account, unless azure.account.key or "
            "azure.sas.token is set",
        )


def _signature(account: str, key: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers that sign a DELETE with the key of the account.

    Source: Azure Storage, "Authorize with Shared Key".
    """
    dated = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": headers["x-ms-version"]}
    canonical = "".join(f"{name}:{value}\n" for name, value in sorted(dated.items()))
    resource = f"/{account}{urlsplit(url).path}"
    text = f"DELETE{chr(10) * 8}{headers.get('If-Match', '')}{chr(10) * 4}{canonical}{resource}"
    digest = hmac.digest(b64decode(key), text.encode(), hashlib.sha256)
    return {**dated, "Authorization": f"SharedKey {account}:{b64encode(digest).decode()}"}


def _key_of(credentials: Mapping[str, str]) -> str:
    """The property that is probably wrong if these credentials are refused."""
    names = {"account_key": "account.key", "sas_key": "sas.token", "client_secret": "client.secret"}
    return f"azure.{next((names[name] for name in names if name in credentials), 'client.id')}"


def _cloud(container: str, key: str) -> Cloud:
    from stores.cloud_errors import Cloud

    return Cloud(
        name="Azure",
        container=f"container {container}",
        container_key="azure.container",
        endpoint_key="azure.endpoint",
        credentials_key=key,
        permissions="the role Storage Blob Data Contributor, or a shared access signature with rwdl",
        missing=frozenset({"BlobNotFound", "ResourceNotFound"}),
        no_container=frozenset({"ContainerNotFound"}),
        kept=frozenset({"BlobImmutableDueToPolicy", "BlobImmutableDueToLegalHold"}),
        passing=frozenset(
            {"ServerBusy", "InternalError", "OperationTimedOut", "ContainerBeingDeleted", "AccountBeingCreated"}
        ),
        denied=frozenset({"AccountIsDisabled", "ContainerDisabled", "KeyBasedAuthenticationNotPermitted"}),
        blamed={"InvalidResourceName": "azure.container", "AuthenticationFailed": key},
        advice={
            "AuthenticationFailed": f"check {key}, and the clock of this machine",
            "AuthorizationFailure": f"check {key}; the firewall of the account may refuse this address",
            "SnapshotsPresent": "a blob with snapshots is not deleted; delete the snapshots first",
        },
    )
