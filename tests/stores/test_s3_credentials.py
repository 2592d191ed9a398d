"""Credentials that change while a store is open, or that AWS's provider chain does not give for a while."""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.credentials import RefreshableCredentials

from stores import s3_credentials
from stores.encryption import keyring_of
from stores.http_time import within
from stores.s3_credentials import ChainCredentials, CredentialsError
from tests.kms_server import KmsServer, refusal
from tests.stores.conftest import SetClock
from tests.stores.scripted_server import Request, ScriptedServer, Wire, dribbling, error, scripted_server
from tests.stores.test_s3 import LATE, NAME, opened
from transforms.errors import PayloadStoreAccessError, PayloadStoreError

pytestmark = pytest.mark.usefixtures("no_aws_settings")

GOOD, OLD = "AKIANEW", "AKIAOLD"
REFUSALS = ((400, "ExpiredToken"), (403, "InvalidAccessKeyId"), (403, "SignatureDoesNotMatch"), (403, "AccessDenied"))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The credentials file of AWS, with old keys."""
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    write(path, OLD)
    return path


def write(file: Path, name: str, profile: str = "default") -> None:
    """Exchanges the keys, as agents do: the file is never there in part."""
    new = file.with_suffix(".new")
    new.write_text(f"[{profile}]\naws_access_key_id = {name}\naws_secret_access_key = s\naws_session_token = {name}\n")
    new.replace(file)


def chain(server: ScriptedServer) -> dict[str, object]:
    """The keys of a store that takes its credentials from AWS's provider chain."""
    own = ("s3.access.key", "s3.secret.key")
    return {"s3.region": "us-east-1", **{name: value for name, value in server.config().items() if name not in own}}


def signer(headers: Mapping[str, str]) -> str:
    """Who has signed a request."""
    found = re.search(r"Credential=(\w+)/", headers.get("authorization", ""))
    assert found
    return found[1]


class Bucket:
    """Takes what is signed with `valid`, and refuses all else so."""

    def __init__(self, status: int, code: str) -> None:
        self.valid = OLD
        self.refusal = error(status, code)

    def script(self, request: Request, wire: Wire) -> bool:
        """See `scripted_server`."""
        return (well if signer(request.headers) == self.valid else self.refusal)(request, wire)

    def exchange(self, file: Path) -> None:
        """There are new keys in the file, and the old ones are over."""
        self.valid = GOOD
        write(file, GOOD)


def well(request: Request, wire: Wire) -> bool:
    """A payload, or a listing, or that something is done."""
    listing = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
    body = b"" if request.method in ("PUT", "DELETE") else listing if "list-type" in request.path else b"data"
    head = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nContent-Length: %d\r\n\r\n'
    wire.write(head % len(body) + (b"" if request.method == "HEAD" else body))
    return True


@pytest.mark.parametrize(
    ("call", "status", "code"),
    [
        *(("put", status, code) for status, code in REFUSALS),
        *((call, *REFUSALS[0]) for call in ("get", "stat", "list", "delete", "check")),
    ],
)
def test_credentials_that_are_exchanged_are_taken_in_the_same_call(
    file: Path, call: str, status: int, code: str
) -> None:
    """A call whose keys are refused reads AWS's files again, and succeeds with the new keys, whatever it asks for."""
    bucket = Bucket(status, code)
    with scripted_server(bucket.script) as server, opened(chain(server)) as store:
        path = store.root.path(*NAME)
        calls: Mapping[str, Callable[[], object]] = {
            "put": lambda: store.put(*NAME, b"x" * 3_000_000),
            "get": lambda: store.get(path, 9),
            "stat": lambda: store.stat(path),
            "list": lambda: list(store.list()),
            "delete": lambda: store.delete(path),
            "check": store.check,
        }
        store.put(*NAME, b"data")
        bucket.exchange(file)
        server.requests.clear()
        calls[call]()
        first, *others = [signer(request.headers) for request in server.requests]
        assert (first, {*others}) == (OLD, {GOOD})
        # botocore asks for the region of the bucket if the answer has no body; the check removes its probe.
        assert len(others) == 1 + (call == "check" or (call == "stat" and status == 400))
        if call == "put":
            assert len(server.requests[1].body) >= 3_000_000


