"""The demo: its files, its comparison, and a whole run with a few files."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.commands.demo import Demo
from app.commands.demo_store import NAMES, DemoStore
from app.local.demo_files import LARGEST_BYTES, DemoFile, compare, from_folder, from_jars
from stores.azure import AzureStore
from stores.registry import STORE_NAMES, open_store
from stores.store import Store
from tests.azure_server import azure_server_or_skip
from transforms.errors import ConfigurationError


def demo(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `wideload demo` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "app.cli", "demo", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environ or {})},
    )


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_folder_gives_every_file_a_key_of_its_own(tmp_path: Path) -> None:
    """The key is the path below the folder, so that files of one name in two folders stay apart."""
    for name in ("a/x", "b/x", "empty"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode() if name != "empty" else b"")
    assert [(each.key, each.size) for each in from_folder(tmp_path)] == [(b"a/x", 3), (b"b/x", 3), (b"empty", 0)]


def test_folder_missing_empty_or_none(tmp_path: Path) -> None:
    """A file that cannot be sent gives one sentence with its name."""
    with pytest.raises(ConfigurationError, match=r"INPUT: directory .*nix does not exist"):
        from_folder(tmp_path / "nix")
    with pytest.raises(ConfigurationError, match=r"INPUT: directory .* contains no files"):
        from_folder(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"INPUT: .*file is not a directory"):
        from_folder(tmp_path / "file")


def test_folder_with_a_file_too_large(tmp_path: Path) -> None:
    """A file at the limit is accepted; one byte more is refused with both sizes, before anything starts."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(LARGEST_BYTES)
    assert from_folder(tmp_path)[0].size == LARGEST_BYTES
    os.truncate(path, LARGEST_BYTES + 1)
    with pytest.raises(ConfigurationError, match=r"large has 100\.0 MB; the demo accepts files of up to 100\.0 MB"):
        from_folder(tmp_path)


def test_jars_make_about_a_hundred(tmp_path: Path) -> None:
    """All fetched jars are sent, with jars of PySpark to make about a hundred, from some KB to 16 MB."""
    fetched = [tmp_path / f"fetched-{number}.jar" for number in range(50)]
    for path in fetched:
        path.write_bytes(b"jar")
    files = from_jars(fetched)
    keys = {file.key for file in files}
    assert 90 <= len(files) == len(keys) <= 110
    assert {os.fsencode(path.name) for path in fetched} <= keys
    assert 10_000_000 < max(file.size for file in files) <= 16_000_000


# --- what came out ----------------------------------------------------------------------------------------------------


def parquet(folder: Path, rows: list[tuple[bytes | None, bytes | None]]) -> Path:
    """A folder with one file of several row groups."""
    table = pa.table(
        {"key": pa.array([key for key, _ in rows], pa.binary()), "value": pa.array([v for _, v in rows], pa.binary())}
    )
    pq.write_table(table, folder / "part-0.parquet", row_group_size=2)
    return folder


def digests(**values: bytes) -> dict[bytes, bytes]:
    """SHA-256 by key."""
    return {key.encode(): hashlib.sha256(value).digest() for key, value in values.items()}


def test_compare_identical_even_twice(tmp_path: Path) -> None:
    """All values arrived unchanged; a duplicate is no difference."""
    found = compare(
        digests(a=b"1", b=b"", c=b"3"), parquet(tmp_path, [(b"a", b"1"), (b"b", b""), (b"c", b"3"), (b"a", b"1")])
    )
    assert (found.identical, found.whole) == (3, True)


