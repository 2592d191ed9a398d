"""Wrappers in the configuration: the settings of a pipeline that wraps or unwraps values, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from app.config.fields import keyed, keys_of, settings_of
from stores.keys import Key
from transforms.errors import ConfigurationError
from transforms.wrapper import UNMAPPED_PREFIX, HeaderTable, Unwrap, Wrap

_PLAIN = "unwrap.on.plain.value"
_UNMAPPED = "wrap.on.unmapped.header"
_NULL = "wrap.on.null.value"

HEADER_KEY = Key(
    f"{UNMAPPED_PREFIX}NUMBER",
    "string",
    "The name of the header that has this int key in a wrapper, for instance `wrapper.header.3000001` = `trace-id`. "
    "One property for each header. A header without such a property is named `wrapper.header.NUMBER`.",
)
"""For the reference page; there may be any number of these properties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperSettings:
    """What a pipeline does with wrappers.

    Attributes:
        unwraps: whether `unwrap` is among the transforms.
        wraps: whether `wrap` is.
        headers: the names of headers, by key: `wrapper.header.NUMBER`.
    """

    unwraps: bool
    wraps: bool
    plain: Literal["fail", "pass"] = keyed(
        _PLAIN,
        "string",
        "What `unwrap` does with a value that is not a wrapper. `fail`: the record fails, and `errors.tolerance` "
        "applies. `pass`: the record is forwarded unchanged.",
        default="fail",
        allowed=("fail", "pass"),
    )
    unmapped: Literal["fail", "drop"] = keyed(
        _UNMAPPED,
        "string",
        "What `wrap` does with a header that has no int key. `fail`: the record fails, and `errors.tolerance` "
        "applies. `drop`: the record is wrapped without the header.",
        default="fail",
        allowed=("fail", "drop"),
    )
    null: Literal["wrap", "pass"] = keyed(
        _NULL,
        "string",
        "What `wrap` does with a tombstone. `wrap`: the tombstone becomes a wrapper with a null value, which does not "
        "delete the key from a compacted topic. `pass`: the tombstone is forwarded with its headers.",
        default="wrap",
        allowed=("wrap", "pass"),
    )
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def unwrap(self) -> Unwrap:
        """The transform `unwrap` with these settings."""
        return Unwrap(HeaderTable.configured(self.headers), self.plain)

    @property
    def wrap(self) -> Wrap:
        """The transform `wrap` with these settings."""
        return Wrap(HeaderTable.configured(self.headers), self.unmapped, self.null)


WRAPPER_KEYS = keys_of(WrapperSettings)
PLAIN_KEY = WRAPPER_KEYS[0]


def is_header_key(name: str) -> bool:
    """Whether a property of the file names a header."""
    return name.startswith(UNMAPPED_PREFIX)


def wrapper_settings(
    values: Mapping[str, Any], given: Mapping[str, object], transforms: Sequence[str]
) -> WrapperSettings:
    """The settings of a pipeline.

    Args:
        values: of the pipeline's properties, with defaults.
        given: the values in the file.
        transforms: in order.

    Raises:
        ConfigurationError: the table of headers is ambiguous.
    """
    named = {name: value for name, value in given.items() if is_header_key(name)}
    texts = {name: cast("str", Key(name, "string", HEADER_KEY.doc).check(value)) for name, value in named.items()}
    HeaderTable.configured(texts)  # refuses an ambiguous table
    return settings_of(
        WrapperSettings, values, unwraps="unwrap" in transforms, wraps="wrap" in transforms, headers=texts
    )


def check_order(transforms: Sequence[str]) -> None:
    """Refuses an order of transforms that does not work with wrappers.

    Raises:
        ConfigurationError: `unwrap` comes after a transform that needs the unwrapped value, or `wrap` before one.
    """
    found = f"found {list(transforms)}"
    for i, name in enumerate(transforms):
        before = transforms[:i]
        if name == "unwrap" and (late := [each for each in before if each != "assemble"]):
            raise ConfigurationError(
                "transforms", f"{found}; unwrap must come before {late[0]}, which needs the unwrapped value"
            )
        if name not in ("wrap", "chunk") and "wrap" in before:
            raise ConfigurationError(
                "transforms", f"{found}; wrap must come after {name}, which would otherwise receive wrapped values"
            )
