"""A real Kafka broker in a child process: a single KRaft node from the jars of the "kafka" set.

For the demo, the tests and the benchmark; not for production.

    python -m app.local.broker              run a broker until Ctrl-C; prints its bootstrap.servers
    python -m app.local.broker --prepare    create the class archive that makes later starts faster
"""

from __future__ import annotations

import argparse
import atexit
import base64
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from app.local import class_archive, jars, java
from app.local.watchdog import Watched, watched
from transforms.errors import WideloadError

_HOST = "127.0.0.1"
_NODE_ID = 1
_ATTEMPTS = 3
_POLL_SECONDS = 0.02
_ANSWER = struct.Struct(">iii")  # the Metadata response: length, correlation id, number of brokers
_WATCH_SECONDS = 0.5
_STOP_SECONDS = 30
_LOG_LINES = 20

# A bound socket that does not listen reserves a port: it is not assigned as a free one, but can still be requested by
# number. On other systems than Linux, it would block the broker as well.
_CAN_HOLD = sys.platform.startswith("linux")
_held = contextlib.ExitStack()
atexit.register(_held.close)

# For one node and one developer: no replication, no wait for more group members, session time-outs from one second on,
# and no retention.
_PROPERTIES: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    # After `kill`, the node must wait until its former self counts as gone: by default nine seconds.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.retention.ms": "-1",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    # Readers behind an open transaction wait for its timeout, but not ten seconds longer.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
}

# With the C1 compiler only, the broker starts sooner and leaves more CPU to other processes, but has less throughput.
# Without it, Java is set up as by Kafka's own kafka-run-class.sh. Its kafka-server-start.sh takes the whole heap at
# once, too: a heap that grows is small, and is collected several times as often.
_THROUGHPUT = (
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)

# A formatted storage is these two files. The first says which features the cluster has, and nothing of the node
# (KIP-1170); it depends on the release of Kafka, and on properties of these names.
_CHECKPOINT = Path("__cluster_metadata-0", "00000000000000000000-0000000000.checkpoint")
_META = "meta.properties"
_FORMAT_PROPERTIES = ("log.dir", "metadata.log.dir", "unstable.")

_LOG4J = """status=warn
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %m (%c{1})%n%throwable
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
"""


class BrokerError(WideloadError):
    """The embedded broker failed to start or stop; the message has the last lines of its log."""


