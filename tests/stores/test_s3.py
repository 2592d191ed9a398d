"""What is S3's own: its errors, its time, its settings. The behaviour of any store is in `test_store_behaviour`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.utils import parse_timestamp
from urllib3.util.util import to_str

from app.config.secret import Secret
from stores.s3 import S3Store
from stores.s3_client import _timestamp
from stores.s3_credentials import open_session
from stores.s3_removal import _removals
from stores.store import PayloadInfo
from tests.s3_server import S3Server
from tests.stores.conftest import SetClock
from tests.stores.scripted_server import Request, Wire, dribbling, error, scripted_server, slow_reader
from transforms.errors import (
    ConfigurationError,
    PayloadNotFoundError,
    PayloadStoreError,
    PayloadTooLargeError,
    ReferenceRefusedError,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import DeleteObjectsOutputTypeDef

MIB = 1 << 20
NAME = "orders", "an-id"
CREDENTIALS = {"s3.access.key": "a", "s3.secret.key": "b"}
EIGHT_SECONDS = {"large_message_store_timeout_ms": 8_000}  # of which one attempt may take all
LATE = r"did not finish in the time that large\.message\.store\.timeout\.ms allows"


@contextlib.contextmanager
def opened(config: Mapping[str, object]) -> Iterator[S3Store]:
    store = S3Store()
    store.configure(config)
    with contextlib.closing(store):
        yield store


def calls(store: S3Store) -> list[Callable[[], object]]:
    path = store.root.path(*NAME)
    return [
        store.check,
        lambda: store.put(*NAME, b"data"),
        lambda: store.get(path, 100),
        lambda: store.stat(path),
        lambda: store.delete(path),
        lambda: list(store.list()),
    ]


def at_once(calls: Sequence[Callable[[], object]]) -> list[Callable[[], object]]:
    """Makes calls beside each other; what is returned gives, or raises, what each of them did."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [pool.submit(call).result for call in calls]


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-24T01:53:36.247Z",
        "2026-11-24T01:53:36.58Z",
        "2026-11-24T01:53:36Z",
        "2026-11-24T01:53:36+02:00",
        "2026-11-24T01:53:36",
        "Tue, 24 Nov 2026 01:53:36 GMT",
        "Tuesday, 24-Nov-26 01:53:36 GMT",
        "1700000000",
        "20260131",
        1700000000,
    ],
)
def test_dates_are_those_of_botocore(text: Any) -> None:
    """They are read faster, and mean the same."""
    assert _timestamp(text) == parse_timestamp(text)


def test_description_of_s3_is_read_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second client takes what the first one has read, unless AWS's settings name another folder by now."""
    first, second = (open_session()[0].get_component("data_loader") for _ in range(2))
    assert second is first
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    other = open_session()[0].get_component("data_loader")
    assert str(tmp_path) in other.search_paths
    assert str(tmp_path) not in first.search_paths


# --- real servers: errors -------------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_named_by_every_call(server: S3Server) -> None:
    """A wrong bucket is a final error of the store, with its name and what to do, and not a missing payload."""
    with opened({**server.config(), "s3.bucket": "nowhere"}) as store:
        for call in calls(store):
            with pytest.raises(PayloadStoreError, match="bucket nowhere does not exist") as caught:
                call()
            assert not isinstance(caught.value, PayloadNotFoundError)
            assert not caught.value.retriable


@pytest.mark.parametrize(
    ("key", "code"),
    [("s3.access.key", "InvalidAccessKeyId|XAdminUserNotFound"), ("s3.secret.key", "SignatureDoesNotMatch")],
)
def test_wrong_credentials_are_final_and_say_which(server: S3Server, key: str, code: str) -> None:
    """The message has the code and the key to change, and never the secret."""
    with opened({**server.config(), key: "wrong-credential"}) as store:
        for call in (store.check, lambda: store.put(*NAME, b"data"), lambda: store.get(store.root.path(*NAME), 9)):
            with pytest.raises(PayloadStoreError, match=f"({code}) .*check {re.escape(key)}") as caught:
                call()
            assert not caught.value.retriable
            assert server.secret_key not in str(caught.value)
            assert not (key == "s3.secret.key" and "wrong-credential" in str(caught.value))


