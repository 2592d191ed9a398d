"""The jars of the embedded broker and of Spark's Kafka connector, fetched once into a cache directory.

`jars.lock`, in the directory of this file, lists each jar with its size and SHA-256. There is a set for each release
of Spark in `transforms.spark_release`; the set "spark" is that of the installed Spark. Ivy, which is part of PySpark,
fetches missing jars from its default registry; `WIDELOAD_IVY_SETTINGS` names a settings file of Ivy for another
registry.

    python -m app.local.jars [SET…]   fetch missing jars; of kafka and the installed Spark, if no set is named
    python -m app.local.jars lock     resolve the sets again and write jars.lock

`tests/matrix` has separate sets and a lock file for other releases of Kafka.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from app.local import java, spark_home
from transforms.errors import WideloadError
from transforms.spark_release import RELEASES

Say = Callable[[str], None]

# The roots of each set. Kafka logs through slf4j 1.7 and has no binding: without one there is no log.
SETS: Mapping[str, Sequence[str]] = {
    "kafka": ("org.apache.kafka:kafka_2.13:4.4.0", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.5"),
    **{each.jars: tuple(filter(None, (each.connector, each.avro, each.delta))) for each in RELEASES},
}
_NEEDED = ("kafka", "spark")
# What the locked PySpark lacks, and others have: 3.5, and 4.1 and newer.
_SHIPPED_ELSEWHERE = {"commons-logging", "jts-core"}

_LOCK_FILE = Path(__file__).with_name("jars.lock")
_LOCK_HEADER = "# Set, organisation:module:revision, bytes, SHA-256. Written by `{}`.\n"
_SILENCE_SECONDS = 120
_LOG_LINES = 15

# No POMs: the lock has the full list, and POMs take 35 of the 41 s of a resolution. No checksums of the registry: ours
# are stronger. An `ibiblio` resolver without a root is Ivy's default registry.
_IVY_SETTINGS = """<ivysettings>
  <property name="ivy.checksums" value="" override="true"/>
  <settings defaultResolver="default"/>
  <resolvers><ibiblio name="default" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""


class JarsError(WideloadError):
    """The jars could not be fetched; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the lock.

    Attributes:
        set: one of `SETS`.
        coordinates: organisation:module:revision.
        size: bytes.
        sha256: hex digest of the file.
    """

    set: str
    coordinates: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        """The name of the file in the directory of its set."""
        _, module, revision = self.coordinates.split(":")
        return f"{module}-{revision}.jar"

    def line(self) -> str:
        """The line in the lock."""
        return f"{self.set} {self.coordinates} {self.size} {self.sha256}\n"


def cache_folder() -> Path:
    """`WIDELOAD_CACHE`, or `~/.cache/wideload`; the directory may not exist yet."""
    return Path(os.environ.get("WIDELOAD_CACHE") or "~/.cache/wideload").expanduser().absolute()


def read_lock(name: str | None = None, lock: Path = _LOCK_FILE) -> tuple[Jar, ...]:
    """The jars of one set, or of all sets.

    Raises:
        ConfigurationError: the set is "spark", and no set is for the installed Spark.
    """
    wanted = spark_home.release().jars if name == "spark" else name
    fields = (line.split() for line in lock.read_text().splitlines() if line and not line.startswith("#"))
    jars = (Jar(group, coordinates, int(size), sha256) for group, coordinates, size, sha256 in fields)
    return tuple(jar for jar in jars if wanted in (None, jar.set))


def write_lock(sets: Mapping[str, Sequence[str]], lock: Path, written_by: str) -> None:
    """Resolves each set, given by its roots, and writes the lock; `written_by` is the command that does it again.

    Raises:
        JarsError: Ivy does not get them.
        JavaMissingError: Ivy needs Java.
    """
    lines = [jar.line() for name, roots in sets.items() for jar in resolve(name, roots)]
    lock.write_text(_LOCK_HEADER.format(written_by) + "".join(lines))


def missing() -> tuple[str, ...]:
    """What is needed and not complete in the cache, by the sizes of its files; takes a millisecond."""
    return tuple(name for name in _NEEDED if not _complete(_folder(name, jars := read_lock(name)), jars))


