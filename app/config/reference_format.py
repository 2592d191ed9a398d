"""Whether readers of other projects can follow the references that a pipeline writes to its store."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stores.registry import STORE_CLASS
from transforms.errors import ConfigurationError
from transforms.formats import FormatName

# bakdata's reader takes bucket and key from java.net.URI. If the bucket is not a valid host name, it gets null.
# Characters that a URI's path may not contain, or that have a meaning there, are refused or misread.
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_BUCKET = re.compile(rf"{_LABEL}|(?:{_LABEL}\.)+(?![0-9]){_LABEL}")
_PREFIX = re.compile(r"[a-zA-Z0-9._~!$&'()*+,;=:@/-]*")

# The properties for bucket and prefix, by store.
_PLACES: Mapping[object, tuple[str, str]] = {
    "s3": ("s3.bucket", "s3.prefix"),
    "gcs": ("gcs.bucket", "gcs.prefix"),
    "azure": ("azure.container", "azure.prefix"),
}


def check_store_paths(name: FormatName, transforms: Sequence[str], store: Mapping[str, object]) -> None:
    """Refuses a store whose paths the readers of this format cannot follow.

    Raises:
        ConfigurationError: with the wrong property of the store.
    """
    if name == "wideload" or "offload" not in transforms:
        return
    why = f"the readers of reference.format = '{name}' require"
    if store[STORE_CLASS] in ("filesystem", "memory"):
        raise ConfigurationError(STORE_CLASS, f"found {store[STORE_CLASS]!r}; {why} 's3', 'gcs' or 'azure'")
    keys = _PLACES.get(store[STORE_CLASS])
    if keys is None:
        return  # the paths of a custom class are not known here
    bucket, prefix = (str(store.get(key, "")) for key in keys)
    if not _BUCKET.fullmatch(bucket):
        raise ConfigurationError(
            keys[0],
            f"found {bucket!r}; {why} a name that Java accepts as a host name: no '_', no digit after the last '.'",
        )
    if not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(keys[1], f"found {prefix!r}; {why} characters of a-z, A-Z, 0-9 and ._~!$&'()*+,;=:@/-")
