"""The releases of other packages that `pyproject.toml` allows, and where else the same bounds are written."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest
from faust.transport.consumer import ThreadDelegateConsumer
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread
from faust.transport.drivers.aiokafka import Producer as FaustProducer
from mode import Service

from transforms.compression import _OLDEST

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REQUIREMENTS = {
    *PROJECT["dependencies"],
    *(each for extra in PROJECT["optional-dependencies"].values() for each in extra),
}
# A requirement in a command for a shell: 'boto3>=1.36'
QUOTED = re.compile(r"'([a-z][a-z0-9-]*[<>=!]=?[0-9][^' ]*)'")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_each_package_has_one_bound() -> None:
    """An extra that allows what another refuses would be a bound that no installation has."""
    names = sorted(re.split(r"[<>=!]", each)[0] for each in REQUIREMENTS)
    assert names == sorted(set(names))


def test_pages_name_the_bounds_of_the_project() -> None:
    """What a page says to install by hand is what `pip install wideload` brings."""
    found = {each: page.name for page in PAGES for each in QUOTED.findall(page.read_text("utf-8"))}
    assert found, "no page names a requirement; the pattern of this test finds none"
    assert {each: page for each, page in found.items() if each not in REQUIREMENTS} == {}


def test_cramjam_is_refused_below_its_bound() -> None:
    """The code refuses the releases that `pyproject.toml` does, where no installer has looked."""
    assert f"cramjam>={'.'.join(map(str, _OLDEST))}" in REQUIREMENTS


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (ThreadDelegateConsumer, "_thread"),
        (AIOKafkaConsumerThread, "_consumer"),
        (Service, "_crash"),
        (FaustProducer, "_producer"),
    ],
)
def test_faust_has_each_private_name(owner: type, name: str) -> None:
    """`app/serializers/faust_app.py` uses them; a release of the range that lacks one needs another way."""
    assert hasattr(owner, name) or f"self.{name}" in inspect.getsource(owner)
