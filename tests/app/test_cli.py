"""The command line and its arguments, without a broker."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli import cli, main
from app.commands.check import effective
from app.commands.connection import client_of, pipeline_of, wrap_of
from app.commands.consume import start_of
from app.commands.folder import Folder, safe_name
from app.config.keys import CONSUMER_KEYS, PRODUCER_KEYS
from app.config.parsing import parse
from app.config.settings import PIPELINE_KEYS, WORKER_KEYS, Settings
from stores.registry import store_keys
from stores.store import COMMON_KEYS
from transforms.errors import ConfigurationError

COMMANDS = ("worker", "check", "demo", "topics", "produce", "consume", "inspect", "store", "job")

PIPELINE = {
    "topics": ["raw"],
    "output": {"topic": "orders"},
    "transforms": ["offload"],
    "large": {"message": {"payload": {"store": {"class": "memory"}}}},
}


def test_help_lists_commands_in_sections() -> None:
    """`--help` names every command under a heading, with a sentence."""
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    lines = [line.split() for line in result.output.splitlines()]
    listed = [words[0] for words in lines if words and words[0] in COMMANDS and len(words) > 3]
    assert listed == list(COMMANDS)
    assert "Run:" in result.output
    assert "Work with topics:" in result.output
    assert "Work with payloads:" in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_command_has_an_example(command: str) -> None:
    """The help of each command says what it does, with an example that begins with its name."""
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0
    assert f"wideload {command}" in result.output.split("Example", 1)[1]


def test_command_below_another_has_what_every_command_has() -> None:
    """`wideload store lifecycle` has an example, and `--debug` at its own place."""
    result = CliRunner().invoke(cli, ["store", "lifecycle", "--help"])
    assert result.exit_code == 0
    assert "wideload store lifecycle -c" in result.output.split("Example", 1)[1]
    assert "--debug" in result.output


def test_unknown_command_names_the_nearest() -> None:
    """For a mistyped command the error names the nearest one."""
    result = CliRunner().invoke(cli, ["prodcue"])
    assert result.exit_code == 2
    assert "did you mean produce?" in result.output
    result = CliRunner().invoke(cli, ["ingest", "--once"])
    assert result.exit_code == 2
    assert "there is no command 'ingest'; did you mean job ingest?" in result.output


@pytest.mark.parametrize("arguments", [["worker"], ["check"], ["produce", "t"], ["consume"], ["check", "--nix"]])
def test_usage_error_has_status_2(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing or unknown arguments are a usage error."""
    monkeypatch.delenv("WIDELOAD_CONFIG", raising=False)
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "Error:" in result.output


# --- how to reach the cluster -----------------------------------------------------------------------------------------


def config(folder: Path) -> str:
    """A file with brokers and security settings."""
    path = folder / "w.toml"
    path.write_text(
        'bootstrap.servers = "file:1"\nclient.id = "mine"\nsecurity.protocol = "SASL_PLAINTEXT"\n'
        'sasl.username = "u"\nsasl.password = "p"\n[pipeline.p]\ntopics = ["raw"]\noutput.topic = "orders"\n'
        'transforms = ["offload"]\nlarge.message.payload.store.class = "memory"\n'
    )
    return str(path)


def test_connection_nearer_option_wins(tmp_path: Path) -> None:
    """`-b` takes precedence over `-X`, then the file, then the environment."""
    file, environ = config(tmp_path), {"KAFKA_BOOTSTRAP_SERVERS": "env:1"}
    extra = ["bootstrap.servers=extra:1"]
    assert client_of("option:1", file, extra, environ).bootstrap_servers == "option:1"
    assert client_of(None, file, extra, environ).bootstrap_servers == "extra:1"
    assert client_of(None, file, [], environ).bootstrap_servers == "file:1"
    assert client_of(None, None, [], environ).bootstrap_servers == "env:1"


def test_connection_takes_security_from_file_and_option(tmp_path: Path) -> None:
    """The file gives the settings that no option gives."""
    client = client_of(None, config(tmp_path), ["sasl.mechanism=SCRAM-SHA-512"], {})
    assert client.client_id == "mine"
    assert client.security["sasl.username"] == "u"
    assert client.security["sasl.mechanism"] == "SCRAM-SHA-512"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            ["security.protocl=SSL"],
            "security.protocl: unknown property; did you mean security.protocol?",
        ),
        (["hunter2"], "-X: must be KEY=VALUE, but one value has no '='"),
        (["security.protocol=TLS"], "security.protocol: found 'TLS', allowed is one of"),
        (["security.protocol=SASL_SSL"], "sasl.username: is missing"),
        (["sasl.password=${env:NIX}"], "sasl.password: the environment variable NIX is not set"),
    ],
)
def test_connection_option_wrong(extra: list[str], message: str) -> None:
    """The error for a wrong `-X` names the key, and never repeats a possible secret."""
    with pytest.raises(ConfigurationError) as caught:
        client_of("b:1", None, extra, {})
    assert str(caught.value).startswith(message)
    assert "hunter2" not in str(caught.value)


