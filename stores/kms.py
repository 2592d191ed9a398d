"""Keys of AWS KMS as master keys: `GenerateDataKey` for writers, `Decrypt` for readers, through boto3.

A key from KMS wraps the data key of one payload, or of up to `large.message.encryption.kms.data.key.reuse` payloads. It
is part of each record, encrypted by KMS, and KMS decrypts it for readers. A reader caches the last ones for some
minutes, so payloads that share one cost one call.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlsplit

import boto3
import botocore.exceptions as aws
import urllib3.exceptions
from botocore.config import Config
from botocore.utils import is_valid_endpoint_url

from stores.http_time import LateError, within
from stores.s3_credentials import CredentialsError, open_session, refused_of_chain
from stores.s3_time import keep_time
from transforms.errors import (
    ConfigurationError,
    EncryptionError,
    PayloadStoreAccessError,
    PayloadStoreError,
    shown,
)
from transforms.keyring import KMS_ENDPOINT_NAME, KMS_KEY_NAME, KmsSettings, LocalKeyring, MasterKey
from transforms.masking import masked
from transforms.text import printable

CONTEXT: Mapping[str, str] = {"wideload": "large-message"}
"""The encryption context of every call: KMS decrypts nothing else with it, and policies can ask for it."""

_KEY_BYTES = 32
_MOST_TOKEN_BYTES = 6_144  # the longest that `Decrypt` takes
_KEPT = 1_024
_KEPT_S = 300.0
_SHARE = 4  # of the time of a store call, which comes on top
_ATTEMPTS = 2
_TEXT_CHARACTERS = 500
# The token is not one of this key, or was changed: no other record has this trouble.
_OF_THE_RECORD = frozenset({"InvalidCiphertextException", "IncorrectKeyException"})
_MAY_PASS = frozenset(
    {
        "DependencyTimeoutException",
        "KMSInternalException",
        "KeyUnavailableException",
        "LimitExceededException",
        "RequestTimeout",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_ENDPOINT = re.compile(
    r"https://([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?/?|http://(localhost|127\.[\d.]+|\[::1\])(:\d{1,5})?/?"
)


@dataclass(slots=True)
class _Made:
    """A key from KMS, and for how many payloads and how long it may still be used."""

    master: MasterKey
    left: int
    until_s: float


class KmsKeyring:
    """The keys of AWS KMS, and those of the configuration. Several threads may use it.

    Args:
        local: finds the keys of the configuration.
        settings: which keys of KMS may be used.
        timeout_ms: `large.message.store.timeout.ms`; a call takes a quarter of it at most.

    Raises:
        ConfigurationError: the endpoint is not an https:// address.
    """

    # State that changes, under `_lock`: `_clients`, `_made`, `_kept`.

    def __init__(
        self,
        local: LocalKeyring,
        settings: KmsSettings,
        timeout_ms: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # It logs the body of each response at DEBUG, which contains the key in clear text.
        logger = logging.getLogger("botocore.parsers")
        if _hide_key not in logger.filters:
            logger.addFilter(_hide_key)
        if settings.endpoint is not None and not _is_endpoint(settings.endpoint):
            raise ConfigurationError(
                KMS_ENDPOINT_NAME,
                f"found {shown(masked(settings.endpoint))}, allowed is https://, host and port, because responses "
                "contain keys in clear text; http:// only for this machine",
            )
        self._local = local
        self._settings = settings
        self._timeout_s = timeout_ms / 1000 / _SHARE
        self._clock = clock
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._made: _Made | None = None
        self._kept: OrderedDict[tuple[str, bytes], tuple[MasterKey, float]] = OrderedDict()

    @property
    def writes(self) -> bool:
        return self._local.writes

    def current(self) -> MasterKey:
        key_id = self._local.settings.current
        assert key_id is not None
        if key_id not in self._settings.key_ids:
            return self._local.current()
        with self._lock:
            made = self._made
            if made is not None and made.left > 0 and self._clock() < made.until_s:
                made.left -= 1
                return made.master
        found = self._asked("GenerateDataKey", None, KeyId=key_id, KeySpec="AES_256")
        master = MasterKey(key_id, found["Plaintext"], found["CiphertextBlob"])
        if self._settings.reuse > 1:
            with self._lock:
                self._made = _Made(master, self._settings.reuse - 1, self._clock() + _KEPT_S)
        return master

    def find(self, path: str, key_id: str, token: bytes) -> MasterKey:
        if key_id not in self._settings.key_ids:
            return self._local.find(path, key_id, token)
        if not 0 < len(token) <= _MOST_TOKEN_BYTES:
            raise EncryptionError(path, f"its data key is not one that AWS KMS has encrypted with key {key_id}")
        place = key_id, token
        with self._lock:
            kept = self._kept.get(place)
            if kept is not None and self._clock() < kept[1]:
                self._kept.move_to_end(place)
                return kept[0]
        found = self._asked("Decrypt", path, KeyId=key_id, CiphertextBlob=token)
        master = MasterKey(key_id, found["Plaintext"], token)
        with self._lock:
            self._kept[place] = master, self._clock() + _KEPT_S
            self._kept.move_to_end(place)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return master

    def _asked(self, operation: str, path: str | None, **parameters: object) -> dict[str, Any]:
        """The answer of KMS; `path` is that of the payload which is read, None if one is written."""
        key_id = cast("str", parameters["KeyId"])
        call = "generate_data_key" if operation == "GenerateDataKey" else "decrypt"
        try:
            client = self._client(key_id)
            with within(self._timeout_s):
                found: dict[str, Any] = getattr(client, call)(EncryptionContext=dict(CONTEXT), **parameters)
        except CredentialsError as exc:
            raise exc.translated(f"{operation} of key {key_id} failed", KMS_KEY_NAME) from exc
        except (aws.ClientError, aws.BotoCoreError, urllib3.exceptions.HTTPError, LateError, OSError) as exc:
            raise _translated(exc, operation, key_id, path) from exc
        except (ValueError, TypeError, AttributeError, RecursionError) as exc:
            # botocore accepts any JSON as an object, and any value as base64.
            raise _no_kms(
                f"{operation} of key {key_id}", f"a response that is not from AWS KMS ({type(exc).__name__})"
            ) from exc
        plaintext, token = found.get("Plaintext"), found.get("CiphertextBlob")
        right = isinstance(plaintext, bytes) and len(plaintext) == _KEY_BYTES
        sealed = path is not None or (isinstance(token, bytes) and 0 < len(token) <= _MOST_TOKEN_BYTES)
        if not right or not sealed:
            raise _no_kms(f"{operation} of key {key_id}", "a response of AWS KMS without a key of 256 bits")
        return found

    def _client(self, key_id: str) -> Any:
        region = key_id.split(":")[3]
        with self._lock:
            if region not in self._clients:
                part_s = self._timeout_s / (2 * _ATTEMPTS)
                session, credentials = open_session()
                client: Any = boto3.session.Session(botocore_session=session).client(
                    "kms",
                    region_name=region,
                    endpoint_url=self._settings.endpoint,
                    config=Config(
                        connect_timeout=part_s,
                        read_timeout=part_s,
                        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                        user_agent_extra="wideload",
                        # AWS_ENDPOINT_URL is often that of an S3 server, and may be http://.
                        ignore_configured_endpoint_urls=True,  # type: ignore[call-arg]  # the stubs lack it
                    ),
                )
                keep_time(client, self._timeout_s)
                credentials.renew(client)
                self._clients[region] = client
            return self._clients[region]


def _is_endpoint(url: str) -> bool:
    try:
        return _ENDPOINT.fullmatch(url) is not None and urlsplit(url).port != 0 and is_valid_endpoint_url(url)
    except ValueError:  # a port over 65,535
        return False


def _hide_key(record: logging.LogRecord) -> bool:
    return "Plaintext" not in record.getMessage()


def _no_kms(call: str, found: str) -> PayloadStoreError:
    message = f"{call} failed: received {found}; check {KMS_ENDPOINT_NAME}, and any proxy before it"
    return PayloadStoreError(message, retriable=True, key=KMS_ENDPOINT_NAME)


def _translated(exc: Exception, operation: str, key_id: str, path: str | None) -> Exception:
    if not isinstance(exc, aws.ClientError):
        refused = isinstance(exc, aws.NoCredentialsError)
        text = f"{operation} of key {key_id} failed: {type(exc).__name__}: {printable(str(exc), _TEXT_CHARACTERS)}"
        if refused:
            return PayloadStoreAccessError(f"{text}; AWS's provider chain has none", key=KMS_KEY_NAME)
        return PayloadStoreError(text, retriable=True, key=KMS_ENDPOINT_NAME)
    error = exc.response.get("Error", {})
    code = str(error.get("Code", ""))
    status = int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if path is not None and code in _OF_THE_RECORD:
        return EncryptionError(path, f"AWS KMS cannot decrypt its data key with {key_id} ({code})")
    said = printable(f"{code or 'no code'} (HTTP {status}): {error.get('Message', '')}", _TEXT_CHARACTERS)
    text = f"{operation} of key {key_id} failed: {said}"
    if code in _MAY_PASS or status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return PayloadStoreError(text, retriable=True, key=KMS_KEY_NAME)
    advice = refused_of_chain(exc) or f"it needs kms:{operation} of an enabled key"
    return PayloadStoreAccessError(f"{text}; {advice}", key=KMS_KEY_NAME)