@pytest.mark.parametrize(
    ("rows", "different", "missing", "strange"),
    [
        ([(b"a", b"1"), (b"b", b"x")], [b"b"], [], []),
        ([(b"a", b"1"), (b"b", None)], [b"b"], [], []),
        ([(b"a", b"1"), (b"a", b"x"), (b"b", b"2")], [b"a"], [], []),
        ([(b"a", b"x"), (b"a", b"1"), (b"b", b"2")], [b"a"], [], []),
        ([(b"a", b"1")], [], [b"b"], []),
        ([], [], [b"a", b"b"], []),
        ([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], [], [], [b"c"]),
        ([(b"a", b"1"), (b"b", b"2"), (None, b"3")], [], [], [b""]),
    ],
)
def test_compare_finds(
    tmp_path: Path,
    rows: list[tuple[bytes | None, bytes | None]],
    different: list[bytes],
    missing: list[bytes],
    strange: list[bytes],
) -> None:
    """A different value (also beside the right one), a null, a missing key and an unknown key are found."""
    found = compare(digests(a=b"1", b=b"2"), parquet(tmp_path, rows))
    assert (found.different, found.missing, found.strange) == (different, missing, strange)
    assert not found.whole
    assert found.identical == 2 - len(different) - len(missing)


# --- the worker -------------------------------------------------------------------------------------------------------


class Pages(BaseHTTPRequestHandler):
    """Answers as a worker that is ready."""

    def do_GET(self) -> None:
        """Whatever the page."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_demo_asks_its_worker_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is on this machine, where a proxy of the environment does not lead."""
    monkeypatch.setattr(urllib.request, "_opener", None)  # what an earlier request has made of the environment
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        run = Demo([DemoFile(Path("file"), b"k", 1)], DemoStore.given("filesystem", []))
        run._port = server.server_port
        try:
            assert run._page("/pipelines") == []
        finally:
            server.shutdown()


# --- all of it --------------------------------------------------------------------------------------------------------


def test_demo_says_what_is_missing(tmp_path: Path) -> None:
    """Without files or Java, the status is 2 with one line, and nothing was started."""
    empty = demo(str(tmp_path))
    assert (empty.returncode, empty.stderr) == (2, f"wideload: INPUT: directory {tmp_path} contains no files\n")
    (tmp_path / "file").write_bytes(b"x")
    no_java = demo(str(tmp_path), environ={"JAVA_HOME": str(tmp_path), "PATH": ""})
    assert no_java.returncode == 2
    assert no_java.stderr.startswith("wideload: demo: JAVA_HOME is ")
    assert no_java.stderr.count("\n") == 1
    assert "Install Java 17" in no_java.stderr


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.integration
def test_demo_whole_way(tmp_path: Path) -> None:
    """Files of any size and name arrive identical; the folder is removed, and no process is left."""
    for name, size in (("empty", 0), ("sub/small ü", 1_000), ("sub/large", 3_000_000)):
        path = tmp_path / "input" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = demo(str(tmp_path / "input"), environ={"TMPDIR": str(scratch)})
    assert done.returncode == 0, done.stderr + done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1] == "3 of 3 payloads identical"
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    table = {cell[0]: cell[1] for cell in cells}
    assert (table["messages"], table["offloaded"], table["payload store"]) == ("3", "1", "3.0 MB")
    assert "\r" not in done.stdout + done.stderr  # no bar where there is no terminal
    assert [path.name for path in scratch.iterdir() if path.name.startswith("wideload-")] == []


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.cloud
def test_demo_in_a_cloud(tmp_path: Path) -> None:
    """Payloads go below a prefix of the run's own, are read from there, and are removed at the end."""
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "large").write_bytes(os.urandom(3_000_000))
    with azure_server_or_skip(tmp_path) as cloud:
        config = {"large.message.payload.store.class": cloud.start, **cloud.config("demo")}
        with closing(open_store(config)) as store:
            assert isinstance(store, Store)
            kept = store.publish("orders", b"of somebody else")
        keys = [f"{name}={value}" for name, value in cloud.config("demo").items()]
        done = demo(str(tmp_path / "input"), "--store", cloud.start, *(each for key in keys for each in ("-s", key)))
        assert done.returncode == 0, done.stderr + done.stdout
        assert "1 of 1 payloads identical" in done.stdout
        assert re.search(r"payload store *│ *3\.0 MB", done.stdout)
        with closing(open_store(config)) as store:
            assert isinstance(store, AzureStore)
            assert [info.path for info in store.list()] == [kept]
            assert [found.key for page in store.pages_below("demo/") for found in page] == [store._key(kept)]


