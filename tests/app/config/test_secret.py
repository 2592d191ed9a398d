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


def refusal_of(value: object) -> str:
    """The sentence with which `value` is refused under the key `k`."""
    with pytest.raises(ConfigurationError) as caught:
        fill_in("k", value, {})
    return str(caught.value)


@pytest.mark.parametrize("value", ["", "plain", "$x", "${x}", "${env:}", "$env:X", 5, True, None, 1.5])
def test_fill_in_leaves_what_has_no_placeholder(value: object) -> None:
    """A value without a placeholder is the same object afterwards, not a secret."""
    assert fill_in("k", value, {"X": "1"}) is value


def test_fill_in_replaces_each_placeholder() -> None:
    """Several may stand in one string, with text around them."""
    filled = fill_in("k", "${env:USER}:${env:PASS}@host", {"USER": "u", "PASS": "p"})
    assert (filled, repr(filled), type(filled)) == ("u:p@host", "***", Secret)


def test_fill_in_goes_into_lists_and_tables() -> None:
    """Lists and the tables in them are filled in, item by item."""
    filled = fill_in("k", ["${env:X}", "b", {"n": ["${env:X}"], "m": 1}], {"X": "a"})
    assert filled == ["a", "b", {"n": ["a"], "m": 1}]
    assert repr(filled) == "[***, 'b', {'n': [***], 'm': 1}]"


def test_fill_in_does_not_search_what_it_filled_in() -> None:
    """A password may look like a placeholder, a backslash in it is a backslash."""
    assert fill_in("k", "${env:X}", {"X": r"${env:Y}\1\g<0>"}) == r"${env:Y}\1\g<0>"


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


def test_file_that_cannot_be_a_secret(tmp_path: Path) -> None:
    """Each is refused by one sentence that names the file and shows nothing of it."""
    path = tmp_path / "f"
    placeholder = f"${{file:{path}}}"
    assert refusal_of(placeholder) == f"k: file '{path}' cannot be read: No such file or directory"
    path.write_bytes(b"x" * 65_537)
    assert refusal_of(placeholder) == f"k: file '{path}' is over 65,536 bytes, no secret is so long"
    path.write_bytes(b"hunter2\xff")
    assert refusal_of(placeholder) == f"k: file '{path}' is not UTF-8"
    assert refusal_of(f"${{file:{tmp_path}}}") == f"k: file '{tmp_path}' cannot be read: Is a directory"
    assert refusal_of("${file:/a\0b}") == r"k: file '/a\x00b' cannot be read: embedded null byte"


def test_file_that_never_ends_is_refused() -> None:
    """No more is read than a secret may have."""
    assert refusal_of("${file:/dev/zero}") == "k: file '/dev/zero' is over 65,536 bytes, no secret is so long"


@pytest.fixture
def unreadable(tmp_path: Path) -> Iterator[Path]:
    """A file that this process may not read. Root may read every file, so it is another user meanwhile."""
    path = tmp_path / "f"
    path.touch(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(_NOBODY)
    yield path
    os.seteuid(user)


def test_file_without_permission(unreadable: Path) -> None:
    """The reason is the system's."""
    assert refusal_of(f"${{file:{unreadable}}}") == f"k: file '{unreadable}' cannot be read: Permission denied"


def test_undecodable_file_leaves_nothing_in_the_traceback(tmp_path: Path) -> None:
    """Python's own error holds the content; it is not kept as the cause."""
    path = tmp_path / "f"
    path.write_bytes(b"hunter2\xff")
    with pytest.raises(ConfigurationError) as caught:
        fill_in("k", f"${{file:{path}}}", {})
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_missing_variable() -> None:
    """The name of the variable is said."""
    assert refusal_of("a${env:NO_SUCH}") == "k: the environment variable NO_SUCH is not set"


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
    ],
)
def test_coerce_reads_strings_as_kafka_does(text: str, kind: Kind, value: object) -> None:
    """A text becomes a value of its key's type; a secret stays one."""
    coerced = Key("k", kind, "").coerce(Secret(text))
    assert coerced == value
    if isinstance(coerced, str | list):
        assert repr(coerced) in ("***", "[***]", "[***, ***, ***]")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "int"),
        ("1.5", "int"),
        ("1_0", "int"),
        ("٣", "int"),
        ("9" * 19, "int"),
        ("yes", "boolean"),
        ("nan", "float"),
        ("1e999", "float"),
    ],
)
def test_coerce_leaves_what_does_not_parse(text: str, kind: Kind) -> None:
    """The key's own check then refuses it, without showing it."""
    secret = Secret(text)
    assert Key("k", kind, "").coerce(secret) is secret


def test_hidden_wraps_strings_at_any_depth() -> None:
    """Every string is a secret afterwards; nothing else changes."""
    value = {"a": ["x", 1, {"b": "y"}], "c": True}
    assert hidden(value) == value
    assert repr(hidden(value)) == "{'a': [***, 1, {'b': ***}], 'c': True}"


def test_placeholder_of_another_kind_is_refused() -> None:
    """A provider that Kafka knows and this project does not is an error, not a password that reads `${vault:…}`."""
    with pytest.raises(ConfigurationError) as caught:
        fill_in("s3.secret.key", "${vault:kafka/secret}", {})
    assert str(caught.value) == "s3.secret.key: found ${vault:…}, allowed are ${env:NAME} and ${file:/path}"


@pytest.mark.parametrize("length", [9, 5_000])
def test_secret_under_the_wrong_key_is_not_shown(length: int) -> None:
    """However long it is, a secret that stands where another value belongs is not in the error."""
    key = Key("k", "string", "", allowed=("a", "b"))
    with pytest.raises(ConfigurationError) as told:
        key.check(Secret("s" * length))
    assert str(told.value) == "k: found ***, allowed is one of: a, b"