class EmbeddedBroker:
    """A single KRaft node, as a context manager or by `start` and `close`.

    It keeps its data in a temporary directory, listens on free ports of 127.0.0.1, and ends when this process ends,
    even by `kill -9`. Ports and data stay the same from the first `start` to `close`, also after `stop` or `kill`. All
    methods block; do not call them from two threads simultaneously.

    Args:
        properties: broker properties to add or replace.
        protocols: security protocols of further listeners ("SASL_PLAINTEXT"), which need settings in `properties`.
        port: the port of the bootstrap listener; by default a free port.
        ports: the ports of all listeners, by protocol, and of "CONTROLLER"; by default free ports. For a node of a
            cluster, with `node.id` and `controller.quorum.voters` in `properties`.
        cluster_id: the id of the cluster.
        format_arguments: further arguments of `kafka.tools.StorageTool format`, such as `--add-scram`.
        environ: environment variables of the broker, added to those of this process.
        heap: the maximum of Java's heap, in the form of `-Xmx`.
        fast_start: answers sooner; False turns the full compiler on and takes the whole heap, for measurements.
        java_options: further options of the broker's Java.
        start_seconds: how long `start` waits for an answer of the broker.

    Attributes:
        log_path: the log of the broker; exists between `start` and `close`.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        protocols: Sequence[str] = (),
        port: int | None = None,
        ports: Mapping[str, int] | None = None,
        cluster_id: str | None = None,
        format_arguments: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        heap: str = "512m",
        fast_start: bool = True,
        java_options: Sequence[str] = (),
        start_seconds: float = 60.0,
    ) -> None:
        self._properties = dict(properties or {})
        self._protocols = ("PLAINTEXT", *protocols)
        self._fixed_port = port
        self._given_ports = ports
        self._cluster_id = cluster_id
        self._format_arguments = tuple(format_arguments)
        self._environ = {**os.environ, **(environ or {})}
        self._flags = (f"-Xmx{heap}", *(java.SHORT_RUN if fast_start else (f"-Xms{heap}", *_THROUGHPUT)))
        self._start_seconds = start_seconds
        self._folder: Path | None = None
        self._ports: dict[str, int] = {}
        self._process: Watched | None = None
        self._holder = contextlib.ExitStack()
        self._java_options = tuple(java_options)
        self._java: tuple[str | Path, ...] = ()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the PLAINTEXT listener.

        Raises:
            BrokerError: the broker was not started yet.
        """
        return self.address("PLAINTEXT")

    @property
    def log_path(self) -> Path:
        """See the class."""
        return self._started_folder() / "broker.log"

    @property
    def pid(self) -> int | None:
        """The process id of the broker's JVM; None if it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def address(self, protocol: str) -> str:
        """`host:port` of the listener of a security protocol.

        Raises:
            BrokerError: the broker was not started yet.
        """
        self._started_folder()
        return f"{_HOST}:{self._ports[protocol]}"

    def start(self) -> None:
        """Starts the broker and returns when it answers; does nothing if it runs already.

        Raises:
            BrokerError: the broker did not answer in time or ended, or the port is in use.
            JarsError: the jars cannot be fetched.
            JavaMissingError: there is no Java.
        """
        if self.pid is not None:
            return
        if self._folder is not None:
            if self._process is not None:
                self._process.wait()  # it has ended by itself
            self._run()
            return
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._prepare()
                self._run()
            except BaseException as exc:
                # Another process may take a free port before the broker binds it.
                taken = isinstance(exc, BrokerError) and "Address already in use" in str(exc)
                self.close()
                if taken and self._fixed_port is not None:
                    raise self._port_in_use() from exc
                if not taken or attempt == _ATTEMPTS:
                    raise
            else:
                return

    def stop(self) -> None:
        """Shuts the broker down properly, as an operator does; the data stays.

        Raises:
            BrokerError: the broker did not end in time, and was killed.
        """
        if self._process is None:
            return
        self._process.signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"the broker did not stop within {_STOP_SECONDS} s and was killed") from None
        self._process = None

    def move(self, port: int) -> None:
        """Changes the port of the bootstrap listener from the next start on. The broker must not run.

        Raises:
            BrokerError: the broker was not started yet.
        """
        file = self._started_folder() / "server.properties"
        before, self._ports["PLAINTEXT"] = self.bootstrap_servers, port
        file.write_text(file.read_text().replace(before, self.bootstrap_servers))

    def kill(self) -> None:
        """Kills the broker; the data stays as it is on disk."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def close(self) -> None:
        """Ends the broker and removes its directory; may be called twice."""
        self.kill()
        self._holder.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started_folder(self) -> Path:
        if self._folder is None:
            raise BrokerError("the embedded broker has not been started")
        return self._folder

    def _port_in_use(self) -> BrokerError:
        return BrokerError(f"port {self._fixed_port} is in use; stop the process that uses it, or choose another port")

    def _prepare(self) -> None:
        """Chooses the ports, creates the directory, writes the properties and formats the storage."""
        kafka_jars = self._jars()
        if self._fixed_port is not None and _listens(self._fixed_port):
            raise self._port_in_use()
        names = ("CONTROLLER", *self._protocols)
        self._ports = dict(self._given_ports or zip(names, _hold_ports(len(names), self._holder), strict=True))
        if self._fixed_port is not None:
            self._ports["PLAINTEXT"] = self._fixed_port
        self._folder = folder = Path(tempfile.mkdtemp(prefix="wideload-broker-"))
        logging = self._logging(folder)
        lines = [f"{key}={_escaped(value)}\n" for key, value in self._all_properties(folder).items()]
        (folder / "server.properties").write_text("".join(lines))
        command = java.locate()
        shared = class_archive.using(class_archive.archive(kafka_jars[0].parent, command))
        self._java = (command, *self._flags, *shared, logging, "-cp", os.pathsep.join(map(str, kafka_jars)))
        self._format(kafka_jars[0].parent / _CHECKPOINT.name)

    # Brokers of other releases (tests/matrix) give other answers to these two, and to the two behind them.

    def _jars(self) -> tuple[Path, ...]:
        """The class path, fetched if needed; files that speed up later starts are kept in the directory of the jars."""
        return jars.ensure("kafka")

    def _logging(self, folder: Path) -> str:
        """Writes the configuration of the log into the directory; the option of Java that names it."""
        (folder / "log4j2.properties").write_text(_LOG4J)
        return f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"

    def _format(self, known: Path) -> None:
        """Formats the storage: by Kafka's tool once for each release, later by what the tool wrote then."""
        folder, cluster_id = self._started_folder(), self._cluster_id or new_cluster_id()
        plain = not self._format_arguments and not any(key.startswith(_FORMAT_PROPERTIES) for key in self._properties)
        if plain and _is_kept(known):
            (folder / "data" / _CHECKPOINT).parent.mkdir(parents=True)
            shutil.copyfile(known, folder / "data" / _CHECKPOINT)
            node_id = self._properties.get("node.id", _NODE_ID)
            lines = ("version=1", f"cluster.id={cluster_id}", f"node.id={node_id}", f"directory.id={new_cluster_id()}")
            (folder / "data" / _META).write_text("\n".join(lines) + "\n")
            return
        # With `=`, as an id may begin with a dash.
        format_storage = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "--config")
        formatted = subprocess.run(
            [*self._java, *format_storage, folder / "server.properties", *self._format_arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if formatted.returncode != 0:
            raise BrokerError(f"the broker's storage was not formatted:\n{_tail(formatted.stdout + formatted.stderr)}")
        if plain:
            _keep(folder / "data" / _CHECKPOINT, known)

    def _all_properties(self, folder: Path) -> dict[str, str]:
        listeners = {name: f"{name}://{_HOST}:{port}" for name, port in self._ports.items()}
        return {
            **_PROPERTIES,
            "process.roles": "broker,controller",
            "node.id": str(_NODE_ID),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"{_NODE_ID}@{_HOST}:{self._ports['CONTROLLER']}",
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": ",".join(listeners[name] for name in self._protocols),
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,"
            + ",".join(f"{name}:{name}" for name in self._protocols),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(folder / "data"),
            **self._properties,
        }

    def _run(self) -> None:
        folder = self._started_folder()
        with self.log_path.open("ab") as log:
            before = log.tell()
            self._process = watched(
                [self._java[0], *self._java_options, *self._java[1:], "kafka.Kafka", folder / "server.properties"],
                output=log,
                environ=self._environ,
                remove=folder,
            )
        deadline = time.monotonic() + self._start_seconds
        while not _knows_a_broker(self._ports["PLAINTEXT"]):
            status = self._process.poll()
            late = time.monotonic() > deadline
            if status is not None or late:
                self.kill()
                what = f"ended with status {status}" if not late else f"did not answer in {self._start_seconds:g} s"
                with self.log_path.open("rb") as log:
                    log.seek(before)
                    raise BrokerError(f"the broker {what}; its log ends:\n{_tail(log.read().decode(errors='replace'))}")
            time.sleep(_POLL_SECONDS)


def prepare() -> None:
    """Starts and stops a broker to create the class archive that makes later starts faster, if it does not exist.

    Raises:
        JarsError: the jars cannot be fetched.
        JavaMissingError: there is no Java.
    """
    kafka_jars = jars.ensure("kafka")
    path = class_archive.archive(kafka_jars[0].parent, java.locate()) if kafka_jars else None
    if path is None or path.exists():
        return
    # The archive is optional: if the broker does not work, later starts report why.
    with (
        contextlib.suppress(BrokerError, OSError),
        class_archive.recorded(path) as options,
        EmbeddedBroker(java_options=options) as broker,
    ):
        broker.stop()


def new_cluster_id() -> str:
    """A new unique cluster id."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 on which no process listens now.

    On Linux nobody else is given them as long as this process runs; a server that sets SO_REUSEADDR, as Java, asyncio
    and most others do, can listen on them.
    """
    return _hold_ports(count, _held)


def _hold_ports(count: int, holder: contextlib.ExitStack) -> list[int]:
    """As `free_ports`, as long as the holder is open."""
    with contextlib.ExitStack() as stack:
        # All sockets stay open until the last port is found, so that no two ports are the same.
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, _CAN_HOLD)
            each.bind((_HOST, 0))
        if _CAN_HOLD:
            holder.push(stack.pop_all())
        return [int(each.getsockname()[1]) for each in sockets]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_HOST, port)) == 0


