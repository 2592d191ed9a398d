"""Who may change something through the web server: nobody, unless the file says so."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
from aiohttp.test_utils import make_mocked_request

from app.pipeline.report import SteeringError
from app.web.access import Access
from app.web.errors import RestError
from tests.app.web.test_server import connected, opened

TOKEN = "token-of-who-may-steer-1"


def refusal(access: Access, **headers: str) -> int | None:
    """The status with which a request with these headers is refused; None if it passes."""
    try:
        access.check(make_mocked_request("PUT", "/", headers=headers))
    except RestError as exc:
        return exc.status
    return None


@pytest.mark.parametrize("token", [None, TOKEN])
def test_changes_are_off_by_default(token: str | None) -> None:
    """Without `web.control.enable` no token lets anybody pass."""
    assert refusal(Access(token, enabled=False), Authorization=f"Bearer {TOKEN}") == 403
    assert refusal(Access(token, enabled=False), Authorization="Bearer None") == 403


def basic(credentials: str) -> str:
    """The header of HTTP Basic."""
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


def test_the_token_lets_pass() -> None:
    """The name of the scheme is written as one likes, the token is not; with Basic any user has it as password."""
    access = Access(TOKEN, enabled=True)
    for user in ("operator", "", TOKEN):
        assert refusal(access, Authorization=basic(f"{user}:{TOKEN}")) is None
    assert refusal(access, Authorization=basic(f"operator:{TOKEN}").replace("Basic ", "BASIC  ")) is None
    assert refusal(access, Authorization=f"BEARER  {TOKEN}") is None
    assert refusal(Access(f"{TOKEN}:more", enabled=True), Authorization=basic(f"x:{TOKEN}:more")) is None
    assert refusal(Access(TOKEN, enabled=False), Authorization=basic(f"x:{TOKEN}")) == 403


@pytest.mark.parametrize(
    ("sent", "wrong"),
    [
        (None, "the header Authorization is missing"),
        ("Bearer", "the token of Authorization: Bearer is missing"),
        ("Bearer ", "the token of Authorization: Bearer is missing"),
        *(
            (f"Bearer {wrong}", "the token of Authorization: Bearer is not the token of this worker")
            for wrong in ("no-token", TOKEN[:-1], f"{TOKEN}1", TOKEN.upper(), "\xff\xfe", "x" * 7_000)
        ),
        (f"Basic {TOKEN}", "the value of Authorization: Basic is not the Base64 of USER:PASSWORD"),
        (basic(f"operator:{TOKEN[:-1]}"), "the password of Authorization: Basic is not the token of this worker"),
        (basic("operator:no-token"), "the password of Authorization: Basic is not the token of this worker"),
        (basic(f"operator:{TOKEN} "), "the password of Authorization: Basic is not the token of this worker"),
        (basic(f"{TOKEN}:"), "the password of Authorization: Basic is missing"),
        (basic(TOKEN), "the password of Authorization: Basic is missing"),
        ("Basic", "the password of Authorization: Basic is missing"),
        (f"Basic operator:{TOKEN}", "the value of Authorization: Basic is not the Base64 of USER:PASSWORD"),
        (basic(f"operator:{TOKEN}") + "*", "the value of Authorization: Basic is not the Base64 of USER:PASSWORD"),
        ("Basic \xff", "the value of Authorization: Basic is not the Base64 of USER:PASSWORD"),
        ("Digest username=operator", "the scheme of the header Authorization is Digest"),
        (TOKEN, "the header Authorization has no scheme before its value"),
        (f"{TOKEN} more", "the header Authorization has no scheme before its value"),
        (f"{TOKEN[:8]}=1 more", "the header Authorization has no scheme before its value"),
        ("hunter2", "the header Authorization has no scheme before its value"),
    ],
)
def test_a_refusal_says_what_was_sent(sent: str | None, wrong: str) -> None:
    """One who reads it knows which part to change; it has no part of what was sent, and asks no browser for Basic."""
    headers = {} if sent is None else {"Authorization": sent}
    with pytest.raises(RestError) as refused:
        Access(TOKEN, enabled=True).check(make_mocked_request("PUT", "/", headers=headers))
    assert refused.value.message == (
        f"{wrong}; send web.control.token of the worker's file as Authorization: Bearer, or as the password of "
        "Authorization: Basic with any user name"
    )
    assert (refused.value.status, refused.value.headers) == (401, {"WWW-Authenticate": 'Bearer realm="wideload"'})


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://worker:6066", "worker:6066", None),
        ("https://Worker.local", "worker.local", None),
        ("http://worker:6066", "worker", 403),
        ("http://worker", "worker:6066", 403),
        ("http://worker:1", "worker:6066", 403),
        ("null", "worker", 403),
        ("null", None, 403),
        ("", None, 403),
    ],
)
def test_an_origin_is_the_host(origin: str, host: str | None, status: int | None) -> None:
    """A page may change something only where it has come from."""
    for authorization in (f"Bearer {TOKEN}", basic(f"operator:{TOKEN}")):
        headers = {"Origin": origin, "Authorization": authorization} | ({} if host is None else {"Host": host})
        assert refusal(Access(TOKEN, enabled=True), **headers) == status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/connectors/orders/pause"),
        ("PUT", "/connectors/orders/resume"),
        ("PUT", "/connectors/orders/stop"),
        ("POST", "/connectors/orders/restart"),
        ("POST", "/connectors/orders/tasks/0/restart"),
        ("PUT", "/admin/loggers/root"),
    ],
)
async def test_a_worker_takes_no_changes_by_default(method: str, path: str) -> None:
    """403, with the key to change."""
    async with opened() as port, connected(port, f"{method} {path} HTTP/1.0\r\n\r\n".encode()) as (reader, _):
        head, _, body = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
    assert head.splitlines()[0].split()[1] == b"403"
    message = "changes are disabled; set web.control.enable = true and web.control.token in the worker's file"
    assert json.loads(body) == {"error_code": 403, "message": message}


@pytest.mark.parametrize(("retriable", "status"), [(True, 503), (False, 500)])
async def test_what_kafka_does_not_take_is_an_error(
    retriable: bool,  # noqa: FBT001
    status: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request that `control.topic` has not taken has not been done; 503 says that another try may help."""

    async def steer(*_: object) -> None:
        raise SteeringError("no broker answers", retriable=retriable)

    monkeypatch.setattr("app.application.OwnSteering.steer", steer)
    head = f"PUT /connectors/orders/pause HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    allowed = f'web.control.enable = true\nweb.control.token = "{TOKEN}"\n'
    async with opened(allowed) as port, connected(port, head.encode()) as (reader, _):
        head_found, _, body = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
    assert int(head_found.split()[1]) == status
    assert json.loads(body) == {"error_code": status, "message": "no broker answers"}
