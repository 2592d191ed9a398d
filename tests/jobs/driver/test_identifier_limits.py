"""Names that a job gives to Kafka."""

from __future__ import annotations

import re

import pytest

from jobs import audit, backfill, sweep
from jobs.driver.identifier_limits import LIMIT_OPTION, check_names
from transforms.errors import ConfigurationError

FITS, OVER = "x" * 249, "x" * 250


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kafka.client.id", "client id"),
        ("kafka.group.id", "group id"),
        ("kafka.group.instance.id", "group instance id"),
        ("kafka.client.rack", "rack id"),
        ("kafka.transactional.id", "transactional id"),
    ],
)
def test_option_over_the_limit(name: str, kind: str) -> None:
    """Each option that is a name is held to its limit; the message has kind, length, limit and option."""
    check_names(["t"], {"kafka.client.id": "c", name: FITS})
    with pytest.raises(ConfigurationError) as caught:
        check_names(["t"], {"kafka.client.id": "c", name: OVER})
    assert str(caught.value) == (
        f"{name}: the {kind} has 250 characters, allowed are 249; shorten it, or set {LIMIT_OPTION}=false if the "
        "brokers accept it"
    )
    check_names(["t"], {name: OVER, LIMIT_OPTION: "false"})


@pytest.mark.parametrize(
    ("topics", "options", "told"),
    [
        # Spark takes its options in whatever case, and gives Kafka's client the names in small letters.
        (["t"], {"kafka.Client.Id": OVER}, "the client id has 250 characters"),
        (["t"], {"KAFKA.CLIENT.ID": OVER, LIMIT_OPTION.upper(): "false"}, None),
        # A topic has its limit in any case.
        ([FITS], {}, None),
        (["t", OVER], {LIMIT_OPTION: "false"}, "--topic: the topic name has 250 characters, allowed are 249; shorten"),
        # What Spark makes of a prefix, and Kafka's client of a group, has room for their numbers.
        (["t"], {"groupIdPrefix": "p" * 162}, None),
        (
            ["t"],
            {"groupidprefix": "p" * 163},
            "groupIdPrefix: the client id, which is built from groupIdPrefix, has 250",
        ),
        (["t"], {"kafka.group.id": "g" * 229}, None),
        (
            ["t"],
            {"kafka.group.id": "g" * 230},
            "kafka.group.id: the client id, which is built from kafka.group.id, has 250",
        ),
        (["t"], {"kafka.group.id": "g" * 249, "kafka.client.id": "c"}, None),
    ],
)
def test_names(topics: list[str], options: dict[str, str], told: str | None) -> None:
    """Topics, options of any case, and names that are made of them are held to their limits."""
    if told is None:
        check_names(topics, options)
        return
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        check_names(topics, options)


@pytest.mark.parametrize("option", ["--topic", "--carrier", "--source", "--sink"])
def test_other_jobs(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each job says which option has the name that is too long."""
    job, arguments = (
        (sweep.main, ["--topic", "t"])
        if option in {"--topic", "--carrier"}
        else (backfill.main, ["--source", "t", "--sink", "u", "--to", "plain", "--checkpoint", "c"])
    )
    broker = ["--bootstrap-servers", "127.0.0.1:1", "--store", "large.message.payload.store.class=memory"]
    assert job([*broker, *arguments, option, OVER]) == 2
    assert f"{option}: the topic name has 250 characters, allowed are 249; shorten it" in capsys.readouterr().err


def test_audit(capsys: pytest.CaptureFixture[str]) -> None:
    """The audit holds names to their limits, and turns that off as the others do."""
    broker = ["--bootstrap-servers", "127.0.0.1:1", "--store", "large.message.payload.store.class=memory"]
    name = ["--topic", "t", "--kafka-option", f"kafka.client.id={OVER}"]
    assert audit.main([*broker, *name]) == 2
    assert "audit: client.id: the client id has 250 characters" in capsys.readouterr().err
    assert audit.main([*broker, *name, "--kafka-option", f"{LIMIT_OPTION}=false"]) == 2
    assert "no broker answers" in capsys.readouterr().err
