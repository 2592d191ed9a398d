"""An OIDC provider for tests: a token endpoint and the key that signs its tokens, over HTTP."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

CLIENT, SECRET, ISSUER = "wideload", "of-a-client", "test"
_LENGTH = "Content-Length"


class Provider:
    """What a running provider says, and what it was asked.

    Attributes:
        url: of the token endpoint.
        keys_url: of the public key, as JWKS.
        seconds: how long the next tokens are good.
        audience: of the next tokens.
        status: of the next answers; 200 gives tokens.
        body: of the next answers, in place of tokens.
        forms: of the requests so far.
        tokens: given so far.
    """

    def __init__(self, folder: Path) -> None:
        self._key = folder / "oidc.pem"
        _openssl("genrsa", "-out", str(self._key), "2048")
        self._modulus = bytes.fromhex(
            _openssl("rsa", "-in", str(self._key), "-noout", "-modulus").decode().strip().partition("=")[2]
        )
        self.url = self.keys_url = ""
        self.seconds, self.audience, self.status = 3600, "kafka", 200
        self.body: bytes | None = None
        self.forms: list[dict[str, list[str]]] = []
        self.tokens: list[str] = []

    def keys(self) -> bytes:
        """The public key."""
        number = base64.urlsafe_b64encode(self._modulus).rstrip(b"=").decode()
        key = {"kty": "RSA", "kid": "test", "alg": "RS256", "use": "sig", "n": number, "e": "AQAB"}
        return json.dumps({"keys": [key]}).encode()

    def answer(self, login: str, form: dict[str, list[str]]) -> tuple[int, bytes]:
        """To a request for a token."""
        self.forms.append(form)
        expected = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if self.status != 200 or self.body is not None:
            return self.status, self.body or b'{"error": "temporarily_unavailable"}'
        if login != f"Basic {expected}":
            return 401, b'{"error": "invalid_client", "error_description": "who are you?"}'
        now = int(time.time())
        claims = {"iss": ISSUER, "sub": CLIENT, "aud": self.audience, "iat": now, "exp": now + self.seconds}
        head = {"alg": "RS256", "typ": "JWT", "kid": "test"}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
        signature = _openssl("dgst", "-sha256", "-sign", str(self._key), given=signed.encode())
        token = f"{signed}.{_encoded(signature)}"
        self.tokens.append(token)
        return 200, json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": self.seconds}).encode()


@contextmanager
def provider(folder: Path) -> Iterator[Provider]:
    """A provider, for the length of a block."""
    made = Provider(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, made.keys())

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers[_LENGTH])).decode())
            self._send(*made.answer(self.headers.get("Authorization", ""), form))

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header(_LENGTH, str(len(body)))
            if status == 302:
                self.send_header("Location", f"{made.url}/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        root = f"http://127.0.0.1:{server.server_address[1]}"
        made.url, made.keys_url = f"{root}/token", f"{root}/keys"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _openssl(*arguments: str, given: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], input=given, capture_output=True, check=True).stdout
