"""Which calls of confluent-kafka's producer run callbacks, and on which threads that happens now."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

__all__ = ["CallbackProducer"]

# Source: the uses of `CallState_begin` in confluent-kafka's Producer.c, Metadata.c and confluent_kafka.c.
_CALLS = (
    "abort_transaction",
    "close",
    "commit_transaction",
    "flush",
    "init_transactions",
    "list_topics",
    "poll",
    "send_offsets_to_transaction",
    "set_sasl_credentials",
)


class CallbackProducer(confluent_kafka.Producer):
    """confluent-kafka's `Producer`, which survives a `poll` or `flush` in one of its own callbacks.

    confluent-kafka keeps the state of such a call by thread, and a second one on the same thread removes it: with the
    next callback the process ends (issue 457 there). Here the second call is an error.

    `begin` comes before the constructor of confluent-kafka's own class.
    """

    def begin(self) -> None:
        """Prepares the guard; no callback runs yet."""
        self._calling = set[int]()

    @property
    def in_callback(self) -> bool:
        """Whether this thread is in a callback of this producer, where nothing may wait for other callbacks."""
        return threading.get_ident() in self._calling


def _unnested(name: str) -> Callable[..., Any]:
    call: Callable[..., Any] = getattr(confluent_kafka.Producer, name)

    @functools.wraps(call)
    def called(self: CallbackProducer, *args: Any, **named: Any) -> Any:
        thread, calling = threading.get_ident(), self._calling
        if thread in calling:
            raise KafkaException(
                KafkaError(
                    KafkaError._STATE,  # noqa: SLF001  # a public name, as librdkafka's are written
                    f"{name} was called in a callback of the same producer, where confluent-kafka ends the process; "
                    "produce is allowed there, and all else once poll or flush has returned",
                )
            )
        calling.add(thread)
        try:
            return call(self, *args, **named)
        finally:
            calling.discard(thread)

    return called


for _name in _CALLS:
    if hasattr(confluent_kafka.Producer, _name):  # `close` came with 2.13
        setattr(CallbackProducer, _name, _unnested(_name))