def test_many_threads_find_the_exchanged_credentials(file: Path) -> None:
    """Each of their calls succeeds, whoever has read the file again."""
    bucket = Bucket(400, "ExpiredToken")
    with scripted_server(bucket.script) as server, opened(chain(server)) as store:
        store.put(*NAME, b"data")
        bucket.exchange(file)
        with ThreadPoolExecutor(8) as threads:
            assert len(list(threads.map(lambda number: store.put("orders", str(number), b"data"), range(8)))) == 8


def test_credentials_that_are_over_name_their_source(file: Path) -> None:
    """A refusal of the keys of a file does not advise to use AWS's provider chain, or to check the configuration."""
    with scripted_server(error(400, "ExpiredToken")) as server, opened(chain(server)) as store:
        with pytest.raises(PayloadStoreAccessError) as caught:
            store.put(*NAME, b"data")
        assert len(server.requests) == 1
    assert "of AWS's provider chain (shared-credentials-file): they have expired, and must be renewed" in str(
        caught.value
    )
    assert (caught.value.key, file.exists()) == ("s3.access.key", True)


def test_a_file_that_is_no_longer_one_is_named(file: Path) -> None:
    """Who has written a broken file of credentials reads that, and not only that the former keys are refused."""
    bucket = Bucket(403, "InvalidAccessKeyId")
    with scripted_server(bucket.script) as server, opened(chain(server)) as store:
        store.put(*NAME, b"data")
        bucket.valid = GOOD
        file.write_text(f"[default]\naws_access_key_id = {GOOD}\n")
        with pytest.raises(
            PayloadStoreAccessError, match="does not know them; the search for others fails: Partial cred"
        ):
            store.put(*NAME, b"data")


def test_credentials_of_the_configuration_stay(file: Path) -> None:
    """Where the configuration has keys, no file of AWS replaces them, and the advice is about them."""
    write(file, GOOD)
    bucket = Bucket(400, "ExpiredToken")
    bucket.valid = GOOD
    with scripted_server(bucket.script) as server, opened(server.config()) as store:
        with pytest.raises(PayloadStoreAccessError, match=r"the session of s3\.session\.token has expired") as caught:
            store.put(*NAME, b"data")
        assert len(server.requests) == 1
    assert caught.value.key == "s3.session.token"


# --- a service that gives credentials ---------------------------------------------------------------------------------


class Sts:
    """AWS's token service, and a bucket behind the same address: `trouble` is its refusal, `seconds` of its keys."""

    def __init__(self) -> None:
        self.trouble: tuple[int, str] | None = None
        self.seconds = 60
        self.valid = GOOD
        self.asked: list[str] = []

    def script(self, request: Request, wire: Wire) -> bool:
        """See `scripted_server`."""
        if request.method != "POST":
            return well(request, wire)
        if "authorization" in request.headers:
            self.asked.append(signer(request.headers))
        kind = "WithWebIdentity" if b"WithWebIdentity" in request.body else ""
        if self.trouble is not None or self.asked[-1:] not in ([], [self.valid]):
            status, code = self.trouble or (403, "InvalidClientTokenId")
            told = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
            return answer(wire, status, f"<ErrorResponse>{told}</ErrorResponse>")
        end = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self.seconds)
        keys = (
            "<AccessKeyId>AKIA</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
            f"<Expiration>{end:%Y-%m-%dT%H:%M:%SZ}</Expiration>"
        )
        result = f"<AssumeRole{kind}Result><Credentials>{keys}</Credentials></AssumeRole{kind}Result>"
        return answer(wire, 200, f"<AssumeRole{kind}Response>{result}</AssumeRole{kind}Response>")


def answer(wire: Wire, status: int, body: str) -> bool:
    """Writes it; the connection stays open."""
    wire.write(f"HTTP/1.1 {status} Status\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    return True


def identify(monkeypatch: pytest.MonkeyPatch, folder: Path, server: ScriptedServer) -> None:
    """Lets AWS's provider chain ask this server for the credentials of a web identity."""
    (folder / "token").write_text("a.b.c")
    for name, value in {
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "token"),
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
        "AWS_ENDPOINT_URL_STS": server.endpoint,
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)


