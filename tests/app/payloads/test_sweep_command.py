"""The sweep as a command: what it prints, and its exit status."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli import main as wideload
from app.kafka.range_reader import RecordsLostError
from app.payloads import sweep_command
from app.payloads.sweep import DELETING
from app.payloads.sweep_command import main
from tests.app.payloads.swept import digest, digests, files, options, put, refer
from tests.integration.topics import send


def bad_options() -> list[tuple[list[str], str]]:
    store = ["--store", "large.message.payload.store.class=filesystem"]
    root = [*store, "--store", "filesystem.root=/p"]
    return [
        ([], "--store: large.message.payload.store.class=… is missing"),
        (["--store", "secret-without-equals"], "--store: is KEY=VALUE"),
        (["--store-config", "/nowhere/store.properties"], "/nowhere/store.properties cannot be read"),
        (store, "filesystem.root: is missing"),
        ([*root, "--deleted-topic", "t"], "--deleted-topic: t is --topic or --carrier too"),
        ([*root, "--topic-format", "u=bakdata-flag"], "--topic-format: u is neither --topic nor --carrier"),
        ([*root, "--topic-format", "t=avro"], "--topic-format: found 'avro', allowed are wideload"),
        ([*root, "--other-root", "s3://bucket"], "--other-root: found 's3://bucket', allowed is a root as s3://"),
        ([*root, "--other-root", ""], "--other-root: found ''"),
        ([*store, "--store", "filesystem.rot=/p"], "filesystem.rot: is not a key"),
        ([*store, "--store", "filesystem.root=/p", "--store", "filesystem.fsync=2"], "filesystem.fsync: found '2'"),
    ]


@pytest.mark.parametrize(("given", "message"), bad_options())
def test_main_bad_store(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A store that cannot be opened is one sentence and status 2, before Spark is started; no secret is repeated."""
    assert main(["--bootstrap-servers", "127.0.0.1:1", "--topic", "t", *given]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert "secret-without-equals" not in captured.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--grace", "1w"], "'1w' is no duration; allowed are 90s, 90m, 24h, 7d"),
        (["--grace", "36501d"], "'36501d' is longer than a hundred years"),
        (["--grace", "999999999d"], "is longer than a hundred years"),
        (["--max-delete-fraction", "50"], "is from 0 to 1"),
        (["--format", "avro"], "invalid choice: 'avro'"),
    ],
)
def test_main_bad_value(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What an option does not take is said with what it does."""
    with pytest.raises(SystemExit) as ended:
        main(["--bootstrap-servers", "127.0.0.1:1", "--topic", "t", *given])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_main_dry_run_then_refusal(
    broker: str, make_topic: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run tells and deletes nothing; what is refused has a status of its own and one sentence."""
    topic = make_topic()
    (live, _) = put(tmp_path, topic, ["live", "orphan"])
    refer(broker, topic, [live])
    store = tmp_path / "store.properties"
    store.write_text(f"# the store\nlarge.message.payload.store.class=filesystem\nfilesystem.root = {tmp_path}\n")
    given = ["--bootstrap-servers", broker, "--topic", topic, "--store-config", str(store)]
    capsys.readouterr()
    assert main(given) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["status"], summary["references"], summary["outcomes"]) == ("dry-run", 1, {})
    assert summary["topics"][topic] | {"oldest": None} == {
        "payloads": 2,
        "bytes": 14,
        "live": 1,
        "young": 0,
        "foreign": 0,
        "orphans": 1,
        "orphan_bytes": 7,
        "oldest": None,
    }
    put(tmp_path, topic, ["orphan-2"])
    assert main([*given, "--delete"]) == 3
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert (summary["status"], summary["outcomes"]) == ("refused", {})
    assert captured.err.endswith(f"sweep: refused: {summary['refusals'][-1]}\n")
    assert "2 of the 3 payloads" in summary["refusals"][-1]
    assert files(tmp_path / topic) == digests("live", "orphan", "orphan-2")


