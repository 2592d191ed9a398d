"""The configuration of a pipeline with all defaults, as it may be shown to anybody."""

from __future__ import annotations

from collections.abc import Mapping

from app.config.fields import values_of
from app.config.secret import Secret
from app.config.settings import PipelineSettings
from stores.keys import read
from stores.registry import STORE_CLASS, store_keys
from stores.store import COMMON_KEYS
from transforms.masking import HIDDEN


def pipeline_values(pipeline: PipelineSettings) -> dict[str, object]:
    """The values of a pipeline's properties by name, with its store's. Secrets are `Secret`, as in the settings."""
    values = values_of(pipeline)
    store = {name: values.pop(name) for name in pipeline.store}
    if not store:
        del values["large.message.threshold.bytes"], values["large.message.root"]
        return values
    items = list(values.items())
    errors = list(values).index("errors.tolerance")
    return dict([*items[:errors], *_store(store).items(), *items[errors:]])


def shown_value(value: object) -> object:
    """A value for an output: `***` if it is a secret, or comes from `${…}`."""
    items = value if isinstance(value, list | tuple) else (value,)
    return HIDDEN if any(isinstance(item, Secret) for item in items) else value


def _store(config: Mapping[str, object]) -> dict[str, object]:
    known = (*COMMON_KEYS, *(store_keys(str(config[STORE_CLASS])) or ()))
    return {**config, **read([key for key in known if key.name not in config], {})}
