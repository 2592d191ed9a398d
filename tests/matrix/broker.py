"""A broker of another release of Kafka, as the embedded one, from the jars of that release.

    python -m tests.matrix.broker 2.8 [--port N]   run one until Ctrl-C; prints its bootstrap.servers
    python -m tests.matrix.broker lock             resolve the jars again and write jars.lock

`jars.lock`, in the same folder as this file, has a set for each release, with SHA-256. A set is fetched when it is
needed for the first time, into the cache folder of the other jars.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.local import jars
from app.local.broker import BrokerError, EmbeddedBroker
from app.local.watchdog import Watched, watched
from transforms.errors import WideloadError

RELEASES: Mapping[str, str] = {
    "2.8": "2.8.2",
    "3.0": "3.0.2",
    "3.3": "3.3.2",
    "3.7": "3.7.2",
    "3.9": "3.9.2",
}
"""By the name of the release: its newest version, which is the one that is run. The embedded broker is the newest."""

_LOCK = Path(__file__).with_name("jars.lock")
_NEEDS_ZOOKEEPER = {"2.8", "3.0"}  # from 3.3 on Kafka calls KRaft ready for production
_WATCH_SECONDS = 0.5

# Before 4.0 the log is that of log4j 1, which reload4j goes on with.
_RELOAD4J = "org.slf4j:slf4j-reload4j:1.7.36"
_RELOAD4J_PROPERTIES = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %m (%c)%n
"""

_ZOOKEEPER = """clientPort={port}
clientPortAddress=127.0.0.1
dataDir={folder}
tickTime=500
admin.enableServer=false
"""
_OF_KRAFT = ("controller.listener.names", "controller.quorum.voters", "node.id", "process.roles")


class OtherBroker(EmbeddedBroker):
    """A single node of a release in `RELEASES`; otherwise as `EmbeddedBroker`.

    Releases without KRaft have a ZooKeeper of their own, which lives from the first `start` to `close`. After `kill`,
    such a broker may refuse to start until ZooKeeper has forgotten its former self.
    """

    def __init__(self, release: str, properties: Mapping[str, str] | None = None, *, port: int | None = None) -> None:
        super().__init__(properties, port=port)
        self._release = release
        self._zookeeper: Watched | None = None

    @property
    def has_zookeeper(self) -> bool:
        """Whether the release needs ZooKeeper."""
        return self._release in _NEEDS_ZOOKEEPER

    def close(self) -> None:
        """As that of `EmbeddedBroker`, and ends ZooKeeper."""
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper = None
        super().close()

    def _jars(self) -> tuple[Path, ...]:
        return jars.ensure(_set(self._release), lambda line: print(line, file=sys.stderr), _LOCK)

    def _logging(self, folder: Path) -> str:
        (folder / "log4j.properties").write_text(_RELOAD4J_PROPERTIES)
        return f"-Dlog4j.configuration=file:{folder / 'log4j.properties'}"

    def _all_properties(self, folder: Path) -> dict[str, str]:
        found = super()._all_properties(folder)
        if not self.has_zookeeper:
            return found
        return {key: value for key, value in found.items() if key not in _OF_KRAFT} | {
            "broker.id": "1",
            "listeners": found["advertised.listeners"],
            "zookeeper.connect": self.address("CONTROLLER"),
        }

    def _format(self, known: Path) -> None:
        if not self.has_zookeeper:
            super()._format(known)
            return
        # Such a node formats its storage when it starts. What it needs before is ZooKeeper, for which it waits.
        folder = self._started_folder()
        file = folder / "zookeeper.properties"
        file.write_text(_ZOOKEEPER.format(port=self._ports["CONTROLLER"], folder=folder / "zookeeper"))
        with (folder / "zookeeper.log").open("ab") as log:
            self._zookeeper = watched(
                [*self._java, "org.apache.zookeeper.server.ZooKeeperServerMain", file], output=log
            )


def _set(release: str) -> str:
    return f"kafka-{release}"


def _roots() -> Mapping[str, Sequence[str]]:
    return {
        _set(release): (f"org.apache.kafka:kafka_2.13:{version}", _RELOAD4J) for release, version in RELEASES.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """See the docstring of the module; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.matrix.broker", description="A broker of a release of Kafka, until Ctrl-C."
    )
    parser.add_argument("release", choices=[*RELEASES, "lock"])
    parser.add_argument("--port", type=int, help="port of the bootstrap listener (default: a free port)")
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE", help="a broker property")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.release == "lock":
            jars.write_lock(_roots(), _LOCK, "python -m tests.matrix.broker lock")
            return 0
        properties = dict(item.partition("=")[::2] for item in options.property)
        with OtherBroker(options.release, properties, port=options.port) as broker:
            print(f"bootstrap.servers={broker.bootstrap_servers}", flush=True)
            print(f"log: {broker.log_path}", file=sys.stderr, flush=True)
            while broker.pid is not None:
                time.sleep(_WATCH_SECONDS)
            raise BrokerError(f"the broker ended; see its log: {broker.log_path}")
    except KeyboardInterrupt:
        return 0
    except WideloadError as exc:
        print(exc, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
