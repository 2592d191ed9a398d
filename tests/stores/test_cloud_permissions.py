"""What a bucket of Google's, or a container of Azure's, lets its callers do, and how `check` finds it out."""

from __future__ import annotations

import contextlib
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import PurePosixPath

import pytest

from stores.azure import AzureStore
from stores.cloud import CloudStore
from stores.gcs import GcsStore
from stores.store import PayloadInfo
from tests.stores.kept_payloads import assert_a_second_put_has_another_name
from tests.stores.scripted_server import (
    Bucket,
    Refusal,
    Request,
    Script,
    ScriptedServer,
    Wire,
    error,
    said,
    scripted_server,
)
from transforms.errors import PayloadNotFoundError, PayloadStoreAccessError, PayloadStoreError

NAME = "orders", "an-id"
ACCOUNT = {
    "azure.container": "payloads",
    "azure.account.name": "acme",
    "azure.account.key": b64encode(b"a-key").decode(),
    "azure.retry.attempts": 1,
}


@contextlib.contextmanager
def bucket(made: type[CloudStore], refuses: Refusal) -> Iterator[tuple[CloudStore, Bucket, ScriptedServer]]:
    """A store on a bucket in memory."""
    objects = Bucket(refuses)
    with scripted_server(objects) as server:
        store = made()
        if made is AzureStore:
            store.configure({**ACCOUNT, "azure.endpoint": f"{server.endpoint}/acme"})
        else:
            keys = {"gcs.bucket": "payloads", "gcs.anonymous": True, "gcs.retry.attempts": 1}
            store.configure({**keys, "gcs.endpoint": server.endpoint})
        with contextlib.closing(store):
            yield store, objects, server


def denied(right: str) -> Script:
    """As Google's XML interface names the permission that is missing."""
    details = f"<Details>me does not have {right} access to the Google Cloud Storage object.</Details>"
    return said(403, "AccessDenied", "Access denied.", details)


def empty_page(_: Request, wire: Wire) -> bool:
    """A listing without objects."""
    wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    return True


def google(*rights: str, unlisted: str = "storage.objects.list") -> Refusal:
    """Refuses as Google does; `unlisted` is what it says of a missing object to a caller that may not list."""

    def refuses(request: Request, there: bool) -> Script | None:  # noqa: FBT001
        by_method = {"PUT": "create", "DELETE": "delete", "GET": "get", "HEAD": "get"}
        right = f"storage.objects.{'list' if '/o?' in request.path else by_method[request.method]}"
        if right not in rights:
            return denied(right)
        if "/o?" in request.path:
            return empty_page
        reading = request.method in ("GET", "HEAD") and not there
        return denied(unlisted) if reading and "storage.objects.list" not in rights else None

    return refuses


@pytest.mark.parametrize(
    ("rights", "writing"),
    [
        (["storage.objects.create"], True),
        (["storage.objects.create", "storage.objects.delete"], True),
        (["storage.objects.get"], False),
        (["storage.objects.get", "storage.objects.list"], False),
    ],
)
@pytest.mark.parametrize("unlisted", ["storage.objects.list", "storage.objects.get"])
def test_the_permissions_of_the_docs_are_enough_for_the_check(rights: list[str], writing: bool, unlisted: str) -> None:  # noqa: FBT001
    """A writer needs to put and a reader to get; the probe goes where it may."""
    with bucket(GcsStore, google(*rights, unlisted=unlisted)) as (store, made, _):
        store.check(writing=writing)
        store.check(writing=writing)
        left = [PurePosixPath(name).name.startswith("~wideload-check-") for name in made.objects]
        assert left == ([True, True] if rights == ["storage.objects.create"] else [])


@pytest.mark.parametrize(
    ("rights", "writing", "missing"),
    [
        (["storage.objects.get"], True, "storage.objects.create"),
        (["storage.objects.create", "storage.objects.list"], False, "storage.objects.get"),
    ],
)
def test_a_permission_that_is_missing_is_named(rights: list[str], writing: bool, missing: str) -> None:  # noqa: FBT001
    """By the check, and alone: Google says which one it is."""
    with (
        bucket(GcsStore, google(*rights)) as (store, _, _),
        pytest.raises(PayloadStoreAccessError, match=f"it needs {missing}$") as caught,
    ):
        store.check(writing=writing)
    assert caught.value.key == "gcs.credentials.file"