def test_connection_missing() -> None:
    """Without brokers, the message lists the ways to give them."""
    with pytest.raises(ConfigurationError, match=r"--bootstrap-servers: is missing; .* -c, or set \$KAFKA_BOOTSTRAP"):
        client_of(None, None, [], {})


def test_pipeline_must_be_chosen_where_stores_differ() -> None:
    """With one store no choice is needed; with two it is, and a wrong name lists the right ones."""
    one = parse({"bootstrap.servers": "b:1", "pipeline": {"a": PIPELINE}}, {})
    assert pipeline_of(one, None).name == "a"
    other = {**PIPELINE, "output": {"topic": "else"}, "memory": {"name": "second"}}
    two = parse({"bootstrap.servers": "b:1", "pipeline": {"a": PIPELINE, "b": other}}, {})
    assert pipeline_of(two, "b").name == "b"
    with pytest.raises(
        ConfigurationError,
        match="--pipeline: is missing, but the stores, or their properties, differ; name one of: a, b",
    ):
        pipeline_of(two, None)
    with pytest.raises(ConfigurationError, match="--pipeline: found 'c', the configuration has: a, b"):
        pipeline_of(two, "c")


@pytest.mark.parametrize("find", [pipeline_of, wrap_of])
def test_unknown_pipeline_names_the_nearest(find: Callable[[Settings, str], object]) -> None:
    """For a mistyped pipeline the error names the nearest one, after all that there are."""
    settings = parse({"bootstrap.servers": "b:1", "pipeline": {"orders-offload": PIPELINE}}, {})
    with pytest.raises(ConfigurationError) as caught:
        find(settings, "orders-ofload")
    assert str(caught.value) == (
        "--pipeline: found 'orders-ofload', the configuration has: orders-offload; did you mean orders-offload?"
    )


def test_pipeline_must_be_chosen_where_formats_differ() -> None:
    """A command that took one of two formats would find no references in a topic that has those of the other."""
    first = {
        **PIPELINE,
        "transforms": ["inflate"],
        "large": {"message": {"payload": {"store": {"class": "s3"}}}},
        "s3": {"bucket": "payloads"},
    }
    second = {**first, "output": {"topic": "else"}, "reference": {"format": "bakdata-flag"}}
    two = parse({"bootstrap.servers": "b:1", "pipeline": {"a": first, "b": second}}, {})
    assert pipeline_of(two, "b").name == "b"
    with pytest.raises(ConfigurationError, match=r"--pipeline: is missing, but reference\.format differs; .*: a, b"):
        pipeline_of(two, None)


def test_effective_configuration_hides_secrets() -> None:
    """Secret keys, values from `${…}` and strings of a user's own store are `***`; all else is printed in full."""
    own = {name: value for name, value in PIPELINE.items() if name != "large"}
    document = {
        "bootstrap.servers": "b:1",
        "sasl.password": "in-the-file",
        "client.id": "${env:WHO}",
        "pipeline": {
            "a": {
                **own,
                "large.message.payload.store.class": "tests.app.test_cli.Store",
                "mine": {"password": "of-the-store", "count": 7, "url": "${env:URL}"},
            }
        },
    }
    text = effective(parse(document, {"WHO": "from-environment", "URL": "user:pass@host"}))
    for secret in ("in-the-file", "from-environment", "of-the-store", "pass@"):
        assert secret not in text
    assert "mine.count = 7" in text
    assert 'sasl.password = "***"' in text
    assert "large.message.threshold.bytes = 1048576" in text


def test_effective_configuration_has_every_key() -> None:
    """Each key with a value is printed once, with the defaults of the store; keys added later too."""
    text = effective(parse({"bootstrap.servers": "b:1", "pipeline": {"a": PIPELINE}}, {}))
    named = [line.partition(" = ")[0] for line in text.splitlines() if " = " in line]
    stores = store_keys("memory") or ()
    keys = [*WORKER_KEYS, *PIPELINE_KEYS, *COMMON_KEYS, *stores, *CONSUMER_KEYS, *PRODUCER_KEYS]
    assert len(named) == len(set(named))
    assert {key.name for key in keys if key.default is not None} <= set(named) <= {key.name for key in keys}


