"""Values that are filled in from elsewhere and do not show."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config.secret import Secret, fill_in, hidden, known, renewed, without_secrets
from stores.keys import Key, Kind
from transforms.errors import ConfigurationError

_NOBODY = 65_534


@pytest.mark.parametrize("value", ["", "plain", "$x", "${x}", "${env:}", "$env:X", 5, True, None, 1.5])
def test_fill_in_leaves_what_has_no_placeholder(value: object) -> None:
    """A value without a placeholder is the same object afterwards, not a secret."""
    assert fill_in("k", value, {"X": "1"}) is value


@pytest.mark.parametrize(
    ("value", "filled", "shown"),
    [
        ("${env:X}:${env:Y}@host", r"a:${env:X}\1\g<0>@host", "***"),  # what is filled in is not searched again
        (["${env:X}", "b", {"n": ["${env:X}"], "m": 1}], ["a", "b", {"n": ["a"], "m": 1}], None),
    ],
)
def test_fill_in_replaces_each_placeholder(value: object, filled: object, shown: str | None) -> None:
    """Several may stand in one string, with text around them, and in lists and tables."""
    found = fill_in("k", value, {"X": "a", "Y": r"${env:X}\1\g<0>"})
    assert (found, repr(found)) == (filled, shown or "[***, 'b', {'n': [***], 'm': 1}]")


def test_fill_in_takes_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no environment is given, that of the process counts, as it is then."""
    monkeypatch.setenv("WIDELOAD_TEST_SECRET", "s")
    assert fill_in("k", "${env:WIDELOAD_TEST_SECRET}") == "s"


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b"s3cret", "s3cret"),
        (b"s3cret\n", "s3cret"),
        (b"s3cret\r\n", "s3cret"),
        (b" s 3 \t\n", " s 3 \t"),
        ("pä$$".encode(), "pä$$"),
        (b"", ""),
        (b"x" * 65_536, "x" * 65_536),
    ],
)
def test_file_is_the_value_without_its_last_line_break(tmp_path: Path, content: bytes, value: str) -> None:
    """Editors end a file with a line break that is not meant; spaces may be part of a password."""
    path = tmp_path / "secret file"
    path.write_bytes(content)
    filled = fill_in("k", f"${{file:{path}}}", {})
    assert (filled, repr(filled)) == (value, "***")


def test_files_that_are_replaced_are_read_again(tmp_path: Path) -> None:
    """What came from a file has its text of now, hidden as before; all else stays, the environment too."""
    file = tmp_path / "key"
    file.write_text("of-yesterday")
    secret, name, other = (fill_in("k", f"{text}${{file:{file}}}", {}) for text in ("s-", "n-", "o-"))
    values = {"secret": known(secret), "name": hidden(name), "env": fill_in("k", "${env:X}", {"X": "x"}), "n": 5}
    file.write_text("of-today")
    found = renewed(values)
    assert found == {"secret": "s-of-today", "name": "n-of-today", "env": "x", "n": 5}
    assert [repr(found[each]) for each in ("secret", "name", "env")] == ["***"] * 3
    assert without_secrets("s-of-today, n-of-today, s-of-yesterday") == "***, n-of-today, ***"
    assert renewed({"k": pickle.loads(pickle.dumps(other))}) == {"k": "o-of-today"}  # noqa: S301  (as Spark hands it on)
    file.unlink()
    with pytest.raises(ConfigurationError, match=r"secret: file .*key' cannot be read"):
        renewed(values)


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Of files that are no secrets. Root may read every file, so it is another user while it may not read one."""
    (tmp_path / "long").write_bytes(b"x" * 65_537)
    (tmp_path / "odd").write_bytes(b"hunter2\xff")
    (tmp_path / "denied").touch(mode=0)
    user = os.geteuid()
    if user == 0 and "denied" in request.node.name:
        os.seteuid(_NOBODY)
    yield tmp_path
    os.seteuid(user)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("${file:{}/none}", "file '{}/none' cannot be read: No such file or directory"),
        ("${file:{}/long}", "file '{}/long' is over 65,536 bytes, too large for a secret"),
        ("${file:/dev/zero}", "file '/dev/zero' is over 65,536 bytes, too large for a secret"),
        ("${file:{}/odd}", "file '{}/odd' is not UTF-8"),
        ("${file:{}}", "file '{}' cannot be read: Is a directory"),
        ("${file:{}/denied}", "file '{}/denied' cannot be read: Permission denied"),
        ("${file:/a\0b}", r"file '/a\x00b' cannot be read: embedded null byte"),
        ("a${env:NO_SUCH}", "the environment variable NO_SUCH is not set"),
        ("${vault:kafka/secret}", "found ${vault:…}, allowed are ${env:NAME} and ${file:/path}"),
    ],
)
def test_what_cannot_be_filled_in(folder: Path, value: str, told: str) -> None:
    """One sentence names the file or the variable, and shows nothing of it; nor does the error's cause."""
    with pytest.raises(ConfigurationError) as caught:
        fill_in("k", value.replace("{}", str(folder)), {})
    assert str(caught.value) == f"k: {told.replace('{}', str(folder))}"
    assert caught.value.__cause__ is None or "cannot be read" in told
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("8080", "int", 8080),
        ("-1", "int", -1),
        ("true", "boolean", True),
        ("False", "boolean", False),
        (" 8080\n", "int", 8080),
        ("0.5", "float", 0.5),
        ("a,b , c", "list", ["a", "b", "c"]),
        ("a", "list", ["a"]),
        ("8080", "string", "8080"),
        ("true", "string", "true"),
        # What does not parse stays; the key's own check then refuses it, without showing it.
        *((text, "int", text) for text in ("", "1.5", "1_0", "٣", "9" * 19)),
        ("yes", "boolean", "yes"),
        ("nan", "float", "nan"),
        ("1e999", "float", "1e999"),
    ],
)
def test_coerce_reads_strings_as_kafka_does(text: str, kind: Kind, value: object) -> None:
    """A text becomes a value of its key's type; a secret stays one."""
    coerced = Key("k", kind, "").coerce(Secret(text))
    assert (coerced, type(coerced) in (str, list)) == (value, kind == "list")
    if isinstance(coerced, str | list):
        assert set(repr(coerced)) <= {*"*[], "}


def test_hidden_wraps_strings_at_any_depth() -> None:
    """Every string is a secret afterwards; nothing else changes."""
    value = {"a": ["x", 1, {"b": "y"}], "c": True}
    assert hidden(value) == value
    assert repr(hidden(value)) == "{'a': [***, 1, {'b': ***}], 'c': True}"


@pytest.mark.parametrize("length", [9, 5_000])
def test_secret_under_the_wrong_key_is_not_shown(length: int) -> None:
    """However long it is, a secret that stands where another value belongs is not in the error."""
    key = Key("k", "string", "", allowed=("a", "b"))
    with pytest.raises(ConfigurationError, match=r"^k: found \*\*\*, allowed is one of: a, b$"):
        key.check(Secret("s" * length))