@pytest.mark.parametrize(
    ("wrong", "blamed"),
    [
        ({"s3.bucket": "nowhere"}, "s3.bucket"),
        ({"s3.access.key": "wrong"}, "s3.access.key"),
        ({"s3.secret.key": "wrong"}, "s3.secret.key"),
        ({"s3.endpoint": "http://127.0.0.1:1"}, "s3.endpoint"),
        ({"s3.endpoint": "http://no.such.host.invalid"}, "s3.endpoint"),
        ({"s3.endpoint": "https"}, "s3.endpoint"),
    ],
)
def test_the_key_that_is_wrong_is_blamed(versitygw: S3Server, wrong: dict[str, str], blamed: str) -> None:
    """Not the bucket, whatever is wrong: `wideload check` names the key to change."""
    config = {**versitygw.config(), "s3.retry.attempts": 1, **wrong}
    if wrong.get("s3.endpoint") == "https":
        config["s3.endpoint"] = str(versitygw.config()["s3.endpoint"]).replace("http:", "https:")
    with opened(config) as store, pytest.raises(PayloadStoreError) as caught:
        store.check()
    assert caught.value.key == blamed
    assert ("use http://" in str(caught.value)) == (wrong.get("s3.endpoint") == "https")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 4\r\n\r\nHTTP",
        b"",
    ],
)
def test_what_is_no_s3_server_blames_the_endpoint(answer: bytes) -> None:
    """A web server, a server that wants TLS, and one that hangs up: the port is wrong, and not the bucket."""

    def script(_: Request, wire: Wire) -> bool:
        wire.write(answer)
        return False

    with (
        scripted_server(script) as broken,
        opened(broken.config()) as store,
        pytest.raises(PayloadStoreError) as caught,
    ):
        store.check()
    assert caught.value.key == "s3.endpoint"


@pytest.mark.parametrize(
    ("endpoint", "quoted"),
    [
        ("localhost:9000", "'localhost:9000'"),
        ("http://localhost:9000/a?b", "'http://localhost:9000/a?b'"),
        ("http://localhost:99999", "'http://localhost:99999'"),
        ("http://me:hunter2@localhost", "'http://***@localhost'"),
        ("http://hunter2@localhost", "'http://***@localhost'"),
        (Secret("hunter2/x"), "***"),
    ],
)
def test_a_bad_endpoint_is_quoted(endpoint: str, quoted: str) -> None:
    """Without the user and the password in it, and not if it comes from elsewhere."""
    with pytest.raises(ConfigurationError) as caught, opened({"s3.bucket": "bbb", "s3.endpoint": endpoint}):
        pass
    assert str(caught.value) == (
        f"s3.endpoint: found {quoted}, allowed is http:// or https://, host and port, and perhaps a path"
    )


@pytest.mark.parametrize("place", ["s3.endpoint", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "file"])
@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("http://my_minio:9000", "'http://my_minio:9000', whose host name boto3 does not accept; .* not '_'"),
        ("http://minio-:9000", "'http://minio-:9000', whose host name boto3 does not accept"),
        ("localhost:9000", "'localhost:9000', allowed is http:// or https://, host and port, and perhaps a path"),
        ("http://me:hunter2@localhost:9000", r"'http://\*\*\*@localhost:9000', allowed is"),
        ("http://localhost:99999", "'http://localhost:99999', allowed is"),
    ],
)
@pytest.mark.usefixtures("no_aws_settings")
def test_an_endpoint_that_cannot_be_used_says_where_it_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, endpoint: str, message: str
) -> None:
    """A configuration without the key may have it from AWS's configuration, which are named."""
    config: dict[str, object] = {"s3.bucket": "bbb", "s3.region": "us-east-1", **CREDENTIALS}
    where = "found"
    if place == "s3.endpoint":
        config[place] = endpoint
    elif place == "file":
        file = tmp_path / "config"
        file.write_text(f"[default]\nendpoint_url = {endpoint}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
        where = "is not set, and endpoint_url in AWS's configuration file has"
    else:
        monkeypatch.setenv(place, endpoint)
        where = f"is not set, and {place} has"
    with pytest.raises(ConfigurationError, match=f"^s3.endpoint: {where} {message}"), opened(config):
        pass


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [
        ("AWS_PROFILE", "nobody", "AWS_PROFILE"),
        ("AWS_CONFIG_FILE", "no settings", "AWS_CONFIG_FILE"),
        ("AWS_DEFAULT_REGION", "eu west", "s3.region"),
    ],
)
@pytest.mark.usefixtures("no_aws_settings")
def test_settings_of_aws_that_boto3_refuses_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, key: str
) -> None:
    """By the variable that has them, or by the key that comes before them."""
    if name == "AWS_CONFIG_FILE":
        (tmp_path / "config").write_text(value)
        value = str(tmp_path / "config")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match="boto3 refuses") as caught, opened({"s3.bucket": "bbb"}):
        pass
    assert caught.value.key == key


