"""The validation of a configuration that anybody may have sent."""

from __future__ import annotations

import sys
from pathlib import Path

from app.config.secret import without_secrets
from app.web.plugins import definitions, validation
from tests.app.configurations import HEAD, ORDERS, settings_of

PIPELINE = {"name": "more", "topics": "a", "output.topic": "b", "transforms": "offload"}


def errors(document: dict[str, object]) -> dict[str, list[str]]:
    """The errors by key."""
    found = validation(document, settings_of(HEAD + ORDERS))
    return {each["value"]["name"]: each["value"]["errors"] for each in found["configs"] if each["value"]["errors"]}


def test_a_class_is_not_imported() -> None:
    """A store class of its own is taken by its name: nobody runs code of this machine by a request."""
    assert errors({**PIPELINE, "large.message.payload.store.class": "antigravity.Store", "api.token": "x" * 9}) == {}
    assert "antigravity" not in sys.modules


def test_no_secret_is_remembered() -> None:
    """What the request calls a secret stays a word of the logs."""
    word = "a-word-of-the-logs"
    store = {"large.message.payload.store.class": "s3", "s3.bucket": "b", "s3.access.key": "a", "s3.secret.key": word}
    assert errors({**PIPELINE, **store}) == {}
    assert without_secrets(word) == word


def test_no_file_is_read(tmp_path: Path) -> None:
    """Whether a file is there cannot be told from the answer."""
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.write_text("secret")
    found = [errors({**PIPELINE, "output.topic": f"${{file:{path}}}"}) for path in (there, missing)]
    assert found[0] == found[1]
    assert "secret" not in str(found)


def test_what_the_worker_decides_holds() -> None:
    """The worker's own keys hold for the pipeline, too."""
    told = errors({**PIPELINE, "transforms": "chunk", "consumer.max.poll.interval.ms": "20000"})
    assert list(told) == ["task.shutdown.graceful.timeout.ms"]


def test_a_message_is_short() -> None:
    """A name of 60 KB does not come back whole."""
    (told,) = errors({**PIPELINE, "name": "x" * 60_000})["name"]
    assert len(told) == 1_000


def test_each_key_is_defined_once() -> None:
    """A form for a configuration has each key once."""
    names = [each["name"] for each in definitions()]
    assert len(names) == len(set(names))