def test_an_encryption_key_that_is_refused_is_found_by_the_check() -> None:
    """By the probe, before the first record, and with the key to change."""
    refused = said(403, "AccessDenied", "Access denied.", "<Details>Permission denied on Cloud KMS key.</Details>")
    with (
        bucket(GcsStore, lambda *_: refused) as (store, _, _),
        pytest.raises(PayloadStoreAccessError, match=r"Cloud KMS key.*check gcs\.kms\.key") as caught,
    ):
        store.check()
    assert caught.value.key == "gcs.kms.key"


def test_a_missing_payload_without_the_right_to_list() -> None:
    """Google says that the caller may not list, and only if the payload does not exist."""
    with bucket(GcsStore, google("storage.objects.get")) as (store, _, _):
        path = store.root.path(*NAME)
        for call in (lambda: store.get(path, 9), lambda: store.stat(path)):
            with pytest.raises(PayloadNotFoundError):
                call()


@pytest.mark.parametrize("made", [GcsStore, AzureStore])
def test_credentials_that_are_refused_are_found_by_a_reader(made: type[CloudStore]) -> None:
    """A refusal of all that is asked is no doubt about what may be listed."""
    with bucket(made, lambda *_: error(401, "Unauthenticated")) as (store, _, _):
        for writing in (True, False):
            with pytest.raises(PayloadStoreAccessError):
                store.check(writing=writing)


@pytest.mark.parametrize("made", [GcsStore, AzureStore])
def test_a_writer_is_not_asked_to_read(made: type[CloudStore]) -> None:
    """A signature or a role that may only write is enough to offload."""

    def refuses(request: Request, _: object) -> Script | None:
        return None if request.method == "PUT" else error(403, "AuthorizationPermissionMismatch")

    with bucket(made, refuses) as (store, objects, _):
        store.check()
        assert len(objects.objects) == 1  # the probe stays
        with pytest.raises(PayloadStoreAccessError):
            store.check(writing=False)


HELD = "Object 'payloads/orders/an-id' is under active Temporary hold and cannot be deleted or overwritten."


@pytest.mark.parametrize(
    ("made", "refusal"),
    [
        (AzureStore, said(409, "BlobImmutableDueToPolicy", "Not permitted.")),
        (AzureStore, said(409, "BlobImmutableDueToLegalHold", "Not permitted.")),
        (GcsStore, said(403, "RetentionPolicyNotMet", "Not yet.")),
        (GcsStore, said(403, "ObjectUnderActiveHold", "Held.")),
        (GcsStore, said(403, "forbidden", HELD)),
    ],
)
def test_a_payload_that_is_kept_gets_a_younger_one_beside_it(made: type[CloudStore], refusal: Script) -> None:
    """Under a retention policy or a hold nothing is replaced: what is published again has another name."""

    def refuses(request: Request, there: bool) -> Script | None:  # noqa: FBT001
        return refusal if there and request.method in ("PUT", "DELETE") else None

    with bucket(made, refuses) as (store, _, _):
        assert_a_second_put_has_another_name(store, "a retention policy or a hold protects it")


def test_a_payload_that_is_kept_stays_in_a_sweep() -> None:
    """It is a failure of this payload, with the reason and without a wrong advice about permissions."""
    modified = datetime(2025, 11, 26, 10, tzinfo=UTC)

    def refuses(request: Request, _: object) -> Script | None:
        return said(409, "BlobImmutableDueToPolicy", "No.") if request.method == "DELETE" else None

    with bucket(AzureStore, refuses) as (store, _, _):
        listed = PayloadInfo(store.put(*NAME, b"data"), 4, modified)
        (removal,) = store.delete_unchanged([listed])
        assert removal.outcome == "failed"
        assert "a retention policy or a hold protects it" in (removal.error or "")
        assert "Contributor" not in (removal.error or "")


@pytest.mark.parametrize(("made", "code"), [(GcsStore, "NoSuchKey"), (AzureStore, "BlobNotFound")])
def test_a_put_that_finds_nothing_is_no_missing_payload(made: type[CloudStore], code: str) -> None:
    """Whatever the service means by it."""
    with bucket(made, lambda *_: error(404, code)) as (store, _, _):
        for call in (store.check, lambda: store.put(*NAME, b"data"), lambda: list(store.topics())):
            with pytest.raises(PayloadStoreError, match=code) as caught:
                call()
            assert not isinstance(caught.value, PayloadNotFoundError)