@pytest.mark.parametrize("by", ["key", "environment"])
def test_an_s3_server_may_stand_below_a_path(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """As gateways have it; every request goes there."""
    with scripted_server(error(404, "NoSuchBucket")) as server:
        config = {**server.config(), "s3.endpoint": f"{server.endpoint}/storage/v1/s3/"}
        if by == "environment":
            monkeypatch.setenv("AWS_ENDPOINT_URL", str(config.pop("s3.endpoint")))
            config["s3.path.style"] = True
        with opened(config) as store:
            asking: list[Callable[[], object]] = [*calls(store), lambda: store.expiry_rules("orders")]
            for call in asking:
                with pytest.raises(PayloadStoreError, match="bucket payloads does not exist"):
                    call()
    assert {request.path[:23] for request in server.requests} == {"/storage/v1/s3/payloads"}


def test_the_bucket_is_no_part_of_the_endpoint() -> None:
    """Such a URL is copied from a browser; the bucket would be asked for twice."""
    endpoint = "http://localhost:9000/payloads/"
    with (
        pytest.raises(ConfigurationError, match=r"^s3.endpoint: .* set payloads only in s3\.bucket"),
        opened({"s3.bucket": "payloads", "s3.endpoint": endpoint}),
    ):
        pass


def test_a_refused_put_of_a_large_payload_is_still_read_as_a_refusal(server: S3Server) -> None:
    """A server that refuses 20 MiB does not look like a connection that was cut, which would be tried for ever."""
    with opened({**server.config(), "s3.access.key": "wrong"}) as store:
        with pytest.raises(PayloadStoreError, match=r"check s3\.access\.key") as caught:
            store.put(*NAME, bytes(20 * MIB))
        assert not caught.value.retriable


@pytest.mark.usefixtures("no_aws_settings")
def test_no_credentials_at_all_are_final(versitygw: S3Server) -> None:
    """Without keys and without AWS's chain the error says so."""
    config = {
        name: value for name, value in versitygw.config().items() if name not in ("s3.access.key", "s3.secret.key")
    }
    with opened(config) as store:
        with pytest.raises(PayloadStoreError, match=r"NoCredentialsError.*set s3\.access\.key") as caught:
            store.check()
        assert not caught.value.retriable


@pytest.mark.usefixtures("no_aws_settings")
def test_credentials_come_from_the_chain_of_aws(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the configuration has no keys, the environment's are used."""
    config = {
        name: value for name, value in versitygw.config().items() if name not in ("s3.access.key", "s3.secret.key")
    }
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", versitygw.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", versitygw.secret_key)
    with opened(config) as store:
        assert store.download(store.publish("orders", b"data")) == b"data"


def test_list_passes_over_foreign_objects(server: S3Server) -> None:
    """Whatever else lies in the bucket, a sweep does not see it."""
    client = server.client()
    with opened(server.config("foreign/ours")) as store, contextlib.closing(client):
        path = store.publish("orders", b"mine")
        for key in ("readme.txt", "~a/id", "orders/~b", "orders/deeper/id", "orders/an id", "orders/é"):
            client.put_object(Bucket=server.bucket, Key=f"foreign/ours/{key}", Body=b"theirs")
        client.put_object(Bucket=server.bucket, Key="foreign/ours-not/orders/id", Body=b"theirs")
        assert [info.path for info in store.list()] == [path]
        assert [info.path for info in store.list("orders")] == [path]


def test_payloads_of_bakdata_are_read_and_no_more(server: S3Server) -> None:
    """What lies in `values/` or `keys/` below a topic can be read, is not listed and cannot be deleted."""
    with opened(server.config("base")) as store:
        client = store._client
        for folder in ("values", "keys"):
            client.put_object(Bucket=server.bucket, Key=f"base/orders/{folder}/id", Body=b"theirs")
            path = f"s3://{server.bucket}/base/orders/{folder}/id"
            assert store.get(path, 6) == store.download(path) == b"theirs"
            assert store.stat(path).size == 6
            with pytest.raises(PayloadTooLargeError):
                store.get(path, 5)
            with pytest.raises(ReferenceRefusedError):
                store.delete(path)
        assert list(store.list()) == []
        for tail in ("orders/other/id", "orders/values/../id", "orders/values/keys/id", "orders/%76alues/id"):
            for call in (store.download, store.stat):
                with pytest.raises(ReferenceRefusedError):
                    call(f"s3://{server.bucket}/base/{tail}")


def test_a_bucket_with_versions(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version that was looked at is removed and frees its space; what is published in between stays."""
    bucket = f"versions-{server.kind}"
    with opened({**server.config("ours"), "s3.bucket": bucket, "large.message.id.generator": "sha256"}) as store:
        client = store._client
        client.create_bucket(Bucket=bucket)
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        store.publish("orders", b"a")
        store.publish("orders", b"b")
        assert [each.outcome for each in store.delete_unchanged(store.list())] == ["deleted", "deleted"]
        assert not {"Versions", "DeleteMarkers"} & client.list_object_versions(Bucket=bucket).keys()
        path = store.publish("orders", b"a")
        look = store._removal._look

        def slow(payload: PayloadInfo) -> object:
            found = look(payload)
            assert store.publish("orders", b"a") == path
            return found

        monkeypatch.setattr(store._removal, "_look", slow)
        assert [each.outcome for each in store.delete_unchanged(store.list())] == ["deleted"]
        assert store.get(path, 1) == b"a"
        assert len(client.list_object_versions(Bucket=bucket)["Versions"]) == 1


def test_versions_that_may_not_be_removed(minio: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to remove versions a delete marker hides the payload, unless it was published meanwhile."""
    bucket = "versions-denied"
    ours = {**minio.config("ours"), "s3.bucket": bucket, "large.message.id.generator": "sha256"}
    with opened(ours) as store, contextlib.closing(minio.client("sts")) as sts:
        store._client.create_bucket(Bucket=bucket)
        store._client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        store.publish("orders", b"a")
        statement = {"Effect": "Allow", "Action": "s3:*", "Resource": "arn:aws:s3:::*"}
        denied = {**statement, "Effect": "Deny", "Action": "s3:DeleteObjectVersion"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement, denied]})
        given = sts.assume_role(RoleArn="arn:aws:iam::1:role/any", RoleSessionName="sweep", Policy=policy)[
            "Credentials"
        ]
        rights = {
            "s3.access.key": given["AccessKeyId"],
            "s3.secret.key": given["SecretAccessKey"],
            "s3.session.token": given["SessionToken"],
        }
        with opened({**ours, **rights}) as limited:
            asked = limited._removal._asked

            def slow(*arguments: Any) -> Any:
                monkeypatch.undo()
                limited.publish("orders", b"a")
                return asked(*arguments)

            monkeypatch.setattr(limited._removal, "_asked", slow)
            assert [each.outcome for each in limited.delete_unchanged(limited.list())] == ["changed"]
            assert [each.outcome for each in limited.delete_unchanged(limited.list())] == ["versioned"]
        assert list(store.list()) == []
        assert len(store._client.list_object_versions(Bucket=bucket)["Versions"]) == 2