def test_a_token_service_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A call does not wait for it as long as botocore would: a minute, five times."""

    def hang(_: Request, wire: Wire) -> bool:
        wire.stopped.wait(60)
        return False

    monkeypatch.setattr(s3_credentials, "_READ_S", 0.1)
    with scripted_server(hang) as server:
        identify(monkeypatch, tmp_path, server)
        with opened(chain(server)) as store, pytest.raises(PayloadStoreError, match="ReadTimeoutError") as caught:
            store.put(*NAME, b"data")
        assert "PUT" not in [request.method for request in server.requests]
    assert caught.value.retriable


def test_a_token_service_that_drips_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, set_clock: SetClock
) -> None:
    """A byte of an answer now and then holds no call for longer than its time."""
    with scripted_server(dribbling(b"HTTP/1.1 200 OK\r\nX-Slow: ")) as server:
        identify(monkeypatch, tmp_path, server)
        with opened(chain(server)) as store:
            set_clock(10.0)
            with pytest.raises(PayloadStoreError, match=f"AWS's provider chain has no credentials: .*{LATE}") as caught:
                store.put(*NAME, b"data")
        assert "PUT" not in [request.method for request in server.requests]
    assert caught.value.retriable


@pytest.mark.parametrize(
    ("trouble", "seconds", "retriable"),
    [
        ((400, "IDPCommunicationError"), 60, True),
        ((400, "InvalidIdentityToken"), 60, True),
        ((400, "ExpiredTokenException"), 60, True),
        ((400, "Throttling"), 60, True),
        ((500, "InternalFailure"), 60, True),
        ((503, ""), 60, True),
        ((403, "AccessDenied"), 60, False),
        ((400, "ValidationError"), 60, False),
        (None, -60, True),  # what it gives is over already
    ],
)
def test_a_web_identity_that_fails_for_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trouble: tuple[int, str] | None, seconds: int, *, retriable: bool
) -> None:
    """An error of the store, whatever the token service says; what may pass is retriable. It works again after that."""
    sts = Sts()
    with scripted_server(sts.script) as server:
        identify(monkeypatch, tmp_path, server)
        with opened(chain(server)) as store:
            store.put(*NAME, b"data")
            sts.trouble, sts.seconds = trouble, seconds
            with pytest.raises(PayloadStoreError, match="AWS's provider chain has no credentials: ") as caught:
                store.put(*NAME, b"data")
            assert caught.value.retriable is retriable
            assert isinstance(caught.value, PayloadStoreAccessError) is not retriable
            assert caught.value.key == "s3.access.key"
            assert "s3:GetObject" not in str(caught.value)
            if trouble is not None:
                assert f"AssumeRoleWithWebIdentity: {trouble[1]}" in str(caught.value)
            sts.trouble, sts.seconds = None, 60
            store.put(*NAME, b"data")
            (tmp_path / "token").unlink()
            with pytest.raises(PayloadStoreError, match="FileNotFoundError") as caught:
                store.put(*NAME, b"data")
            assert caught.value.retriable


@pytest.mark.parametrize("page", ["<html><br>Back soon</html>", "<html>Back soon</html>"])
def test_a_page_in_place_of_the_token_service_may_pass(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, page: str
) -> None:
    """As one in place of the store: a load balancer has it while its servers are away."""
    with scripted_server(lambda _, wire: answer(wire, 200, page)) as server:
        identify(monkeypatch, tmp_path, server)
        with opened(chain(server)) as store, pytest.raises(PayloadStoreError, match="chain has no") as caught:
            store.put(*NAME, b"data")
    assert (caught.value.retriable, caught.value.key) == (True, "s3.access.key")


def test_a_role_is_assumed_with_exchanged_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path
) -> None:
    """The keys behind a role come from a file, too; where they are refused, the file is read again."""
    (tmp_path / "config").write_text("[profile r]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\n")
    write(file, OLD, "base")
    sts = Sts()
    sts.valid = OLD
    with scripted_server(sts.script) as server:
        for name, value in {
            "AWS_CONFIG_FILE": str(tmp_path / "config"),
            "AWS_PROFILE": "r",
            "AWS_ENDPOINT_URL_STS": server.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            monkeypatch.setenv(name, value)
        with opened(chain(server)) as store:
            store.put(*NAME, b"data")
            sts.valid = GOOD
            sts.asked.clear()
            write(file, GOOD, "base")
            store.put(*NAME, b"data")
    assert sts.asked == [OLD, GOOD]


# --- AWS KMS ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["ExpiredTokenException", "UnrecognizedClientException", "AccessDeniedException"])
def test_credentials_for_kms_are_exchanged_too(file: Path, code: str) -> None:
    """A call of KMS whose keys are refused is made again with the new ones."""
    with KmsServer() as kms:
        keyring = keyring_of(kms.config())
        assert keyring is not None
        keyring.current()
        kms.calls.clear()

        def trouble(_: str) -> tuple[int, dict[str, object]] | None:
            write(file, GOOD)
            return refusal(code, "no") if len(kms.calls) == 1 else None

        kms.trouble = trouble
        keyring.current()
        assert len(kms.calls) == 2
        kms.trouble = lambda _: refusal("ExpiredTokenException", "no")
        with pytest.raises(PayloadStoreAccessError, match=r"chain \(shared-credentials-file\): they have expired"):
            keyring.current()


# --- the search itself ------------------------------------------------------------------------------------------------


class Chain:
    """A chain that has what `found` says; an error is raised."""

    def __init__(self, *found: str | Exception | None) -> None:
        self.found = [*found]
        self.now = 0.0

    def search(self) -> SimpleNamespace | None:
        """The next of `found`."""
        found = self.found.pop(0)
        if isinstance(found, Exception):
            raise found
        return None if found is None else SimpleNamespace(method="file", get_frozen_credentials=lambda: found)

    def credentials(self) -> ChainCredentials:
        """Of this chain."""
        return ChainCredentials(self.search, clock=lambda: self.now)


def refused(credentials: ChainCredentials, code: str = "ExpiredToken") -> float | None:
    """What botocore is to do about a request that was refused."""
    found = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    return credentials._refused((None, found))


@pytest.fixture
def in_time() -> Iterator[None]:
    """The time of a call, as the search always has one; a call of another test may have left its own, which is over."""
    with within(60.0):
        yield


@pytest.mark.usefixtures("in_time")
def test_a_chain_that_has_nothing_new_is_not_searched_for_a_second() -> None:
    """A storm of refusals reads files, and asks services, once a second; what was found stays."""
    chain = Chain("a", "a", None, ValueError("broken"), "b")
    credentials = chain.credentials()
    assert credentials.get_frozen_credentials() == "a"
    assert [refused(credentials) for _ in range(5)] == [None] * 5
    assert len(chain.found) == 3
    for now in (1.0, 2.0):
        chain.now = now
        assert refused(credentials) is None
        assert credentials.get_frozen_credentials() == "a"
    chain.now = 3.0
    assert (refused(credentials), credentials.get_frozen_credentials()) == (0.0, "b")
    assert refused(credentials, "NoSuchBucket") is None


@pytest.mark.usefixtures("in_time")
def test_a_chain_that_had_nothing_is_searched_again() -> None:
    """A store that was opened before its credentials were there finds them; until then each call says what is wrong."""
    chain = Chain(None, OSError("away"), "a")
    credentials = chain.credentials()
    assert [credentials.get_frozen_credentials() for _ in range(3)] == [None] * 3
    chain.now = 1.0
    for _ in range(3):
        with pytest.raises(CredentialsError, match="has no credentials: OSError: away") as caught:
            credentials.get_frozen_credentials()
        assert caught.value.may_pass
    chain.now = 2.0
    assert credentials.get_frozen_credentials() == "a"


def given_up(credentials: ChainCredentials, over: threading.Event) -> None:
    """Asserts that these credentials, which hang until `over`, end their call in its time."""
    try:
        with within(0.2), pytest.raises(CredentialsError, match="HangingError: has not answered for") as caught:
            credentials.get_frozen_credentials()
    finally:
        over.set()
    assert caught.value.may_pass


def test_a_chain_without_end_ends_the_call() -> None:
    """A program of the chain that hangs (`credential_process`), or a metadata service, has the time of the call."""
    over = threading.Event()

    def hang() -> None:
        over.wait(10)

    given_up(ChainCredentials(hang), over)


def test_a_renewal_without_end_ends_the_call() -> None:
    """What was found is asked for others by the program that has given it, which may hang the next time."""
    over = threading.Event()

    def renew() -> dict[str, str]:
        over.wait(10)
        return old

    old = {"access_key": OLD, "secret_key": "s", "token": "t", "expiry_time": "2020-01-01T00:00:00Z"}
    found = RefreshableCredentials.create_from_metadata(old, renew, "custom-process")
    given_up(ChainCredentials(lambda: found), over)