def _knows_a_broker(port: int) -> bool:
    """Whether the Metadata response names a broker; then it is ready for all requests."""
    # Length, API key 3, version 1, correlation id, client id (null), topics (none).
    body = struct.pack(">hhihi", 3, 1, 0, -1, 0)
    try:
        with socket.create_connection((_HOST, port), timeout=1) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.makefile("rb").read(_ANSWER.size)
    except OSError:
        return False
    return len(answer) == _ANSWER.size and _ANSWER.unpack(answer)[2] > 0


def _keep(file: Path, kept: Path) -> None:
    """Copies a file, whole or not at all."""
    copy = kept.with_name(f".{kept.name}-{uuid.uuid4()}")
    try:
        shutil.copyfile(file, copy)
        with copy.open("rb") as written:
            os.fsync(written.fileno())
        copy.rename(kept)
    except OSError:
        # The disk is full, or the directory is not writable. On a read-only file system unlink fails too.
        with contextlib.suppress(OSError):
            copy.unlink()


def _is_kept(file: Path) -> bool:
    """Whether the file is there, can be read and is not empty."""
    return os.access(file, os.R_OK) and file.stat().st_size > 0


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _tail(log: str) -> str:
    """The last lines, and the first error before them: after an error, the broker logs its whole shutdown."""
    lines = log.splitlines()
    errors = [line for line in lines[:-_LOG_LINES] if " ERROR " in line or " FATAL " in line]
    return "\n".join([*errors[:1], *lines[-_LOG_LINES:]])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a broker until Ctrl-C or SIGTERM; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__package__}.broker", description="A Kafka broker of one node, until Ctrl-C."
    )
    parser.add_argument("--port", type=int, help="port of the bootstrap listener (default: a free port)")
    parser.add_argument("--heap", default="1g", help="maximum heap, in the form of Java's -Xmx (default: %(default)s)")
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE", help="a broker property")
    parser.add_argument("--prepare", action="store_true", help="only make what lets later brokers start faster")
    options = parser.parse_args(arguments)
    properties = dict(item.partition("=")[::2] for item in options.property)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.prepare:
            prepare()
            return 0
        with EmbeddedBroker(properties, port=options.port, heap=options.heap, fast_start=False) as broker:
            print(f"bootstrap.servers={broker.bootstrap_servers}", flush=True)
            print(f"log: {broker.log_path}", file=sys.stderr, flush=True)
            while broker.pid is not None:
                time.sleep(_WATCH_SECONDS)
            raise BrokerError(f"the broker ended; its log ends:\n{_tail(broker.log_path.read_text(errors='replace'))}")
    except KeyboardInterrupt:
        return 0
    except WideloadError as exc:
        print(exc, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