def test_what_s3_did_not_delete_is_told_with_its_reason() -> None:
    """One request removes many objects, and each of them has an outcome of its own."""
    payloads = {
        key: PayloadInfo(f"s3://b/{key}", 1, datetime(2026, 1, 1, tzinfo=UTC))
        for key in ("kept", "gone", "done", "old")
    }
    response: DeleteObjectsOutputTypeDef = {
        "Errors": [
            {"Key": "kept", "Code": "AccessDenied", "Message": "no"},
            {"Key": "gone", "Code": "NoSuchKey", "Message": "-"},
        ],
        "Deleted": [{"Key": "done"}, {"Key": "old", "DeleteMarker": True}],
        "RequestCharged": "requester",
        "ResponseMetadata": {"RequestId": "", "HTTPStatusCode": 200, "HTTPHeaders": {}, "RetryAttempts": 0},
    }
    assert [(each.outcome, each.error) for each in _removals(payloads, response)] == [
        ("failed", "DeleteObjects s3://b/kept failed: AccessDenied: no"),
        ("gone", None),
        ("deleted", None),
        ("versioned", None),
    ]


def test_a_store_may_have_the_whole_bucket(server: S3Server) -> None:
    """Without a prefix the topics stand at the top."""
    with opened(server.config()) as store:
        path = store.put("whole-bucket", "id", b"data")
        assert path == f"s3://{server.bucket}/whole-bucket/id"
        assert store.download(path) == b"data"
        assert [info.path for info in store.list("whole-bucket")] == [path]


