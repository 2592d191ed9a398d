"""What a bucket lets its callers do: permissions, Object Lock, encryption, removals, and how `check` finds it out."""

from __future__ import annotations

import contextlib
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from email.utils import parsedate_to_datetime
from hashlib import md5
from pathlib import PurePosixPath
from typing import Any
from zlib import crc32

import pytest
from botocore.exceptions import ClientError

from stores import registry
from stores.s3 import S3Store
from stores.s3_puts import _crc32, _md5
from stores.store import PayloadInfo
from tests.s3_server import S3Server
from tests.stores.kept_payloads import assert_a_second_put_has_another_name
from tests.stores.scripted_server import (
    MODIFIED,
    Bucket,
    Refusal,
    Request,
    Script,
    ScriptedServer,
    error,
    payload,
    said,
    scripted_server,
)
from tests.stores.test_s3 import NAME, opened
from transforms.errors import PayloadNotFoundError, PayloadStoreAccessError, PayloadStoreError

DENIED = "User: arn:aws:iam::1:role/any is not authorized to perform: {} on resource: arn:aws:s3:::payloads"


def allowing(*rights: str, words: bool) -> Refusal:
    """Refuses as AWS does; with `words` the message names the permission, as it does within an organization."""
    needed = {"PUT": "s3:PutObject", "GET": "s3:GetObject", "HEAD": "s3:GetObject", "DELETE": "s3:DeleteObject"}

    def refuses(request: Request, there: bool) -> Script | None:  # noqa: FBT001
        listing = "list-type" in request.path or request.path == "/payloads"
        right = "s3:ListBucket" if listing else needed[request.method]
        if right == "s3:GetObject" and right in rights and not there:
            right = "s3:ListBucket"  # by which S3 decides whether to say that the object is missing
        if right in rights:
            return None
        return said(403, "AccessDenied", DENIED.format(right) if words else "Access Denied")

    return refuses


@contextlib.contextmanager
def bucket(refuses: Refusal, **config: object) -> Iterator[tuple[S3Store, Bucket, Any]]:
    """A store on a bucket in memory."""
    made = Bucket(refuses)
    with scripted_server(made) as server, opened(server.config(**config)) as store:
        yield store, made, server


def puts(server: ScriptedServer) -> list[Request]:
    return [request for request in server.requests if request.method == "PUT"]


# --- permissions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize(
    ("rights", "writing"),
    [
        (["s3:PutObject"], True),
        (["s3:PutObject", "s3:DeleteObject"], True),
        (["s3:GetObject"], False),
        (["s3:GetObject", "s3:ListBucket"], False),
    ],
)
def test_the_permissions_of_the_docs_are_enough_for_the_check(
    rights: list[str],
    writing: bool,  # noqa: FBT001
    words: bool,  # noqa: FBT001
) -> None:
    """A writer needs to put and a reader to get; neither needs to list, and the probe goes where it may."""
    with bucket(allowing(*rights, words=words)) as (store, made, server):
        store.check(writing=writing)
        store.check(writing=writing)
        left = [PurePosixPath(name).name for name in made.objects]
        assert left == (["~wideload-check"] if rights == ["s3:PutObject"] else [])
        assert bool(puts(server)) == writing


@pytest.mark.parametrize(
    ("rights", "writing", "words", "message"),
    [
        (["s3:GetObject", "s3:ListBucket"], True, True, r"PutObject .* it needs s3:PutObject"),
        (["s3:GetObject", "s3:ListBucket"], True, False, r"PutObject .* it needs s3:PutObject"),
        ([], False, True, r"GetObject .* it needs s3:GetObject"),
        (["s3:PutObject", "s3:ListBucket"], False, False, r"GetObject .* it needs s3:GetObject"),
    ],
)
def test_a_permission_that_is_missing_is_named_by_the_check(
    rights: list[str],
    writing: bool,  # noqa: FBT001
    words: bool,  # noqa: FBT001
    message: str,
) -> None:
    """By the words of AWS, or by the request that is refused; a reader who may list gets 404 for a missing key."""
    with (
        bucket(allowing(*rights, words=words)) as (store, _, _),
        pytest.raises(PayloadStoreAccessError, match=message) as caught,
    ):
        store.check(writing=writing)
    assert caught.value.key == "s3.access.key"


