"""Tokens: how long one is kept, what answers are refused, and Amazon's, which are signed without asking anybody."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
def oidc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """An OIDC provider."""
    with provider(tmp_path_factory.mktemp("oidc")) as made:
        yield made


def login(url: str, scope: str | None = None, **more: object) -> dict[str, Any]:
    """The values of a client's keys."""
    credentials = "sasl.oauthbearer.client.credentials."
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        f"{credentials}client.id": CLIENT,
        f"{credentials}client.secret": SECRET,
        "sasl.oauthbearer.scope": scope,
        "sasl.aws.region": None,
        **more,
    }


async def test_one_token_for_all(oidc: Provider) -> None:
    """All clients of a login share a token, and ask for it once, however many begin at the same time."""
    oidc.forms.clear()
    found = token_provider(login(oidc.url, "one"), "a:1")
    assert found is token_provider(login(oidc.url, "one"), "b:1")
    assert found is not token_provider(login(oidc.url, "other"), "a:1")
    given = await asyncio.gather(*(found.token() for _ in range(20)))
    assert set(given) == {oidc.tokens[-1]}
    assert len(oidc.forms) == 1
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: found.now(), range(4))) == set(given)


def jwt(until: int) -> dict[str, object]:
    """An answer with a JSON Web Token that ends in so many seconds."""
    claims = json.dumps({"exp": int(time.time()) + until}).encode()
    return {"access_token": f"head.{base64.urlsafe_b64encode(claims).rstrip(b'=').decode()}.signature"}


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        ({"expires_in": 100}, 100),
        ({"expires_in": 1e30}, 86_400),
        ({"expires_in": -1}, 60),
        ({"expires_in": "100"}, 60),
        ({"expires_in": True}, 60),
        ({}, 60),
        (500, 500),
        (10**400, 86_400),
        (-5, 0),
        (-(10**400), 0),
    ],
    ids=lambda each: str(each)[:30],
)
def test_how_long_a_token_is_good(answer: Any, seconds: int) -> None:
    """As the answer says; else as the token itself says, by its claim `exp`; else a minute."""
    body = jwt(answer) if isinstance(answer, int) else {"access_token": "opaque", **answer}
    found = tokens._token_of(json.dumps(body).encode(), "-")
    assert found.text == body["access_token"]
    assert (seconds - 2 if isinstance(answer, int) else seconds) <= found.seconds <= seconds


def test_a_token_is_renewed_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 80 % of its time, as in Kafka's own client."""
    now = [1_000.0]
    monkeypatch.setattr("app.kafka.tokens.time.monotonic", lambda: now[0])
    made = iter(range(10))
    source = TokenProvider(lambda: Token(f"t{next(made)}", 100.0))
    seen = []
    for passes_s in (0, 0, 79, 2):
        now[0] += passes_s
        seen.append(source.now())
    assert seen == ["t0", "t0", "t0", "t1"]


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
    ids=range(9),
)
def test_answers_without_a_token(body: bytes) -> None:
    """Whatever comes in its place is refused, and nothing of it is told."""
    with pytest.raises(TokenError, match=r"^TokenError: here returns no access_token$") as refused:
        tokens._token_of(body, "here")
    assert refused.value.retriable


def test_a_refusal_tells_no_secret(oidc: Provider) -> None:
    """What the provider says is cut, and the secret in it hidden; its answer is cut, too."""
    told = json.dumps({"error": f"no {SECRET}\n", "error_description": "x" * 9_000}).encode()
    for status, body in ((200, b'{"access_token": "a"}' + b" " * 70_000), (400, told)):
        oidc.status, oidc.body = status, body
        with pytest.raises(TokenError) as refused:
            token_provider(login(oidc.url, f"refused {status}"), "a:1").now()
        assert refused.value.retriable == (status == 200)
    assert str(refused.value).startswith(f"TokenError: the token endpoint {oidc.url} answers 400: 'no ***\\n: xxx")
    assert len(str(refused.value)) < 350


def test_an_answer_that_comes_byte_by_byte_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that says a byte of an answer or an error now and then holds no login; nor does one that is away."""
    monkeypatch.setattr(tokens, "_WHOLE_S", 0.2)
    for start in (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 400 Bad\r\nContent-Length: 9000\r\n\r\n"):
        with scripted_server(dribbling(start)) as server, pytest.raises(TokenError, match="has not answered") as late:
            token_provider(login(server.endpoint), "a:1").now()
        assert late.value.retriable
    with pytest.raises(TokenError, match="does not answer: "):
        token_provider(login("http://127.0.0.1:1/token"), "a:1").now()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"sasl.oauthbearer.client.credentials.client.id": None},
            r"^sasl.oauthbearer.client.credentials.client.id: is missing",
        ),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, r"^sasl.aws.region: is missing"),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, r"^sasl.mechanism: .* pip install wideload\[msk\]$"),
    ],
)
def test_what_is_missing(keys: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login that cannot be is refused before a client is made; of a package it is said what to install."""
    if "pip install" in told:
        monkeypatch.setattr(tokens, "_SIGNER", "no_such_package")
    with pytest.raises(ConfigurationError, match=told):
        token_provider(login("http://-", **keys), "localhost:9098")


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