def test_two_stores_of_one_prefix_see_each_other(versitygw: S3Server) -> None:
    """Writer and reader are two processes with the same keys; a slash at the end of a prefix changes nothing."""
    with opened(versitygw.config("shared/by")) as writer, opened(versitygw.config("shared/by/")) as reader:
        assert reader.download(writer.publish("orders", b"shared")) == b"shared"


@pytest.mark.parametrize("signing", [True, False])
def test_payload_signing_either_way_is_taken(server: S3Server, signing: bool) -> None:  # noqa: FBT001
    """A real server takes signed payloads and unsigned ones, empty or not."""
    with opened({**server.config("signing"), "s3.payload.signing": signing}) as store:
        for data in (b"", os.urandom(3 * MIB + 1)):
            assert store.download(store.publish("orders", data)) == data


# --- time -----------------------------------------------------------------------------------------------------------


def test_a_body_that_comes_byte_by_byte_is_given_up_in_time(set_clock: SetClock) -> None:
    """A server that says something before each time-out does not hold a thread for ever."""
    start = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 1000000\r\n\r\n'
    with scripted_server(dribbling(start)) as server, opened(server.config(**EIGHT_SECONDS)) as store:
        clock = set_clock(0.5)
        with pytest.raises(PayloadStoreError, match=LATE) as caught:
            store.get(store.root.path(*NAME), 2_000_000)
        assert caught.value.retriable
        assert 5 < clock.looks <= 20


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 503 No\r\nContent-Length: 1000000\r\n\r\n"]
)
def test_an_answer_that_comes_byte_by_byte_is_given_up_in_time(set_clock: SetClock, start: bytes) -> None:
    """Nor does one that says so little of its head, or of the body of an error: to any call, and with no other attempt.

    The last one is made by `stores.s3_lifecycle`, which sets no time of its own.
    """
    with scripted_server(dribbling(start)) as server:
        config = server.config(s3_retry_attempts=3, large_message_store_timeout_ms=50_000)
        with opened(config) as store:
            made: list[Callable[[], object]] = [*calls(store)[:3], lambda: store.expiry_rules("orders")]
            for call in made:
                asked = len(server.requests)
                set_clock(3.0)
                with pytest.raises(PayloadStoreError, match=LATE) as caught:
                    call()
                assert caught.value.retriable
                assert len(server.requests) == asked + 1


