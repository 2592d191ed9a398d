"""Tokens: how long one is kept, what answers are refused, and Amazon's, which are signed without asking anybody."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from app.kafka import tokens
from app.kafka.tokens import Token, TokenError, TokenProvider, token_provider
from tests.oidc import CLIENT, SECRET, Provider, provider
from tests.stores.scripted_server import dribbling, scripted_server
from transforms.errors import ConfigurationError

_SERVERS = "b-1.orders.abc123.c2.kafka.eu-central-1.amazonaws.com:9098"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """An OIDC provider."""
    with provider(tmp_path_factory.mktemp("oidc")) as made:
        yield made


@pytest.fixture
def oidc(running: Provider) -> Iterator[Provider]:
    """The same; it works again behind a test."""
    yield running
    running.status, running.body, running.seconds = 200, None, 3600


def login(url: str, **more: object) -> dict[str, Any]:
    """The values of a client's keys."""
    credentials = "sasl.oauthbearer.client.credentials."
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        f"{credentials}client.id": CLIENT,
        f"{credentials}client.secret": SECRET,
        "sasl.oauthbearer.scope": None,
        "sasl.aws.region": None,
        **more,
    }


async def test_one_token_for_all(oidc: Provider) -> None:
    """All clients of a login share a token, and ask for it once, however many begin at the same time."""
    oidc.forms.clear()
    found = token_provider(login(oidc.url, **{"sasl.oauthbearer.scope": "one"}), "a:1")
    assert found is token_provider(login(oidc.url, **{"sasl.oauthbearer.scope": "one"}), "b:1")
    given = await asyncio.gather(*(found.token() for _ in range(20)))
    assert set(given) == {oidc.tokens[-1]}
    assert len(oidc.forms) == 1
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: found.now(), range(4))) == set(given)
    assert token_provider(login(oidc.url, **{"sasl.oauthbearer.scope": "other"}), "a:1") is not found


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        ({"expires_in": 100}, 100.0),
        ({"expires_in": 1e30}, 86_400.0),
        ({"expires_in": -1}, 60.0),
        ({"expires_in": "100"}, 60.0),
        ({"expires_in": True}, 60.0),
        ({}, 60.0),
    ],
)
def test_how_long_a_token_is_good(answer: dict[str, object], seconds: float) -> None:
    """As the answer says; else as the token itself says; else a minute."""
    body = json.dumps({"access_token": "opaque", **answer}).encode()
    assert tokens._token_of(body, "-") == Token("opaque", seconds)


@pytest.mark.parametrize(
    ("until", "seconds"),
    [(500, 500), (10**400, 86_400), (-5, 0), (-(10**400), 0)],
    ids=["left", "far", "over", "long over"],
)
def test_time_of_a_json_web_token(until: int, seconds: int) -> None:
    """Its claim `exp` is a time."""
    claims = json.dumps({"exp": int(time.time()) + until}).encode()
    token = f"head.{base64.urlsafe_b64encode(claims).rstrip(b'=').decode()}.signature"
    found = tokens._token_of(json.dumps({"access_token": token}).encode(), "-")
    assert seconds - 2 <= found.seconds <= seconds


def test_a_token_is_renewed_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 80 % of its time, as in Kafka's own client."""
    now = [1_000.0]
    monkeypatch.setattr("app.kafka.tokens.time.monotonic", lambda: now[0])
    made = iter(range(10))
    source = TokenProvider(lambda: Token(f"t{next(made)}", 100.0))
    assert [source.now(), source.now()] == ["t0", "t0"]
    now[0] += 79
    assert source.now() == "t0"
    now[0] += 2
    assert source.now() == "t1"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"no JSON",
        b'{"access_token": 1}',
        b'{"access_token": ""}',
        b'{"access_token": "a\\u0001auth=Bearer other"}',
        b'{"access_token": "a b"}',
        b'{"access_token": "a"}' + b" " * 70_000,
        b"[" * 60_000,
    ],
)
def test_answers_without_a_token(oidc: Provider, body: bytes) -> None:
    """Whatever comes in its place is refused, and nothing of it is told."""
    oidc.body = body or b" "
    with pytest.raises(TokenError, match=r"gives no access_token$") as refused:
        token_provider(login(oidc.url, **{"sasl.oauthbearer.scope": repr(body[:99])}), "a:1").now()
    assert refused.value.retriable


def test_a_refusal_tells_no_secret(oidc: Provider) -> None:
    """What the provider says is cut, and the secret in it hidden."""
    oidc.status = 400
    oidc.body = json.dumps({"error": f"no {SECRET}\n", "error_description": "x" * 9_000}).encode()
    with pytest.raises(TokenError) as refused:
        token_provider(login(oidc.url, **{"sasl.oauthbearer.scope": "refused"}), "a:1").now()
    assert not refused.value.retriable
    assert str(refused.value).startswith(f"TokenError: the token endpoint {oidc.url} answers 400: 'no ***\\n: xxx")
    assert len(str(refused.value)) < 350


def test_an_answer_that_comes_byte_by_byte_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that says a byte of an answer or an error now and then holds no login for longer than its time."""
    monkeypatch.setattr(tokens, "_WHOLE_S", 0.2)
    for start in (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 400 Bad\r\nContent-Length: 9000\r\n\r\n"):
        with scripted_server(dribbling(start)) as server, pytest.raises(TokenError, match="has not answered") as late:
            token_provider(login(server.endpoint), "a:1").now()
        assert late.value.retriable


def test_what_is_missing() -> None:
    """A login that cannot be is refused before a client is made."""
    with pytest.raises(ConfigurationError, match=r"^sasl.oauthbearer.client.credentials.client.id: is missing"):
        token_provider(login("http://-", **{"sasl.oauthbearer.client.credentials.client.id": None}), "a:1")
    with pytest.raises(ConfigurationError, match=r"^sasl.aws.region: is missing"):
        token_provider(login("", **{"sasl.mechanism": "AWS_MSK_IAM"}), "localhost:9098")


@pytest.mark.parametrize(("given", "region"), [(None, "eu-central-1"), ("us-east-2", "us-east-2")])
def test_tokens_for_amazon(monkeypatch: pytest.MonkeyPatch, given: str | None, region: str) -> None:
    """A signed address of the cluster's region; no AWS is asked. That MSK takes it was not tried."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-a-test")
    tokens._provider.cache_clear()
    found = token_provider(login("", **{"sasl.mechanism": "AWS_MSK_IAM", "sasl.aws.region": given}), _SERVERS).now()
    signed = urlsplit(base64.urlsafe_b64decode(found + "=" * (-len(found) % 4)).decode())
    assert signed.hostname == f"kafka.{region}.amazonaws.com"
    assert parse_qs(signed.query)["Action"] == ["kafka-cluster:Connect"]
    assert "of-a-test" not in signed.query


def test_amazon_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setattr(tokens, "_SIGNER", "no_such_package")
    with pytest.raises(ConfigurationError, match=r"^sasl.mechanism: .* pip install wideload\[msk\]$"):
        token_provider(login("", **{"sasl.mechanism": "AWS_MSK_IAM"}), _SERVERS)


def test_where_tokens_cannot_be_asked_for(tmp_path: Path) -> None:
    """A server that does not speak HTTP, or none."""
    with pytest.raises(TokenError, match="does not answer: "):
        token_provider(login("http://127.0.0.1:1/token"), "a:1").now()