@pytest.mark.parametrize("writing", [True, False])
def test_permissions_for_one_topic_are_enough_for_its_check(writing: bool) -> None:  # noqa: FBT001
    """What the caller may do elsewhere does not count."""

    def refuses(request: Request, there: bool) -> Script | None:  # noqa: FBT001
        may = allowing("s3:PutObject", "s3:GetObject", "s3:ListBucket", words=True)
        return may(request, there) if request.path.startswith("/payloads/orders/") else error(403, "AccessDenied")

    with bucket(refuses) as (store, made, _):
        assert registry.check(store, "orders", writing=writing)
        assert list(made.objects) == (["/payloads/orders/~wideload-check"] if writing else [])
        if writing:
            with pytest.raises(PayloadStoreAccessError):
                store.check()


def test_a_right_to_use_the_key_is_named() -> None:
    """With SSE-KMS a put may lack a right that is not one of S3's."""
    refused = said(403, "AccessDenied", DENIED.format("kms:GenerateDataKey"))
    with (
        bucket(lambda *_: refused, s3_sse="aws:kms") as (store, _, _),
        pytest.raises(PayloadStoreAccessError, match="it needs kms:GenerateDataKey") as caught,
    ):
        store.check()
    assert caught.value.key == "s3.access.key"


def test_an_encryption_that_a_server_does_not_have_is_blamed() -> None:
    """Whatever its code is: MinIO's is NotImplemented."""
    refused = said(501, "NotImplemented", "Server side encryption specified but KMS is not configured")
    with (
        bucket(lambda *_: refused, s3_sse="AES256") as (store, _, _),
        pytest.raises(PayloadStoreError, match=r"KMS is not configured; change s3\.sse, or set up KMS") as caught,
    ):
        store.check()
    assert caught.value.key == "s3.sse"


@pytest.mark.parametrize(("words", "expected"), [(True, PayloadNotFoundError), (False, PayloadStoreAccessError)])
def test_a_missing_payload_without_the_right_to_list(words: bool, expected: type[Exception]) -> None:  # noqa: FBT001
    """It is told apart from a missing right where the server says which right decides."""
    with bucket(allowing("s3:GetObject", words=words)) as (store, _, _):
        path = store.root.path(*NAME)
        for call in (lambda: store.get(path, 9), lambda: store.stat(path)):
            with pytest.raises(expected, match=r"no payload|without s3:ListBucket, a missing payload") as caught:
                call()
            assert type(caught.value) is expected


def test_a_listing_that_is_denied_finds_nothing_missing() -> None:
    """For a listing the same words mean what they say."""
    with (
        bucket(allowing(words=True)) as (store, _, _),
        pytest.raises(PayloadStoreAccessError, match=r"ListObjectsV2 .* it needs s3:ListBucket"),
    ):
        list(store.list())


@pytest.mark.parametrize("action", ["s3:PutObject", "s3:GetObject"])
def test_the_check_of_a_real_server_needs_one_permission(minio: S3Server, action: str) -> None:
    """A caller with one permission passes the check for what it allows, and no other."""
    policy = {"Effect": "Allow", "Action": action, "Resource": f"arn:aws:s3:::{minio.bucket}/*"}
    with contextlib.closing(minio.client("sts")) as sts:
        given = sts.assume_role(
            RoleArn="arn:aws:iam::1:role/any",
            RoleSessionName="check",
            Policy=json.dumps({"Version": "2012-10-17", "Statement": [policy]}),
        )["Credentials"]
    keys = {
        "s3.access.key": given["AccessKeyId"],
        "s3.secret.key": given["SecretAccessKey"],
        "s3.session.token": given["SessionToken"],
    }
    writing = action == "s3:PutObject"
    with opened({**minio.config(f"one-right-{writing}"), **keys}) as store:
        store.check(writing=writing)
        if writing:
            store.publish("orders", b"data")
        else:
            with pytest.raises(PayloadStoreAccessError, match="it needs s3:PutObject"):
                store.check()


# --- the probe ------------------------------------------------------------------------------------------------------


def test_the_probe_leaves_nothing(server: S3Server) -> None:
    """What `check` writes is no payload, and is removed again, with its version in a bucket that keeps them."""
    name = f"probed-{server.kind}"
    with opened({**server.config("ours"), "s3.bucket": name}) as store:
        store._client.create_bucket(Bucket=name)
        store._client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        store.check()
        store.check(writing=False)
        assert not {"Versions", "DeleteMarkers"} & store._client.list_object_versions(Bucket=name).keys()


@pytest.mark.parametrize("sse", ["AES256", "aws:kms"])
def test_encryption_that_the_server_does_not_have_is_found_by_the_check(minio: S3Server, sse: str) -> None:
    """Before the first large record, and with the key to change; a reader does not ask for encryption."""
    with opened({**minio.config("sse"), "s3.sse": sse}) as store:
        with pytest.raises(PayloadStoreError, match=r"KMS is not configured.*change s3\.sse") as caught:
            store.check()
        assert caught.value.key == "s3.sse"
        store.check(writing=False)