def test_a_server_that_takes_a_body_slowly_is_given_up_in_time(set_clock: SetClock) -> None:
    """A put ends too, though each of its pieces is taken before its time-out."""
    with slow_reader(1 << 17, 0.02) as endpoint:
        config = {
            "s3.bucket": "payloads",
            "s3.endpoint": endpoint,
            **CREDENTIALS,
            "s3.connection.timeout.ms": 2_000,
            "s3.read.timeout.ms": 5_000,
            "s3.retry.attempts": 1,
            "large.message.store.timeout.ms": 8_000,
        }
        with opened(config) as store:
            clock = set_clock(0.5)
            with pytest.raises(PayloadStoreError, match=LATE) as caught:
                store.put(*NAME, bytes(64 * MIB))
            assert caught.value.retriable
            assert 5 < clock.looks <= 20


# --- what is sent ---------------------------------------------------------------------------------------------------


def accept(request: Request, wire: Wire) -> bool:
    """Takes each put, and gives `four` to each get, but nothing to that of what is called empty."""
    body = b"four" if request.method == "GET" and not request.path.endswith("empty") else b""
    wire.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n%b' % (len(body), body))
    return True


def test_a_connection_is_used_again() -> None:
    """Calls in a row share one connection, empty payloads or not."""
    with scripted_server(accept) as server, opened(server.config()) as store:
        path = store.put(*NAME, b"data")
        for _ in range(3):
            assert store.get(path, 9) == b"four"
            assert store.get(store.root.path("orders", "empty"), 9) == b""
            store.put(*NAME, b"")
            store.delete(path)
        assert server.connections == 1


