"""Downloads from S3 with retries after a truncated body, within the attempts and the deadline of a call.

botocore retries a request only until it has the head of the response; the body is read later. Here the body is read
within each attempt, in the event that botocore emits to ask whether to retry. Head and body therefore share one count
of attempts.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import urllib3.exceptions
from botocore.exceptions import ClientError

from stores.http_time import LateError
from stores.s3_time import ASKED_PAUSE_S, longest_pause

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@dataclass(slots=True)
class _Call:
    """A call of `Bodies.get`.

    Attributes:
        receive: reads the body of an answer.
        deadline: of the call, by the monotonic clock.
        data: the whole body.
        cut: whether a body was cut; its error is not kept, since it holds the part that came.
        error: why the last body did not come, if that is the end.
    """

    receive: Callable[[Mapping[str, Any]], bytes]
    deadline: float
    data: bytes = b""
    cut: bool = False
    error: Exception | None = None


class _Calls(threading.local):
    call: _Call | None = None


class Bodies:
    """The bodies of one client. May be used by several threads.

    Args:
        client: it gets a handler of its events.
        attempts: the most attempts of a call, those of botocore included.
        attempt_seconds: how long an attempt may take until the head of its answer is there.
    """

    def __init__(self, client: S3Client, attempts: int, attempt_seconds: float) -> None:
        self._client = client
        self._attempts = attempts
        self._attempt_seconds = attempt_seconds
        self._calls = _Calls()
        # First, as the first handler that gives a pause decides.
        client.meta.events.register_first("needs-retry.s3.GetObject", cast("Any", self._tried))

    def get(self, bucket: str, key: str, seconds: float, receive: Callable[[Mapping[str, Any]], bytes]) -> bytes:
        """What `receive` gives for the answer of S3.

        Args:
            bucket: where the object is.
            key: its name.
            seconds: how long the call may take.
            receive: reads the body. An error of a connection is tried again; any other ends the call.

        Raises:
            Exception: what the last attempt raised.
        """
        self._calls.call = call = _Call(receive, time.monotonic() + seconds)
        try:
            self._client.get_object(Bucket=bucket, Key=key)
        finally:
            self._calls.call = None
        if call.error is not None:
            raise call.error
        return call.data

    def _tried(
        self,
        response: tuple[Any, dict[str, Any]] | None,
        attempts: int,
        caught_exception: Exception | None,
        **_: object,
    ) -> float | None:
        """Reads the body of a response. Returns the seconds until the next attempt; None leaves it to botocore."""
        call = self._calls.call
        if call is None:  # the caller does not need the body
            return None
        longest = longest_pause(attempts)
        late = time.monotonic() + longest + ASKED_PAUSE_S + self._attempt_seconds > call.deadline
        answer = None if response is None else response[1]
        if answer is None or answer["ResponseMetadata"]["HTTPStatusCode"] >= HTTPStatus.MULTIPLE_CHOICES:
            # Only a body takes time that the settings do not foresee: without one, each attempt of botocore is in time.
            if late and call.cut:
                raise caught_exception or ClientError(answer or {}, "GetObject")  # type: ignore[arg-type]
            return None
        try:
            call.data = call.receive(answer)
        except (urllib3.exceptions.HTTPError, LateError, OSError) as exc:
            if attempts < self._attempts and not late:
                call.cut = True
                # Those who failed together must not come again together.
                return longest * random.random()  # noqa: S311  (no secret)
            call.error = exc
        return None
