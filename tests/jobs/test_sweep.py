"""The sweep as a command: what it prints, its exit status, and what a kill in the middle leaves."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession

from app.cli import main as wideload
from jobs.audit import main as audit
from jobs.driver.session import SessionSettings
from jobs.payloads.orphans import SweepSettings, run
from jobs.reading.topics import Kafka
from jobs.sweep import main
from tests.integration.topics import send
from transforms.formats import WIDELOAD
from transforms.record import Record
from transforms.reference import Reference

REPOSITORY = Path(__file__).resolve().parents[2]
DAY = 86_400


def put(root: Path, topic: str, names: Sequence[str]) -> list[str]:
    """Files as the store has them, a day old; their paths."""
    (root / topic).mkdir(parents=True, exist_ok=True)
    then, first = time.time() - DAY, root / topic / digest(names[0])
    first.write_bytes(b"payload")
    os.utime(first, (then, then))
    for name in names[1:]:
        os.link(first, root / topic / digest(name))
    return [f"file://{root}/{topic}/{digest(name)}" for name in names]


def digest(name: str) -> str:
    """What a payload is called; a name that is as long as one stays."""
    return name if len(name) == 64 else hashlib.sha256(name.encode()).hexdigest()


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def digests(*names: str) -> list[str]:
    return sorted(map(digest, names))


def refer(broker: str, topic: str, paths: Sequence[str]) -> None:
    """A record for each path."""
    records = [WIDELOAD.write_reference(Record(b"k", b"?"), Reference(path)) for path in paths]
    send(broker, topic, [(0, r.key, r.value, list(r.headers), 1) for r in records])


def options(broker: str, root: Path, topic: str, *more: str) -> list[str]:
    return [
        *("--bootstrap-servers", broker, "--topic", topic, "--store", f"filesystem.root={root}"),
        *("--store", "large.message.payload.store.class=filesystem", *more),
    ]


def environment(spark: SparkSession) -> dict[str, str]:
    return {**os.environ, "WIDELOAD_SPARK_JARS": str(spark.conf.get("spark.jars"))}


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


@pytest.fixture
def in_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on the tests' own session, which is there already."""

    @contextlib.contextmanager
    def opened(_settings: SessionSettings) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("jobs.sweep.open_session", opened)
    monkeypatch.setattr("jobs.audit.open_session", opened)


@pytest.mark.usefixtures("in_session")
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
    assert captured.err.endswith(f"sweep: refused: {summary['error']}\n")
    assert "2 of the 3 payloads" in summary["error"]
    assert files(tmp_path / topic) == digests("live", "orphan", "orphan-2")


@pytest.mark.matrix
@pytest.mark.usefixtures("in_session")
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
            wideload(["job", "sweep", "-c", str(config), *given])
        assert (ended.value.code, words in capsys.readouterr().err) == (2, True)
    assert main(["-c", str(config), "--delete"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (list(summary["topics"]), summary["references"]) == ([topic, dead], 3)
    assert summary["outcomes"] == {"deleted": {"payloads": 1, "bytes": 7}}
    assert files(store / topic) == [f"{number:064x}" for number in range(3)]
    assert audit(["-c", str(config)]) == 0
    assert json.loads(capsys.readouterr().out)["topics"] == {name: {"ok": 1} for name in (topic, dead, copies)}


@pytest.mark.usefixtures("in_session")
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


@pytest.mark.usefixtures("in_session")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_main_signal(
    broker: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    """A signal ends the job with one sentence and a status of its own, and not with a traceback."""

    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr("jobs.sweep.run", interrupted)
    former = signal.getsignal(signal.SIGTERM)
    # Spark has a handler for SIGINT of its own, which would cancel the jobs of the tests' session.
    monkeypatch.setattr("jobs.sweep.fit_shuffles", lambda _: signal.signal(signal.SIGINT, signal.default_int_handler))
    before = signal.getsignal(signal.SIGINT)
    try:
        assert main(options(broker, tmp_path, make_topic())) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == ("sweep: interrupted; only orphans were removed, if any; run it again\n")
    assert signal.getsignal(signal.SIGTERM) is former


@pytest.mark.usefixtures("in_session")
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


@pytest.mark.slow
def test_process_killed_while_it_deletes(
    spark: SparkSession, broker: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Killed in the middle of deleting, and run again: what is live is whole, and what is not is gone."""
    topic = make_topic()
    live = put(tmp_path, topic, [f"live-{number}" for number in range(100)])
    orphans = 1_000
    put(tmp_path, topic, [f"orphan-{number}" for number in range(orphans)])
    refer(broker, topic, live)
    arguments = options(broker, tmp_path, topic, "--max-delete-fraction", "1", "--delete")
    conf = {
        "spark.python.daemon.module": "tests.jobs.stalling_daemon",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    given = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs.sweep", *arguments, *given],
        cwd=REPOSITORY,
        env=environment(spark),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline, pause = time.monotonic() + 300, Event()
        while len(files(tmp_path / topic)) == orphans + len(live):
            assert process.poll() is None
            assert time.monotonic() < deadline
            pause.wait(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    left = len(files(tmp_path / topic))
    assert len(live) < left < orphans + len(live)

    store = {"large.message.payload.store.class": "filesystem", "filesystem.root": str(tmp_path)}
    again = run(spark, SweepSettings(Kafka(broker), store, (topic,), max_delete_fraction=1.0, delete=True))
    assert (again.refusal, again.folders[0].live) == (None, len(live))
    assert set(again.outcomes) <= {"deleted", "gone"}
    assert files(tmp_path / topic) == sorted(path.rpartition("/")[2] for path in live)


@pytest.mark.slow
def test_process_spark_submit(spark: SparkSession, broker: str, make_topic: Callable[..., str], tmp_path: Path) -> None:
    """`spark-submit jobs/sweep.py` runs from any folder, and its Python workers find the code."""
    topic = make_topic()
    (live, _) = put(tmp_path / "store", topic, ["live", "orphan"])
    refer(broker, topic, [live])
    submit = [
        *(str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]"),
        *("--jars", str(spark.conf.get("spark.jars")), "--conf", "spark.log.level=ERROR"),
        str(REPOSITORY / "jobs" / "sweep.py"),
    ]
    done = subprocess.run(
        [*submit, *options(broker, tmp_path / "store", topic, "--delete")],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["outcomes"] == {"deleted": {"payloads": 1, "bytes": 7}}
    assert files(tmp_path / "store" / topic) == [digest("live")]