@pytest.mark.parametrize(
    ("name", "pairs", "words"),
    [
        ("filesystem", ["s3.bucket=a"], "--store-key: is for s3, gcs and azure"),
        ("gcs", [], "gcs.bucket: is missing"),
        ("gcs", ["gcs.bucket"], "--store-key: must be KEY=VALUE, but one of them has no '='"),
        ("gcs", ["gcs.bukket=a"], "gcs.bukket: unknown property; did you mean gcs.bucket"),
        ("gcs", ["gcs.bucket=a", "gcs.retry.attempts=x"], "gcs.retry.attempts: found 'x'"),
        (
            "s3",
            ["s3.bucket=a", "foo bar=1"],
            "--store-key: found the property 'foo bar', allowed is one such as s3.prefix",
        ),
        ("s3", ["=x"], "--store-key: found the property ''"),
        ("s3", ["s3.bucket=a\udcff"], "--store-key: found a value of s3.bucket that is not UTF-8"),
        (
            "s3",
            ["s3.bucket=a", "s3=x"],
            "--store-key: found properties that no file can have together: s3.bucket, s3, ",
        ),
        ("s3", ["s3.bucket=a", "bootstrap.servers=x"], "--store-key: found properties that no file can have together"),
    ],
)
def test_demo_store_with_a_wrong_key(name: str, pairs: list[str], words: str) -> None:
    """A key that is missing, unknown or wrong is named before anything starts."""
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        DemoStore.given(name, pairs)


def test_demo_offers_each_store() -> None:
    """Each built-in store can be tried; `memory` cannot, as its payloads are in one process."""
    assert set(NAMES) == set(STORE_NAMES) - {"memory"}


def test_demo_store_has_a_prefix_of_its_own() -> None:
    """No two runs share a prefix, below that of the keys; a variable of the environment stays one in the file."""
    pairs = [
        "s3.bucket=payloads",
        "s3.prefix=mine/",
        "s3.access.key=k",
        "s3.secret.key=${env:HOME}",
        "s3.retry.attempts=2",
    ]
    first, second = (DemoStore.given("s3", pairs) for _ in range(2))
    assert str(first.keys["s3.prefix"]).startswith("mine/wideload-demo-")
    assert first.keys["s3.prefix"] != second.keys["s3.prefix"]
    assert 's3.secret.key = "${env:HOME}"\ns3.retry.attempts = 2\n' in first.lines()
    assert first.opened_keys()["s3.secret.key"] == os.environ["HOME"]


@pytest.mark.parametrize("text", ["\U0001f600", "é", '"', "\\", "\x7f", "\x01"])
def test_demo_store_takes_any_text(text: str) -> None:
    """A value comes out of the file as it was given, whatever its characters."""
    keys = {"s3.bucket": "payloads", "s3.access.key": "k", "s3.secret.key": f"a{text}b"}
    store = DemoStore.given("s3", [f"{name}={value}" for name, value in keys.items()])
    assert {name: store.opened_keys()[name] for name in keys} == keys


def test_demo_says_that_a_key_of_its_store_is_missing() -> None:
    """The command gives one line, and the status 2."""
    done = demo("--store", "gcs")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "gcs.bucket: is missing" in done.stderr


@pytest.mark.slow
@pytest.mark.integration
def test_demo_interrupted_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM during a run ends broker and worker, and removes the folders."""
    source = tmp_path / "input"
    source.mkdir()
    (source / "file").write_bytes(b"x" * 2_000_000)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "app.cli", "demo", str(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("start the worker"):
                break
        started = running(str(scratch))
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(60) == 130, rest
    assert started, "broker and worker ran"
    assert [path.name for path in scratch.iterdir() if path.name.startswith("wideload-")] == []
    deadline = time.monotonic() + 10
    while running(str(scratch)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running(str(scratch)) == []


def running(mark: str) -> list[int]:
    """Processes that have `mark` in their command line."""
    import psutil

    return [
        process.info["pid"]
        for process in psutil.process_iter(["pid", "cmdline"])
        if any(mark in word for word in process.info["cmdline"] or ())
    ]
