"""The sweep as a command: what it prints, and its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.cli import main as wideload
from app.kafka.range_reader import RecordsLostError
from app.payloads import sweep_command
from app.payloads.search import Place, Search
from app.payloads.sweep import DELETING, Folder, Sweep
from app.payloads.sweep_command import main
from tests.app.payloads.swept import digests, files, options, put, refer
from transforms.orphans import Sum

WHEN = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
BROKER = ["--bootstrap-servers", "127.0.0.1:1"]
FILES = ["--store", "large.message.payload.store.class=filesystem"]
ROOT = [*FILES, "--store", "filesystem.root=/p"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "--store: large.message.payload.store.class=… is missing"),
        (["--store", "secret-without-equals"], "--store: must be KEY=VALUE"),
        (["--store-config", "/nowhere/store.properties"], "/nowhere/store.properties cannot be read"),
        (FILES, "filesystem.root: is missing"),
        ([*FILES, "--store", "filesystem.rot=/p"], "filesystem.rot: unknown property"),
        ([*ROOT, "--store", "filesystem.fsync=2"], "filesystem.fsync: found '2'"),
        ([*ROOT, "--deleted-topic", "t"], "--deleted-topic: t is --topic or --carrier too"),
        ([*ROOT, "--ignore-topic", "t"], "--ignore-topic: t is --topic or --carrier too"),
        ([*ROOT, "--quarantine", "u"], "--quarantine: u is neither --topic nor --carrier"),
        ([*ROOT, "--quarantine", "t"], "--quarantine: has each topic that is to be swept"),
        ([*ROOT, "--topic-format", "u=bakdata-flag"], "--topic-format: u is neither --topic nor --carrier"),
        ([*ROOT, "--topic-format", "t=avro"], "--topic-format: found 'avro', allowed are wideload"),
        ([*ROOT, "--other-root", "s3://bucket"], "--other-root: found 's3://bucket', allowed is a root as s3://"),
        ([*ROOT, "--other-root", ""], "--other-root: found ''"),
        (["--grace", "1w"], "'1w' is not a duration; allowed are 90s, 90m, 24h, 7d"),
        (["--grace", "36501d"], "'36501d' is longer than a hundred years"),
        (["--grace", "999999999d"], "is longer than a hundred years"),
        (["--max-delete-fraction", "50"], "is from 0 to 1"),
        (["--format", "avro"], "invalid choice: 'avro'"),
    ],
)
def test_main_bad_option(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong is one sentence and status 2, before a broker is asked; no secret is repeated."""
    try:
        status: object = main([*BROKER, "--topic", "t", *given])
    except SystemExit as ended:
        status = ended.code
    captured = capsys.readouterr()
    assert (status, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert message in captured.err
    assert "secret-without-equals" not in captured.err


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
    assert summary["topics"][topic].pop("oldest")
    counts = {"payloads": 2, "bytes": 14, "live": 1, "young": 0, "foreign": 0, "orphans": 1, "orphan_bytes": 7}
    assert summary["topics"][topic] == counts
    put(tmp_path, topic, ["orphan-2"])
    assert main([*given, "--delete"]) == 3
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert (summary["status"], summary["outcomes"]) == ("refused", {})
    assert captured.err.endswith(f"sweep: refused: {summary['refusals'][-1]}\n")
    assert "2 of the 3 payloads" in summary["refusals"][-1]
    assert files(tmp_path / topic) == digests("live", "orphan", "orphan-2")
    assert main([*given, "--delete", "--max-delete-fraction", "0.7"]) == 0
    assert files(tmp_path / topic) == digests("live")


@pytest.mark.matrix
def test_main_of_a_configuration(
    broker: str, make_topic: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a configuration every topic that its pipelines may carry references to is read; none can be left out."""
    topic, dead, copies = make_topic(), make_topic(), make_topic()
    store = tmp_path / "store"
    paths = put(store, topic, [f"{number:064x}" for number in range(4)])
    for number, name in enumerate((topic, dead, copies)):
        refer(broker, name, paths[number : number + 1])
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
            f"--topic: found {copies}, but according to the configuration the store has payloads of {topic}, {dead}",
        ),
        (["--store", f"filesystem.root={tmp_path}"], "but the configuration has another one; leave -c out"),
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


STAYS = Sweep(WHEN, outcomes={"failed": Sum(1, 7)}, error="cannot delete file:///t/1f")
UNCLEAR = Sweep(WHEN, search=Search(unclear={"odd": Place(1, 4, "is malformed", 2)}))


@pytest.mark.parametrize(
    ("step", "ends", "status", "said"),
    [
        ("s", KeyboardInterrupt(), 130, "sweep: interrupted; only orphans were removed, if any; run it again"),
        ("s", RecordsLostError("t", 0, 5, 9), 3, "sweep: refused: it is not known what is live; run it again: topic t"),
        (
            DELETING,
            RecordsLostError("t", 0, 5, 9),
            1,
            "sweep: only orphans were removed, and the next run continues: to",
        ),
        ("s", STAYS, 1, "sweep: 1 payloads were not removed, for instance: cannot delete file:///t/1f"),
        ("s", UNCLEAR, 0, "sweep: warning: topic odd, which was not specified, has 2 records that are marked as refer"),
    ],
)
def test_main_end(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    ends: BaseException | Sweep,
    status: int,
    said: str,
) -> None:
    """However a sweep ends, it is one sentence and a status; lost records are a refusal until payloads are removed."""

    def ending(engine: Any, _: object) -> Sweep:
        with engine.step(step):
            if isinstance(ends, BaseException):
                raise ends
        return ends

    monkeypatch.setattr(sweep_command, "sweep", ending)
    assert main(options("127.0.0.1:1", tmp_path, "t")) == status
    captured = capsys.readouterr()
    assert captured.err.startswith(said)
    assert captured.err.count("\n") == 1
    if ends is STAYS:
        summary = json.loads(captured.out)
        outcomes = {"failed": {"payloads": 1, "bytes": 7}}
        assert (summary["status"], summary["outcomes"], summary["error"]) == ("failed", outcomes, STAYS.error)
    if ends is UNCLEAR:
        place = {"records": 2, "partition": 1, "offset": 4, "error": "is malformed"}
        assert json.loads(captured.out)["unclear"] == {"odd": place}


def test_main_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal the summary is a table; it says what was left alone, how far others were looked at, what went."""
    folders = [Folder("t", 5, 14, 1, 2, 1, 1, 7, WHEN), Folder("u", 0, 0, 0, 0, 0, 0, 0, None)]
    search = Search(searched=1_200)
    found = Sweep(WHEN, search, 1, folders, ["a", "b"], {"q": 3}, outcomes={"deleted": Sum(1, 7)})
    monkeypatch.setattr(sweep_command, "sweep", lambda *_: found)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(options("127.0.0.1:1", tmp_path, "t")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["topic", "payloads", "size", "live", "young", "to", "delete", "size", "oldest"],
        ["t", "5", "14", "B", "1", "2", "1", "7", "B", "2026-01-02", "03:04"],
        ["u", "0", "0", "B", "0", "0", "0", "0", "B", "-"],
    ]
    assert lines[3:] == [
        (
            "left alone, because their names are not those of payloads: 1 in the directory of t; "
            "--any-name treats them as payloads"
        ),
        "left alone, as they are not among --topic: a, b",
        (
            "other topics, searched for references: 1,200, the newest 1,000 offsets of each partition; older "
            "records were not searched, nor were topics that these credentials may not see"
        ),
        "in quarantine: q, with 3 records that cannot be read",
        "deleted: 1 payloads, 7 B",
        "nothing was deleted: this was a dry run; --delete deletes",
    ]
