"""The token of who may steer a worker."""

from __future__ import annotations

import pytest

from app.commands.check import effective
from app.config.secret import without_secrets
from tests.app.configurations import HEAD, ORDERS, refusal_of, settings_of

TOKEN = "token-of-who-may-steer-1"
ENABLED = "web.control.enable = true\n"
_LENGTHS = "allowed are 16 or more of ASCII without blanks, at random, such as `openssl rand -hex 32` gives"


def test_control_is_off() -> None:
    """Nobody steers a worker by default."""
    settings = settings_of(HEAD + ORDERS)
    assert (settings.web_control, settings.web_control_token) == (False, None)


def test_the_token_is_a_secret() -> None:
    """It is printed nowhere."""
    settings = settings_of(f'web.control.token = "{TOKEN}"\n' + ENABLED + HEAD + ORDERS)
    assert settings.web_control
    assert settings.web_control_token == TOKEN
    assert TOKEN not in repr(settings)
    assert 'web.control.token = "***"' in effective(settings)
    assert TOKEN not in without_secrets(f"Bearer {TOKEN}")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("", "web.control.token: is missing; web.control.enable = true needs it"),
        ('web.control.token = ""\n', f"web.control.token: found 0 characters, {_LENGTHS}"),
        ('web.control.token = "fifteen-letters"\n', f"web.control.token: found 15 characters, {_LENGTHS}"),
        ('web.control.token = "sixteen letters "\n', f"web.control.token: found 16 characters, {_LENGTHS}"),
        ('web.control.token = "sixteenletters-\u00fc"\n', f"web.control.token: found 16 characters, {_LENGTHS}"),
    ],
)
def test_a_token_that_cannot_be_one(line: str, told: str) -> None:
    """One that is missing, short, or that a header cannot carry is refused at start, and not printed."""
    assert refusal_of(ENABLED + line + HEAD + ORDERS) == told


def test_the_token_is_of_the_worker() -> None:
    """In the table of a pipeline it has no place."""
    assert "belongs to the worker" in refusal_of(HEAD + ORDERS + f'web.control.token = "{TOKEN}"\n')
