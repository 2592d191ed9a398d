"""Properties of pipelines before the first table: which are allowed there, and which apply to a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS
from app.config.settings import PIPELINE_KEYS
from app.config.wrapping import is_header_key
from stores.keys import Key
from stores.registry import STORE_CLASS, STORE_NAMES, store_keys
from stores.store import COMMON_KEYS

OWN_KEYS = ("topics", "output.topic", "group.id")
"""Properties that cannot be defaults: pipelines that share a topic or a group would process records twice."""

_TRANSFORMS = "transforms"
_STRATEGY = "large.message.strategy"
_THRESHOLD = "large.message.threshold.bytes"
_ROOT = "large.message.root"
_ROOT_TOPICS = "large.message.root.topics"
_LIST = Key(_TRANSFORMS, "list", "")
_KEYS = tuple(key for key in (*PIPELINE_KEYS, *CONSUMER_KEYS, *PRODUCER_KEYS, *COMMON_KEYS) if key.name not in OWN_KEYS)
_STORE = frozenset((STORE_CLASS, *(key.name for key in COMMON_KEYS)))
_OURS = frozenset(key.name for key in _KEYS)


def default_keys(names: Sequence[str]) -> Sequence[Key]:
    """The properties that may be defaults, with those of the built-in stores to which some of the names belong.

    Raises:
        ConfigurationError: a package that such a store needs is not installed.
    """
    stores = dict.fromkeys(name.partition(".")[0] for name in names)
    return (*_KEYS, *(key for store in stores if store in STORE_NAMES for key in store_keys(store) or ()))


def defaults_of(shared: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """The defaults that apply to a pipeline: those that its table does not set, and that its transforms can use.

    A property without effect is an error in a pipeline's table. As a default it may be meant for other pipelines.

    Args:
        shared: the values before the first table, without properties of the worker.
        given: the values in the table.
    """
    merged = {**shared, **given}
    found = _LIST.coerce(merged.get(_TRANSFORMS))
    transforms = found if isinstance(found, list) else []
    store_class = merged.get(STORE_CLASS)
    splits_all = merged.get(_STRATEGY) == "chunk"
    without_effect: set[str] = set()
    if "inflate" not in transforms and ("offload" not in transforms or splits_all):
        without_effect |= _STORE
    if "inflate" not in transforms:
        without_effect |= {_ROOT}
    if "inflate" not in transforms or merged.get(_ROOT) != "topic":
        without_effect |= {_ROOT_TOPICS}
    if ("chunk" in transforms and "offload" not in transforms) or ("offload" in transforms and splits_all):
        without_effect |= {_THRESHOLD}
    if "chunk" in transforms or not {"offload", "inflate"} & {str(name) for name in transforms}:
        without_effect |= {_STRATEGY}
    defaults = {name: value for name, value in shared.items() if name not in given and name not in without_effect}
    if STORE_CLASS in without_effect and STORE_CLASS not in given:
        store_class = None
    return {name: value for name, value in defaults.items() if _is_for(name, store_class, shared)}


def _is_for(name: str, store_class: object, shared: Mapping[str, object]) -> bool:
    """Whether a property applies to a pipeline with this store: it is the store's, or of no store."""
    store = name.partition(".")[0]
    if name in _OURS:
        return True
    if store in STORE_NAMES:
        return store == store_class
    return is_header_key(name) or store_class == shared.get(STORE_CLASS)