@pytest.mark.parametrize("by", ["key", "environment"])
def test_a_payload_is_signed_where_nothing_else_protects_it(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """By default the signature covers the body if the endpoint is `http://`, whoever names it; there is no CRC."""
    with scripted_server(accept) as server:
        config = server.config()
        if by == "environment":
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3", str(config.pop("s3.endpoint")))
            config["s3.path.style"] = True
        with opened(config) as store:
            store.put(*NAME, b"data")
        headers = server.requests[0].headers
    assert headers["x-amz-content-sha256"] == hashlib.sha256(b"data").hexdigest()
    assert not [name for name in headers if "checksum" in name or name == "content-md5"]


@pytest.mark.parametrize(
    ("signing", "signed", "checksum"),
    [
        ({}, "UNSIGNED-PAYLOAD", None),
        ({"s3.payload.signing": False}, "UNSIGNED-PAYLOAD", None),
        ({"s3.payload.signing": True}, hashlib.sha256(b"data").hexdigest(), "rfPzYw=="),
    ],
)
def test_what_is_signed_over_tls(signing: dict[str, object], signed: str, checksum: str | None) -> None:
    """The payload if that is configured, else nothing of it, which saves most of a put's CPU.

    The body is the payload in any case: a server that does not know `aws-chunked` would store its frames.
    """
    config = {"s3.bucket": "payloads", "s3.region": "us-east-1", "s3.access.key": "a", "s3.secret.key": "s", **signing}
    seen: list[dict[str, str]] = []

    def look(request: AWSPreparedRequest, **_: object) -> None:
        headers: Any = request.headers
        seen.append({name.lower(): to_str(each) for name, each in headers.items()})
        raise ConnectionError("seen")

    with opened({**config, "s3.endpoint": "https://127.0.0.1:1"}) as store:
        store._client.meta.events.register_last("before-send.s3.PutObject", look)
        with pytest.raises(Exception, match="seen"):
            store.put(*NAME, b"data")
    for headers in seen:
        assert (headers["x-amz-content-sha256"], headers.get("x-amz-checksum-crc32")) == (signed, checksum)
        assert headers["content-length"] == "4"
        assert not {"transfer-encoding", "content-encoding", "x-amz-trailer"} & headers.keys()


def test_a_payload_is_neither_signed_nor_summed_if_that_is_told() -> None:
    """The digests that cost most of a put's CPU are left out; the key is in the path of the URL."""
    config = {"s3_prefix": "a b", "s3_payload_signing": False}
    with scripted_server(accept) as server, opened(server.config(**config)) as store:
        store.put(*NAME, b"data")
        sent = server.requests[0]
    assert sent.path == "/payloads/a%20b/orders/an-id"
    assert sent.body == b"data"
    assert sent.headers["content-length"] == "4"
    assert sent.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert not [name for name in sent.headers if "checksum" in name or name == "content-md5"]


def test_payload_signing_signs_and_sums() -> None:
    """With `s3.payload.signing` the digest of the body is part of the signature, and a CRC goes with it."""
    with scripted_server(accept) as server, opened(server.config(s3_payload_signing=True)) as store:
        store.put(*NAME, b"data")
        headers = server.requests[0].headers
    assert headers["x-amz-content-sha256"] == hashlib.sha256(b"data").hexdigest()
    assert headers["x-amz-checksum-crc32"] == "rfPzYw=="


@pytest.mark.parametrize(
    ("signing", "header", "told"),
    [
        (True, b"x-amz-checksum-crc32: AAAAAA==", "ChecksumCRC32 rfPzYw== was sent, and AAAAAA== is stored"),
        (False, b"x-amz-object-size: 49", "Size 4 was sent, and 49 is stored"),
    ],
)
def test_a_payload_that_the_server_stores_otherwise_is_not_referred_to(
    signing: bool,  # noqa: FBT001
    header: bytes,
    told: str,
) -> None:
    """The put fails if the answer has the size or the checksum of other bytes than were sent, and names both."""

    def other(_: Request, wire: Wire) -> bool:
        wire.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\n%b\r\nContent-Length: 0\r\n\r\n' % header)
        return True

    with scripted_server(other) as server, opened(server.config(s3_payload_signing=signing)) as store:
        with pytest.raises(PayloadStoreError, match=told) as caught:
            store.put(*NAME, b"data")
        assert (caught.value.retriable, caught.value.key) == (True, "s3.endpoint")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"s3_sse": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
        (
            {"s3_sse": "aws:kms", "s3_sse_kms_key_id": "a-key"},
            {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": "a-key"},
        ),
        ({"s3_sse": "aws:kms:dsse"}, {"x-amz-server-side-encryption": "aws:kms:dsse"}),
    ],
)
def test_encryption_at_rest_is_asked_for(config: dict[str, object], expected: dict[str, str]) -> None:
    """Each put carries the headers of `s3.sse`."""
    with scripted_server(accept) as server, opened(server.config(**config)) as store:
        store.put(*NAME, b"data")
        headers = server.requests[0].headers
    assert {name: value for name, value in headers.items() if "encryption" in name} == expected


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "key", "message"),
    [
        ({"s3.bucket": None}, "s3.bucket", "is missing"),
        ({"s3.bucket": ""}, "s3.bucket", "allowed is a bucket's name"),
        ({"s3.bucket": "a/b"}, "s3.bucket", "allowed is a bucket's name"),
        ({"s3.buckets": "b"}, "s3.buckets", "did you mean s3.bucket"),
        ({"s3.prefix": "/a"}, "s3.prefix", "allowed are names"),
        ({"s3.prefix": "a//b"}, "s3.prefix", "allowed are names"),
        ({"s3.prefix": "a/../b"}, "s3.prefix", "allowed are names"),
        ({"s3.prefix": "a\n"}, "s3.prefix", "allowed are names"),
        ({"s3.prefix": "x" * 525}, "s3.prefix", "too long; allowed are 524"),
        ({"s3.endpoint": "localhost:9000"}, "s3.endpoint", "http:// or https://"),
        ({"s3.endpoint": "http://user:secret@host"}, "s3.endpoint", "http:// or https://"),
        ({"s3.endpoint": "http://host/a b"}, "s3.endpoint", "http:// or https://"),
        ({"s3.endpoint": "http://ho_st"}, "s3.endpoint", "not '_'"),
        ({"s3.endpoint": "http://host:port"}, "s3.endpoint", "http:// or https://"),
        ({"s3.secret.key": None}, "s3.access.key", "also requires s3.secret.key"),
        ({"s3.access.key": None}, "s3.secret.key", "also requires s3.access.key"),
        (
            {"s3.access.key": None, "s3.secret.key": None, "s3.session.token": "t"},
            "s3.session.token",
            "also requires s3.access.key",
        ),
        ({"s3.secret.key": 12345}, "s3.secret.key", r"found \*\*\*"),
        ({"s3.sse": "aes"}, "s3.sse", "allowed is one of: AES256"),
        ({"s3.sse.kms.key.id": "k"}, "s3.sse.kms.key.id", "needs s3.sse"),
        ({"s3.sse": "AES256", "s3.sse.kms.key.id": "k"}, "s3.sse.kms.key.id", "needs s3.sse"),
        ({"s3.retry.attempts": 0}, "s3.retry.attempts", "allowed is 1 or more"),
        ({"s3.retry.attempts": "3"}, "s3.retry.attempts", "a value of type int"),
    ],
)
def test_a_setting_that_cannot_work_is_named(config: dict[str, object], key: str, message: str) -> None:
    """Each mistake is found before any request, said of its key, and without a secret."""
    merged = {
        name: value for name, value in {"s3.bucket": "payloads", **CREDENTIALS, **config}.items() if value is not None
    }
    with pytest.raises(ConfigurationError, match=message) as caught:
        S3Store().configure(merged)
    assert caught.value.key == key
    assert "secret@" not in str(caught.value)