def test_effective_configuration_of_chunks_is_taken_again() -> None:
    """The printed configuration of a pipeline without a store can be read again, and has no key of a store."""
    table = {"topics": ["a"], "output.topic": "b", "transforms": ["assemble", "chunk"], "chunk.max.bytes": 9_000}
    settings = parse({"bootstrap.servers": "b:1", "pipeline": {"p": table}}, {})
    text = effective(settings)
    assert parse(tomllib.loads(text), {}) == settings
    assert "chunk.max.bytes = 9000" in text
    assert "large.message.payload" not in text


def test_effective_configuration_with_a_key_below_another_is_taken_again() -> None:
    """A key whose name begins with the whole name of another one is printed as TOML that can be read."""
    table = {
        "topics": ["a"],
        "output.topic": "b",
        "transforms": ["inflate"],
        "large.message.payload.store.class": "memory",
        "large.message.root": "topic",
        "large.message.root.topics": ["c"],
    }
    settings = parse({"bootstrap.servers": "b:1", "pipeline": {"p": table}}, {})
    (pipeline,) = parse(tomllib.loads(effective(settings)), {}).pipelines
    assert pipeline.reference_scope == settings.pipelines[0].reference_scope


class Store:
    """A user's own store, for the test above."""

    def publish(self, topic: str, data: bytes) -> str:
        """Never called."""
        raise NotImplementedError

    def download(self, full_path: str) -> bytes:
        """Never called."""
        raise NotImplementedError


# --- what consume and inspect show and write --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "from_beginning", "start"),
    [
        (None, False, "latest"),
        (None, True, "earliest"),
        ("earliest", False, "earliest"),
        ("7", False, 7),
        ("-3", False, -3),
    ],
)
def test_start(*, offset: str | None, from_beginning: bool, start: object) -> None:
    """`--from-beginning` and `--offset` as in Kafka's own tools and kcat."""
    assert start_of(offset, from_beginning=from_beginning) == start


@pytest.mark.parametrize(("offset", "from_beginning"), [("3", True), ("soon", False)])
def test_start_wrong(*, offset: str, from_beginning: bool) -> None:
    """Both options at once, or an invalid offset, are refused."""
    with pytest.raises(ConfigurationError, match="--offset"):
        start_of(offset, from_beginning=from_beginning)


@pytest.mark.parametrize("key", [b"a", b"photo.jpg", b"order 17 (copy).json", b"A" * 200, b"_x", b"a..b"])
def test_safe_name_keeps(key: bytes) -> None:
    """A key that is a plain file name on all systems is used unchanged."""
    assert safe_name(key) == key.decode()


@pytest.mark.parametrize(
    "key",
    [
        None, b"", b".", b"..", b"../x", b"/etc/passwd", b"a/b", b"a\\b", b"a\0b", b"a\n", b"-rf", b".bashrc", b"a.",
        b"a ", b"\xff", "ü".encode(), b"C:x", b"NUL", b"con.txt", b"A" * 201, b"x" * 1_000_000,
    ],
)  # fmt: skip
def test_safe_name_refuses(key: bytes | None) -> None:
    """A key that could lead outside the folder, hide a file, or have a special meaning on any system is not used."""
    assert safe_name(key) is None


def test_folder_never_overwrites(tmp_path: Path) -> None:
    """A key or a fallback that is in use, even by a link to elsewhere, gets a second file."""
    outside = tmp_path / "outside"
    target = tmp_path / "out"
    folder = Folder(str(target))
    (target / "t-0-1").symlink_to(outside)
    paths = [folder.write(value, b"key", f"t-0-{i}") for i, value in enumerate([b"first", b"second", b"third"])]
    assert [path.name for path in paths] == ["key", "t-0-1.1", "t-0-2"]
    assert [path.read_bytes() for path in paths] == [b"first", b"second", b"third"]
    assert not outside.exists()


def test_folder_leaves_no_part(tmp_path: Path) -> None:
    """A value that cannot be written completely leaves no file."""
    folder = Folder(str(tmp_path))
    with pytest.raises(TypeError):
        folder.write("no bytes", b"key", "t-0-0")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_folder_is_a_file(tmp_path: Path) -> None:
    """A file in the place of the folder is a usage error."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"--output: directory .*file cannot be created"):
        Folder(str(tmp_path / "file"))


def test_error_harms_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in a name are printed escaped, on the one line of the error."""
    with pytest.raises(SystemExit) as ended:
        main(["check", "-c", "no\x1b[31m\x9b2J\nfile"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "wideload: no\\x1b[31m\\x9b2J file: cannot be read: No such file or directory\n"