def ensure(name: str, say: Say | None = None, lock: Path = _LOCK_FILE) -> tuple[Path, ...]:
    """The jars of a set, fetched if they are not in the cache.

    Makes no request if the set is there with the bytes of the lock. A set with other bytes is fetched again. If several
    processes call this at the same time, one of them fetches the jars.

    Args:
        name: one of `SETS`; or "spark", the set of the installed Spark.
        say: called with a short line of progress for each jar.
        lock: has the jars of the set; by default that of `SETS`.

    Raises:
        JarsError: no network, wrong bytes, no PySpark, or no space for the cache directory.
        JavaMissingError: Ivy needs Java.
        ConfigurationError: the set is "spark", and no set is for the installed Spark.
    """
    jars = read_lock(name, lock)
    folder = _folder(name, jars)
    if not _verified(folder, jars):
        try:
            with _locked(folder.parent, say):
                if not _verified(folder, jars):
                    _fetch(name, jars, folder, say)
        except OSError as exc:
            raise JarsError(
                f"the jars of {name} cannot be kept in {folder.parent}: {exc.strerror or exc}. "
                "Make room, or set WIDELOAD_CACHE to another directory."
            ) from exc
    return tuple(folder / jar.file for jar in jars)


def _folder(name: str, jars: Iterable[Jar]) -> Path:
    # The name depends on the lock, so that two checkouts can share the cache.
    digest = hashlib.sha256("".join(jar.line() for jar in jars).encode()).hexdigest()
    return cache_folder() / "jars" / f"{name}-{digest[:12]}"


def _verified(folder: Path, jars: Sequence[Jar]) -> bool:
    """Whether the set is there, with the bytes of the lock. Takes about a second for each gigabyte."""
    try:
        return _complete(folder, jars) and all(_digest(folder / jar.file) == jar.sha256 for jar in jars)
    except OSError:
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _complete(folder: Path, jars: Iterable[Jar]) -> bool:
    try:
        return all((folder / jar.file).stat().st_size == jar.size for jar in jars)
    except OSError:
        return False