@pytest.mark.parametrize(
    ("code", "key"),
    [("KMS.NotFoundException", "s3.sse.kms.key.id"), ("KMS.DisabledException", "s3.sse.kms.key.id"), ("Odd", None)],
)
def test_the_key_of_kms_is_blamed(code: str, key: str | None) -> None:
    """By AWS's codes for a key that cannot be used."""
    with (
        bucket(lambda *_: error(400, code), s3_sse="aws:kms") as (store, _, _),
        pytest.raises(PayloadStoreError, match=code) as caught,
    ):
        store.check()
    assert caught.value.key == key


# --- Object Lock ----------------------------------------------------------------------------------------------------

CRC32 = {"x-amz-checksum-crc32": b64encode(crc32(b"data").to_bytes(4, "big")).decode()}
MD5 = {"content-md5": b64encode(md5(b"data", usedforsecurity=False).digest()).decode()}


@pytest.mark.parametrize(
    ("code", "message", "sent"),
    [
        ("InvalidRequest", "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests", CRC32),
        ("InvalidRequest", "Content-MD5 HTTP header is required for Put Object requests", MD5),
        ("MissingContentMD5", "Missing required header for this request: Content-Md5.", MD5),
    ],
)
def test_a_bucket_that_asks_for_a_checksum_gets_it(code: str, message: str, sent: dict[str, str]) -> None:
    """Only such a bucket gets one, and after the first put each put has it."""

    def refuses(request: Request, _: object) -> Script | None:
        lacking = request.method == "PUT" and not sent.keys() <= request.headers.keys()
        return said(400, code, message) if lacking else None

    with bucket(refuses) as (store, made, server):
        for number in range(2):
            store.put("orders", f"id-{number}", b"data")
        assert [request.headers.get(name) for request in puts(server) for name in sent] == [
            None,
            *sent.values(),
            *sent.values(),
        ]
        assert list(made.objects.values()) == [b"data"] * 2
        store.check()


@pytest.mark.parametrize("checksum", [_crc32, _md5])
def test_a_real_server_finds_the_checksum_right(
    server: S3Server, checksum: Callable[[bytes], Mapping[str, str]]
) -> None:
    """What it is sent may be empty. Both servers compare a CRC, and neither compares an MD5."""
    with opened(server.config(f"sums{checksum.__name__}")) as store:
        store._puts._wanted = checksum
        for data in (b"", bytes(range(256)) * 5_000):
            assert store.download(store.publish("orders", data)) == data
        if checksum is _crc32:
            store._puts._wanted = lambda _: checksum(b"other")
            with pytest.raises(PayloadStoreError, match=r"BadDigest|ChecksumMismatch"):
                store.publish("orders", b"data")


def test_a_checksum_that_does_not_help_is_tried_once() -> None:
    """A server that refuses the second put in the same words is believed."""
    refused = said(400, "InvalidRequest", "Content-MD5 OR x-amz-checksum- HTTP header is required")
    with bucket(lambda *_: refused) as (store, _, server):
        for expected in (2, 3):
            with pytest.raises(PayloadStoreError, match="Content-MD5 OR"):
                store.put(*NAME, b"data")
            assert len(server.requests) == expected


def test_a_bucket_with_a_default_retention(server: S3Server) -> None:
    """Everything works; what is swept is hidden behind a marker, and stays until its retention is over."""
    name = f"locked-{server.kind}"
    with opened({**server.config("ours"), "s3.bucket": name}) as store:
        client = store._client
        client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
        rule: Any = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
        client.put_object_lock_configuration(
            Bucket=name, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
        )
        store.check()
        store.check()
        store.check(writing=False)
        path = store.publish("orders", b"data")
        assert store.publish("orders", b"data") == path
        assert [each.outcome for each in store.delete_unchanged(store.list())] == ["versioned"]
        assert list(store.list()) == []
        assert store.publish("orders", b"data") == path
        assert store.get(path, 4) == b"data"


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (409, "ObjectUnderRetention", "The object is under retention and can't be deleted or modified."),
        (409, "ObjectLockedByBucketPolicy", "The object is locked by the bucket policy."),
        (403, "AccessDenied", "Access Denied because object protected by object lock."),
        (400, "InvalidRequest", "Object is WORM protected and cannot be overwritten"),
    ],
)
def test_a_payload_that_is_kept_gets_a_younger_one_beside_it(status: int, code: str, message: str) -> None:
    """A server without versions that replaces nothing: what is published again has another name."""

    def refuses(request: Request, there: bool) -> Script | None:  # noqa: FBT001
        return said(status, code, message) if there and request.method in ("PUT", "DELETE") else None

    with bucket(refuses) as (store, made, _):
        assert_a_second_put_has_another_name(store, "a retention policy protects it")
        assert len(made.objects) == 3