@pytest.mark.matrix
def test_main_of_a_configuration(
    broker: str, make_topic: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a configuration every topic that its pipelines may carry references to is read; none can be left out."""
    topic, dead, copies = make_topic(), make_topic(), make_topic()
    store = tmp_path / "store"
    paths = put(store, topic, [f"{number:064x}" for number in range(4)])
    refer(broker, topic, paths[:1])
    refer(broker, dead, paths[1:2])
    refer(broker, copies, paths[2:3])
    inflate = f'large.message.payload.store.class = "filesystem"\nfilesystem.root = "{store}"'
    config = tmp_path / "wideload.toml"
    config.write_text(
        f'bootstrap.servers = "{broker}"\n[pipeline.out]\ntopics = ["{topic}"]\noutput.topic = "{copies}"\n'
        f'transforms = ["inflate"]\nerrors.tolerance = "all"\nerrors.deadletterqueue.topic.name = "{dead}"\n{inflate}\n'
    )
    capsys.readouterr()
    for given, words in (
        (
            ["--topic", copies],
            f"--topic: found {copies}, and by the configuration the store has payloads of {topic}, {dead}",
        ),
        (["--store", f"filesystem.root={tmp_path}"], "and the configuration says another one; leave -c out"),
        (["--pipeline", "in"], "--pipeline: found 'in', those with a store are: out"),
    ):
        with pytest.raises(SystemExit) as ended:
            wideload(["sweep", "-c", str(config), *given])
        assert (ended.value.code, words in capsys.readouterr().err) == (2, True)
    assert main(["-c", str(config), "--delete"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (list(summary["topics"]), summary["references"]) == ([topic, dead], 3)
    assert summary["outcomes"] == {"deleted": {"payloads": 1, "bytes": 7}}
    assert files(store / topic) == [f"{number:064x}" for number in range(3)]


def test_main_payloads_that_stay(
    broker: str, make_topic: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the store does not remove a payload the status is 1, and the message says why."""
    topic = make_topic()
    put(tmp_path, topic, ["orphan"])
    command = options(broker, tmp_path, topic, "--max-delete-fraction", "1", "--delete")
    capsys.readouterr()
    subprocess.run(["chattr", "+i", str(tmp_path / topic / digest("orphan"))], check=False, capture_output=True)
    (tmp_path / topic).chmod(0o500)
    try:
        status = main(command)
    finally:
        (tmp_path / topic).chmod(0o700)
        subprocess.run(["chattr", "-i", str(tmp_path / topic / digest("orphan"))], check=False, capture_output=True)
    captured = capsys.readouterr()
    if files(tmp_path / topic) == []:
        pytest.skip("this user may remove what he may not write to")
    assert status == 1
    assert "sweep: 1 payloads were not removed, for instance: cannot delete file://" in captured.err
    assert json.loads(captured.out)["outcomes"] == {"failed": {"payloads": 1, "bytes": 7}}


def test_main_interrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal ends the command with one sentence and a status of its own, and not with a traceback."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep_command, "sweep", interrupted)
    assert main(options("127.0.0.1:1", tmp_path, "t")) == 130
    assert capsys.readouterr().err == "sweep: interrupted; only orphans were removed, if any; run it again\n"


@pytest.mark.parametrize(("step", "status", "words"), [("reading", 3, "refused: it is"), (DELETING, 1, "only")])
def test_main_records_that_go(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    status: int,
    words: str,
) -> None:
    """Records that Kafka deletes while they are read are a refusal, unless payloads were being removed already."""

    def lost(engine: Any, _: object) -> None:
        with engine.step(step):
            raise RecordsLostError("t", 0, 5, 9)

    monkeypatch.setattr(sweep_command, "sweep", lost)
    assert main(options("127.0.0.1:1", tmp_path, "t")) == status
    error = capsys.readouterr().err
    assert error.startswith(f"sweep: {words}")
    assert "topic t partition 0: offset 5 is not there" in error


def test_main_warns_of_what_is_unclear(
    broker: str, make_topic: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record in another topic that does not say where it leads is a warning with its place, and refuses nothing."""
    topic, odd = make_topic(), make_topic()
    (live,) = put(tmp_path, topic, ["live"])
    refer(broker, topic, [live])
    send(broker, odd, [(0, b"k", b"\xff", [("large-message", b"true")], 1)])
    capsys.readouterr()
    assert main(options(broker, tmp_path, topic)) == 0
    captured = capsys.readouterr()
    assert f"sweep: warning: topic {odd}, which is not given, has 1 records" in captured.err
    assert json.loads(captured.out)["unclear"][odd]["offset"] == 0


def test_main_table(
    broker: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a terminal the summary is a table; it says what was left alone, how far others were looked at, what went."""
    topic, other = make_topic(), make_topic()
    (live, _) = put(tmp_path, topic, ["live", "orphan"])
    put(tmp_path, other, ["another"])
    refer(broker, topic, [live])
    capsys.readouterr()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(options(broker, tmp_path, topic)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["topic", "payloads", "size", "live", "young", "to", "delete", "size", "oldest"]
    assert lines[1].split()[:9] == [topic, "2", "14", "B", "1", "0", "1", "7", "B"]
    assert lines[2] == f"left alone, as they are not among --topic: {other}"
    assert re.fullmatch(
        "other topics, searched for references: [1-9][0-9]*, the newest 1,000 offsets of each partition; older records "
        "were not looked at, nor were topics that these credentials may not see",
        lines[3],
    )
    assert lines[4:] == ["nothing was deleted: this was a dry run; --delete deletes"]
