"""A stand-in for AWS KMS: its JSON protocol over HTTP, with two of its calls, and separate keys.

No AWS is needed, and boto3 is the real one. What it cannot show is what only AWS does: policies, regions, limits.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ARN = "arn:aws:kms:eu-central-1:111122223333:key/11111111-2222-3333-4444-555555555555"
OTHER_ARN = "arn:aws:kms:eu-central-1:111122223333:key/66666666-7777-8888-9999-000000000000"

_Answer = tuple[int, dict[str, Any]]


class KmsServer:
    """Serves until the block ends.

    Attributes:
        calls: the name and the key of each call, in order.
        contexts: the encryption context of each.
        plaintexts: the keys of all answers, in base64.
        pause_s: before each byte of an answer.
        trouble: gives the answer to a call in place of the right one; None for the right one.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.contexts: list[dict[str, str]] = []
        self.plaintexts: list[str] = []
        self.pause_s = 0.0
        self.trouble: Callable[[str], _Answer | None] = lambda _: None
        self._keys = {arn: AESGCM(os.urandom(32)) for arn in (ARN, OTHER_ARN)}
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = server.answer(self.headers["X-Amz-Target"].removeprefix("TrentService."), body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if not server.pause_s:
                    self.wfile.write(data)
                    return
                with contextlib.suppress(ConnectionError):  # who waits gives up
                    for byte in data:
                        time.sleep(server.pause_s)
                        self.wfile.write(bytes([byte]))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def config(self, arn: str = ARN) -> dict[str, object]:
        """What a writer's configuration says of this server."""
        return {
            "large.message.encryption.type": "aes-256-gcm",
            "large.message.encryption.kms.key.id": arn,
            "large.message.encryption.kms.endpoint": self.endpoint,
        }

    def answer(self, operation: str, body: dict[str, Any]) -> _Answer:
        """The status and the body of an answer."""
        arn = body["KeyId"]
        self.calls.append((operation, arn))
        self.contexts.append(body.get("EncryptionContext", {}))
        trouble = self.trouble(operation)
        if trouble is not None:
            return trouble
        key = self._keys.get(arn)
        if key is None:
            return refusal("NotFoundException", "no such key")
        context = json.dumps(body.get("EncryptionContext", {}), sort_keys=True).encode()
        if operation == "GenerateDataKey":
            plaintext, nonce = os.urandom(32), os.urandom(12)
            self.plaintexts.append(_text(plaintext))
            blob = nonce + key.encrypt(nonce, plaintext, context)
            return 200, {"KeyId": arn, "Plaintext": _text(plaintext), "CiphertextBlob": _text(blob)}
        blob = base64.b64decode(body["CiphertextBlob"])
        try:
            return 200, {"KeyId": arn, "Plaintext": _text(key.decrypt(blob[:12], blob[12:], context))}
        except InvalidTag:
            return refusal("InvalidCiphertextException", "")


def refusal(code: str, message: str, status: int = 400) -> _Answer:
    """An error as KMS reports it."""
    return status, {"__type": code, "message": message}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
