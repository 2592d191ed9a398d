"""Configuration files for tests: a head and tables to put together, and what comes of them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

import pytest

from app.config.parsing import parse
from app.config.settings import PipelineSettings, Settings
from transforms.errors import ConfigurationError

HEAD = 'bootstrap.servers = "localhost:9092"\n'
STORE = 'large.message.payload.store.class = "memory"\n'
ORDERS = f"""
[pipeline.orders]
topics = ["raw"]
output.topic = "orders"
transforms = ["offload"]
{STORE}"""
OWN_CLASS = ORDERS.replace('"memory"', '"shop.store.ShopStore"')
S3 = ORDERS.replace('"memory"', '"s3"')


def settings_of(text: str, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of a file with this text."""
    return parse(tomllib.loads(text), environ or {})


def refusal_of(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The sentence with which a file with this text is refused."""
    with pytest.raises(ConfigurationError) as caught:
        settings_of(text, environ)
    return str(caught.value)


def only_pipeline(text: str, environ: Mapping[str, str] | None = None) -> PipelineSettings:
    """The one pipeline of a file with this text."""
    (pipeline,) = settings_of(text, environ).pipelines
    return pipeline
