"""Message wrappers in a Faust app: the codec and `event.headers` have what is in the wrapper.

Source: seed 002. The keys are those of the worker's `wrap` and `unwrap`, and so is what they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.config.client import coerced
from app.config.wrapping import HEADER_KEY, WRAPPER_KEYS, is_header_key, wrapper_settings
from stores.keys import read
from transforms.errors import MalformedWrapperError, SerializationError, WrapError
from transforms.record import Header, Record
from transforms.wrapper import MessageWrapper

__all__ = ["WRAPPER_NAMES", "Wrapping", "is_wrapper_key"]

WRAPPER_NAMES = (*(key.name for key in WRAPPER_KEYS), HEADER_KEY.name)


def is_wrapper_key(name: str) -> bool:
    """Whether a key of a configuration is for `Wrapping`."""
    return name in WRAPPER_NAMES or is_header_key(name)


class Wrapping:
    """Puts values into wrappers, and takes them out.

    Args:
        config: with `app.config.wrapping.WRAPPER_KEYS`, and any number of `wrapper.header.NUMBER`.

    Raises:
        ConfigurationError: a value is wrong, or the table of headers is ambiguous.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        values = read(WRAPPER_KEYS, coerced(WRAPPER_KEYS, config))
        settings = wrapper_settings(values, config, ("unwrap", "wrap"))
        self._wrap, self._unwrap = settings.wrap, settings.unwrap

    def wrapped(self, topic: str, value: bytes | None, headers: Sequence[Header]) -> tuple[bytes | None, list[Header]]:
        """The wrapper, and no headers; a null as `wrap.on.null.value` says.

        Raises:
            SerializationError: the wrapper cannot hold a header.
        """
        record = Record(None, value, headers)
        if not self._wrap.wants(record):
            return value, list(headers)
        try:
            return self._wrap.wrap(record).value, []
        except WrapError as exc:
            raise SerializationError(topic, "value", f"LargeMessageSchema: {exc}") from exc

    def wraps_null(self) -> bool:
        """Whether a null becomes a wrapper, which deletes nothing from a compacted topic."""
        return self._wrap.wants(Record(None, None))

    def is_wrapper(self, value: bytes | None) -> bool:
        """Whether the value is a wrapper."""
        return value is not None and MessageWrapper.check(value)

    def unwrapped(
        self, topic: str, value: bytes | None, headers: Sequence[Header]
    ) -> tuple[bytes | None, list[Header]]:
        """The value in the wrapper, and the record's headers with those of the wrapper behind them.

        Raises:
            SerializationError: the value is no wrapper, and `unwrap.on.plain.value` is `fail`.
        """
        record = Record(None, value, headers)
        if not self._unwrap.wants(record):
            return value, list(headers)
        try:
            found = self._unwrap.unwrap(record)
        except MalformedWrapperError as exc:
            raise SerializationError(topic, "value", f"LargeMessageSchema: {exc}", deserializing=True) from exc
        return found.value, list(found.headers)