# --- removals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"), [(400, "MissingContentMD5"), (400, "InvalidRequest"), (501, "NotImplemented"), (405, "")]
)
def test_a_server_that_takes_no_multi_object_delete_gets_single_ones(status: int, code: str) -> None:
    """It is asked once; then each payload is looked at, and removed by a request of its own."""

    def refuses(request: Request, _: object) -> Script | None:
        return error(status, code) if request.method == "POST" else None

    with bucket(refuses) as (store, made, server):
        payloads = [
            PayloadInfo(store.put("orders", f"id-{number}", b"x"), 1, parsedate_to_datetime(MODIFIED))
            for number in range(4)
        ]
        old = replace(payloads[2], modified=payloads[2].modified - timedelta(1))
        absent = replace(payloads[0], path=store.root.path("orders", "absent"))
        for some, first in ((payloads[:1], "deleted"), (payloads[:2], "gone")):
            outcomes = {each.payload: each.outcome for each in store.delete_unchanged([*some, old, absent])}
            assert (outcomes[payloads[0]], outcomes[old], outcomes[absent]) == (first, "changed", "gone")
        assert outcomes[payloads[1]] == "deleted"
        assert sorted(made.objects) == ["/payloads/orders/id-2", "/payloads/orders/id-3"]
        assert [request.method for request in server.requests].count("POST") == 1


@pytest.mark.parametrize(
    ("refusal", "error_text"),
    [
        (error(403, "AccessDenied"), "it needs s3:DeleteObject"),
        (error(500, "InternalError"), "InternalError"),
        (said(409, "ObjectUnderRetention", "The object is under retention."), "protects it"),
        (payload(b"", length=0), "check s3.endpoint"),
    ],
)
def test_a_single_removal_that_fails_says_why(refusal: Script, error_text: str) -> None:
    """The others go on, and each failure names its own payload."""

    def refuses(request: Request, _: object) -> Script | None:
        if request.method == "DELETE" and request.path.endswith("id-1"):
            return refusal
        return error(400, "MissingContentMD5") if request.method == "POST" else None

    with bucket(refuses) as (store, made, _):
        payloads = [
            PayloadInfo(store.put("orders", f"id-{number}", b"x"), 1, parsedate_to_datetime(MODIFIED))
            for number in range(3)
        ]
        removals = list(store.delete_unchanged(payloads))
        assert [each.outcome for each in removals] == ["deleted", "failed", "deleted"]
        assert f"DeleteObject {payloads[1].path} failed" in (removals[1].error or "")
        assert error_text in (removals[1].error or "")
        assert list(made.objects) == ["/payloads/orders/id-1"]


def test_a_server_that_is_down_is_not_asked_for_each_payload() -> None:
    """A removal of many that may succeed later is no reason to go one by one."""

    def refuses(request: Request, _: object) -> Script | None:
        return error(503, "SlowDown") if request.method == "POST" else None

    with bucket(refuses) as (store, _, server):
        listed = PayloadInfo(store.put(*NAME, b"x"), 1, parsedate_to_datetime(MODIFIED))
        assert [each.outcome for each in store.delete_unchanged([listed])] == ["failed"]
        assert "DELETE" not in [request.method for request in server.requests]


def test_versions_are_removed_one_by_one_too(server: S3Server) -> None:
    """The version that was looked at goes, and one that was published since stays."""
    name = f"singles-{server.kind}"
    with opened({**server.config("ours"), "s3.bucket": name}) as store:
        client = store._client
        client.create_bucket(Bucket=name)
        client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})

        def refuse(**_: object) -> None:
            raise ClientError({"Error": {"Code": "MissingContentMD5"}}, "DeleteObjects")

        client.meta.events.register("before-call.s3.DeleteObjects", refuse)
        store.publish("orders", b"a")
        store.publish("orders", b"a")
        assert [each.outcome for each in store.delete_unchanged(store.list())] == ["deleted"]
        assert len(client.list_object_versions(Bucket=name)["Versions"]) == 1
        assert [each.outcome for each in store.delete_unchanged(store.list())] == ["deleted"]
        assert not {"Versions", "DeleteMarkers"} & client.list_object_versions(Bucket=name).keys()
