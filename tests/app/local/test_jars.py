"""The jars, fetched by the real Ivy from a local registry of the tests."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.local import jars
from app.local.jars import JarsError, ensure
from transforms.spark_release import RELEASES, SparkRelease

ROOT = Path(__file__).resolve().parents[3]
SET = "spark"  # the smaller one


@dataclass
class Registry:
    """A registry in the layout of Maven's.

    Attributes:
        folder: what it serves.
        requests: the paths that were asked for.
        settings: a settings file of Ivy that names it.
    """

    folder: Path
    settings: Path
    requests: list[str] = field(default_factory=list)

    def path(self, jar: jars.Jar) -> Path:
        organisation, module, revision = jar.coordinates.split(":")
        return self.folder.joinpath(*organisation.split("."), module, revision, jar.file)

    def fetched(self) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.requests if path.endswith(".jar"))


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry with the jars of the set; the cache folder is a new one."""
    registry = Registry(tmp_path / "registry", tmp_path / "settings.xml")
    for jar, path in zip(jars.read_lock(SET), ensure(SET), strict=True):
        registry.path(jar).parent.mkdir(parents=True)
        shutil.copy(path, registry.path(jar))

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            if self.command == "GET":
                registry.requests.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(registry.folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        registry.settings.write_text(
            '<ivysettings><settings defaultResolver="r"/><resolvers><ibiblio name="r" m2compatible="true" '
            f'usepoms="false" root="http://127.0.0.1:{server.server_port}/"/></resolvers></ivysettings>'
        )
        monkeypatch.setenv("WIDELOAD_CACHE", str(tmp_path / "a cache"))
        monkeypatch.setenv("WIDELOAD_IVY_SETTINGS", str(registry.settings))
        yield registry
        server.shutdown()


def test_ensure_fetches_once(registry: Registry) -> None:
    """The first call fetches the jars and says how far it is; the second makes no request, unless a jar was damaged."""
    said: list[str] = []
    paths = ensure(SET, said.append)
    locked = jars.read_lock(SET)
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths] == [jar.sha256 for jar in locked]
    assert registry.fetched() == sorted(jar.file for jar in locked)
    assert said == [f"jars of {SET}: {number} of {len(locked)}" for number in range(1, len(locked) + 1)]
    assert SET not in jars.missing()
    registry.requests.clear()
    assert ensure(SET, said.append) == paths
    assert registry.requests == []
    whole = paths[0].read_bytes()
    for damaged in (b"", bytes([whole[0] ^ 1]) + whole[1:]):
        paths[0].write_bytes(damaged)
        assert ensure(SET)[0].read_bytes() == whole
        assert len(registry.fetched()) == len(paths)
        registry.requests.clear()


def test_ensure_refuses_what_is_not_in_the_lock(registry: Registry) -> None:
    """A jar with other bytes, or that the registry lacks, is named, and no jar of the set is kept."""
    jar = jars.read_lock(SET)[0]
    data = bytearray(registry.path(jar).read_bytes())
    data[len(data) // 2] ^= 1
    registry.path(jar).write_bytes(data)
    with pytest.raises(JarsError, match=rf"{jar.coordinates} is not what jars\.lock says.*expected.*{jar.sha256}"):
        ensure(SET)
    registry.path(jar).unlink()
    with pytest.raises(JarsError, match=jar.coordinates.split(":")[1]):
        ensure(SET)
    assert SET in jars.missing()
    assert [path.name for path in (jars.cache_folder() / "jars").iterdir()] == [".lock"]


def test_ensure_from_two_processes(registry: Registry) -> None:
    """If several processes need the jars at once, one of them fetches them for all."""
    command = [sys.executable, "-m", "app.local.jars", SET]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert registry.fetched() == sorted(jar.file for jar in jars.read_lock(SET))
    assert SET not in jars.missing()


def test_ensure_without_network_or_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the registry does not answer, or the folder cannot be made, the error says what to do."""
    monkeypatch.setenv("WIDELOAD_CACHE", str(tmp_path))
    monkeypatch.delenv("WIDELOAD_IVY_SETTINGS", raising=False)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    with pytest.raises(JarsError, match=r"^the jars of spark cannot be fetched: .*Check the network and try again"):
        ensure(SET)
    (tmp_path / "file").touch()
    monkeypatch.setenv("WIDELOAD_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(JarsError, match=r"cannot be kept in .*file/cache/jars: Not a directory.*WIDELOAD_CACHE"):
        ensure(SET)


def test_command_says_error_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints only the sentence, and its status is 1."""
    monkeypatch.setenv("WIDELOAD_CACHE", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert jars.main([]) == 1
    said = capsys.readouterr().err
    assert said.startswith("JAVA_HOME is ")
    assert said.count("\n") == 1


def test_lock_names_each_jar_once() -> None:
    """File names in a set are unique, and Spark's set has no library that is part of Spark, of no version."""
    for name in jars.SETS:
        files = [jar.file for jar in jars.read_lock(name)]
        assert len(files) == len(set(files)) > 0
    shipped = jars.shipped_modules()
    assert "scala-library" in shipped
    assert shipped.isdisjoint(jars._module(jar.file) for jar in jars.read_lock("spark"))


@pytest.mark.parametrize("release", RELEASES, ids=lambda each: each.jars)
def test_lock_has_what_spark_is_given(release: SparkRelease) -> None:
    """The set of a release has the packages that its table names, for its Scala."""
    locked = {jar.coordinates for jar in jars.read_lock(release.jars)}
    assert {release.connector, release.avro} <= locked
    assert release.delta is None or release.delta in locked
    assert all(f"_{release.scala}" in each for each in locked if each.startswith("org.apache.spark:"))


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({}, []),
        ({"https_proxy": "http://proxy.example:3128"}, ["-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128"]),
        ({"HTTP_PROXY": "proxy.example"}, ["-Dhttp.proxyHost=proxy.example", "-Dhttp.proxyPort=80"]),
        ({"no_proxy": "localhost, .example,"}, ["-Dhttp.nonProxyHosts=localhost|*.example"]),
    ],
)
def test_proxy_is_handed_to_java(environ: dict[str, str], options: list[str]) -> None:
    """The usual proxy variables work for Java as well."""
    assert jars._java_network_options(environ)[2:] == options