@pytest.mark.parametrize(("timeout_ms", "fits"), [(57_999, False), (58_000, True)])
def test_the_attempts_must_fit_in_the_time_of_a_call(timeout_ms: int, fits: bool) -> None:  # noqa: FBT001
    """Three attempts of 5 + 1 + 9 s and pauses of 1 + 5 and 2 + 5 s are 58 s; the message has both numbers."""
    config = {"s3.bucket": "payloads", **CREDENTIALS, "large.message.store.timeout.ms": timeout_ms}
    if fits:
        with opened(config) as store:
            assert store.timeout_ms == 58_000
    else:
        with pytest.raises(ConfigurationError, match=r"found 57,999, .* 58,000 ms"):
            S3Store().configure(config)


@pytest.mark.parametrize(("attempts", "needed"), [(1, "15,000"), (6, "146,000"), (8, "226,000"), (10**9, "39,999,")])
def test_the_time_of_the_attempts_is_told(attempts: int, needed: str) -> None:
    """Pauses of 1, 2, 4, 8, 16 and then 20 s, each with 5 more; a billion attempts are refused as quickly as two."""
    config = {
        "s3.bucket": "payloads",
        **CREDENTIALS,
        "large.message.store.timeout.ms": 1,
        "s3.retry.attempts": attempts,
    }
    with pytest.raises(ConfigurationError, match=f"may take {needed}"):
        S3Store().configure(config)


@pytest.mark.parametrize(
    ("config", "url"),
    [
        ({}, "https://payloads.s3.eu-central-1.amazonaws.com/orders/an-id"),
        ({"s3.path.style": True}, "https://s3.eu-central-1.amazonaws.com/payloads/orders/an-id"),
        ({"s3.endpoint": "http://s3.test:9000"}, "http://s3.test:9000/payloads/orders/an-id"),
        ({"s3.endpoint": "http://s3.test", "s3.path.style": False}, "http://payloads.s3.test/orders/an-id"),
    ],
)
@pytest.mark.usefixtures("no_aws_settings")
def test_where_the_bucket_stands_in_a_url(config: dict[str, object], url: str) -> None:
    """In the host name on Amazon, in the path elsewhere, unless `s3.path.style` says otherwise."""

    class SentError(Exception):
        pass

    def stop(request: AWSPreparedRequest, **_: object) -> None:
        raise SentError(request.url)

    with opened({"s3.bucket": "payloads", "s3.region": "eu-central-1", **CREDENTIALS, **config}) as store:
        store._client.meta.events.register("before-send.s3", stop)  # or the request would leave
        with pytest.raises(SentError, match=f"^{re.escape(url)}$"):
            store.put(*NAME, b"data")


def test_without_boto3_the_error_says_what_to_install() -> None:
    """The extra is optional, and whoever lacks it is told its name."""
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "from stores.registry import open_store\n"
        "open_store({'large.message.payload.store.class': 's3', 's3.bucket': 'b'})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ConfigurationError: large.message.payload.store.class: found 's3'" in ended.stderr
    assert "pip install 'wideload[s3]'" in ended.stderr.splitlines()[-1]