@contextlib.contextmanager
def _locked(folder: Path, say: Say | None) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if say is not None:
                say("waiting for another process that fetches the jars")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(name: str, jars: Sequence[Jar], folder: Path, say: Say | None) -> None:
    for left_over in folder.parent.glob(".fetching-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder.parent) as scratch:
        found = Path(scratch, "jars")
        _ivy(name, [jar.coordinates for jar in jars], Path(scratch), transitive=False, say=say)
        for jar in jars:
            _verify(found / jar.file, jar)
        shutil.rmtree(folder, ignore_errors=True)
        found.rename(folder)


def _verify(path: Path, jar: Jar) -> None:
    if not path.is_file():
        raise JarsError(f"{jar.coordinates} was not found in the registry that Ivy uses.")
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != jar.sha256:
        raise JarsError(
            f"{jar.coordinates} is not what jars.lock says: {len(data):,} bytes with SHA-256 {digest}, expected "
            f"{jar.size:,} bytes with {jar.sha256}. It was not used. If you use a proxy or a mirror, check that first."
        )


def _ivy(name: str, coordinates: Iterable[str], scratch: Path, *, transitive: bool, say: Say | None) -> None:
    """Retrieves into `scratch/jars`; with `transitive`, into directories organisation/module/revision below it."""
    wanted = [item.split(":") for item in coordinates]
    dependencies = "".join(
        f"<dependency org={quoteattr(organisation)} name={quoteattr(module)} rev={quoteattr(revision)}"
        f' conf="default" transitive="{str(transitive).lower()}"/>'
        for organisation, module, revision in wanted
    )
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0"><info organisation="wideload" module="jars"/>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    layout = "[organisation]/[module]/[revision]/[artifact].[ext]" if transitive else "[artifact]-[revision].[ext]"
    command: list[str | Path] = [java.locate(), *java.SHORT_RUN, *_java_network_options(os.environ), "-jar", _ivy_jar()]
    settings = os.environ.get("WIDELOAD_IVY_SETTINGS")
    if settings:
        command += ["-settings", settings]
    elif not transitive:
        (scratch / "settings.xml").write_text(_IVY_SETTINGS)
        command += ["-settings", scratch / "settings.xml"]
    command += ["-ivy", scratch / "ivy.xml", "-confs", "default", "-cache", scratch / "cache"]
    command += ["-types", "jar", "bundle", "-retrieve", f"{scratch}/jars/{layout}"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    lines = _watched(process, name, len(wanted), say)
    if process.returncode != 0:
        raise JarsError(_failure(name, lines))


def _watched(process: subprocess.Popen[str], name: str, total: int, say: Say | None) -> list[str]:
    """Reads the output to its end, and kills the process if it prints nothing for too long."""
    lines: list[str] = []
    fetched = 0
    assert process.stdout is not None
    with process:
        try:
            while True:
                silence = threading.Timer(_SILENCE_SECONDS, process.kill)
                silence.start()
                line = process.stdout.readline()
                silence.cancel()
                if not line:
                    return lines
                lines.append(line.rstrip())
                if "[SUCCESSFUL ]" in line and say is not None:
                    fetched += 1
                    say(f"jars of {name}: {fetched} of {total}")
        except BaseException:
            silence.cancel()
            process.kill()
            raise


def _failure(name: str, lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    if "No space left on device" in text:
        return f"no room is left in {cache_folder()} for the jars of {name}; make room or set WIDELOAD_CACHE."
    signs = r"Host \S+ not found|UnknownHost\w+|refused|timed out|unreachable|Unable to tunnel|SSL\w+|PKIX[^:]*"
    sign = re.search(signs, text)
    if sign or not text:
        return (
            f"the jars of {name} cannot be fetched: {sign[0] if sign else 'no answer'}. Check the network and try "
            "again; behind a proxy set https_proxy, for another registry name a settings file of Ivy in "
            "WIDELOAD_IVY_SETTINGS."
        )
    return f"the jars of {name} cannot be fetched; Ivy says:\n" + "\n".join(lines[-_LOG_LINES:])


def _ivy_jar() -> Path:
    home = spark_home.find()
    for jar in home.glob("jars/ivy-*.jar") if home else ():
        return jar
    raise JarsError("PySpark is not installed, which includes Ivy; run `make setup`, or pip install 'wideload[spark]'.")


def _java_network_options(environ: Mapping[str, str]) -> list[str]:
    """The proxies that curl and pip read from the environment, which Java does not read; and time-outs."""
    options = ["-Dsun.net.client.defaultConnectTimeout=15000", "-Dsun.net.client.defaultReadTimeout=60000"]
    for scheme in ("http", "https"):
        value = environ.get(f"{scheme}_proxy") or environ.get(f"{scheme}_proxy".upper())
        if value:
            proxy = urllib.parse.urlsplit(value if "//" in value else f"//{value}")
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    direct = environ.get("no_proxy") or environ.get("NO_PROXY")
    if direct:
        hosts = [host.strip() for host in direct.split(",") if host.strip()]
        options.append("-Dhttp.nonProxyHosts=" + "|".join(f"*{host}" if host[0] == "." else host for host in hosts))
    return options


def resolve(name: str, roots: Iterable[str]) -> list[Jar]:
    """A set with all dependencies of its roots; for Spark without the libraries that are part of it, of any version.

    Raises:
        JarsError: Ivy does not get them.
        JavaMissingError: Ivy needs Java.
    """
    shipped = shipped_modules() | _SHIPPED_ELSEWHERE if name.startswith("spark") else set()
    with tempfile.TemporaryDirectory() as scratch:
        _ivy(name, roots, Path(scratch), transitive=True, say=None)
        jars = []
        for path in sorted(Path(scratch, "jars").glob("*/*/*/*.jar")):
            organisation, module, revision = path.parts[-4:-1]
            data = path.read_bytes()
            jars.append(Jar(name, f"{organisation}:{module}:{revision}", len(data), hashlib.sha256(data).hexdigest()))
    return [jar for jar in jars if _module(jar.file) not in shipped]


def shipped_modules() -> set[str]:
    """The libraries that are part of the installed Spark, without their versions and that of Scala.

    Raises:
        JarsError: PySpark is not installed.
    """
    return {_module(path.name) for path in _ivy_jar().parent.glob("*.jar")}


def _module(file: str) -> str:
    return re.sub(r"(_2\.\d+)?-\d.*", "", file)


def main(arguments: Sequence[str]) -> int:
    """See the docstring of the module; returns the exit status."""
    try:
        if list(arguments) == ["lock"]:
            write_lock(SETS, _LOCK_FILE, "make lock")
        else:
            for name in arguments or _NEEDED:
                ensure(name, lambda line: print(line, flush=True))
    except WideloadError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
