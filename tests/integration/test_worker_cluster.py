"""The worker on a cluster of three brokers: leaders that move, failing disks, rights that come and go, TLS and SASL."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from app.cluster.control_topic import check_control_topic
from app.cluster.preflight import check
from app.cluster.startup import _may_pass
from app.config.parsing import parse
from tests.integration.cluster import KEY_PASSWORD, Cluster
from tests.integration.command_line import wideload
from tests.integration.limits import alter
from tests.integration.operations import Operations
from tests.integration.rest import ask
from tests.integration.topics import Counted, Sent, committed, end_offsets, read_all, send
from tests.integration.way import Way, digests, expected, first_occurrences, mixed, ways_on
from tests.integration.worker_process import WorkerProcess, until
from transforms.errors import ConfigurationError, WideloadError

USER, SCRAM_USER, PASSWORD = "wideload", "withdrawn", "of-a-test"
TOKEN = "token-of-who-may-steer-1"
STEERED = {"web.control.enable": True, "web.control.token": TOKEN}
READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS = 3, 4, 8, 10
GROUP, TRANSACTIONAL_ID = 3, 5
PREFIXED = 4
ONCE = {"processing.guarantee": "exactly_once"}


PROPERTIES = {
    "replica.lag.time.max.ms": "3000",  # a replica that is gone soon counts so
    "auto.create.topics.enable": "true",  # Kafka's default
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers, for the tests of this file."""
    try:
        made = Cluster(
            tmp_path_factory.mktemp("cluster"), {USER: PASSWORD, SCRAM_USER: PASSWORD}, properties=PROPERTIES
        ).__enter__()
    except WideloadError as exc:
        pytest.fail(f"no cluster: {exc}", pytrace=False)
    with contextlib.closing(made):
        yield made


@pytest.fixture
def make_way(cluster: Cluster, tmp_path: Path) -> Callable[[], Way]:
    """Makes topics of one test, three partitions each."""
    return ways_on(cluster, tmp_path)


@pytest.fixture
def way(make_way: Callable[[], Way]) -> Way:
    """Topics of one test, three partitions each."""
    return make_way()


@pytest.mark.chaos
def test_worker_leaders_move(cluster: Cluster, way: Way) -> None:
    """A leader that is killed costs no record and no order; the worker says which is away, as long as it needs it."""
    records = mixed(2_000, seed=9, partitions=3)
    with contextlib.ExitStack() as restarted, way.worker() as worker:
        worker.wait_ready()
        send(way.broker, way.raw, records[:1_000])
        until(lambda: way.arrived(1), "records flow")
        leader = cluster.leaders(way.orders)[0]
        node = cluster.nodes[leader - 1]
        node.kill()
        restarted.callback(node.start)  # the next test needs it too, whatever comes of this one
        until(lambda: node.bootstrap_servers in str(worker.get("/health")[1]["reasons"]), "it is told which is away")
        until(lambda: cluster.leaders(way.orders)[0] != leader, "another leads")
        lacks = f"topic {way.orders}, partition 0 (and 2 more) accepts no records: 2 replicas in sync"
        alter(way.broker, way.orders, {"retention.ms": "-1", "min.insync.replicas": "3"})
        until(
            lambda: lacks in worker.get("/health")[1]["reasons"].get("offload", ""), "it reports what the topic lacks"
        )
        (plan,) = asyncio.run(check(parse({**way.settings(), "pipeline": way.offload()}, {})))
        assert str(plan.sink.shortage).startswith(lacks)
        alter(way.broker, way.orders, {"retention.ms": "-1"})
        send(way.broker, way.raw, records[1_000:])
        until(lambda: way.arrived(len(records)), "at least as many have arrived, on two of three", 120)
        until(lambda: worker.get("/health")[1]["status"] == "ok", "nobody needs the one that is away", 90)
        node.start()
        until(
            lambda: first_occurrences(digests(read_all(way.broker, way.inflated))) == expected(records),
            "each record has arrived, in order",
        )
        assert all(page["truncated_records"] == 0 for page in worker.get("/pipelines")[1])
        assert worker.terminate() == 0


def test_deleted_topics_stay_deleted(cluster: Cluster, make_way: Callable[[], Way]) -> None:
    """Brokers may create a topic that a client asks for by name. A pipeline whose topic was deleted never asks so."""
    operations = Operations(cluster.bootstrap_servers)
    way, other = make_way(), make_way()
    keys = {"errors.retry.delay.max.ms": 500}
    pipelines = {"source": way.offload(**keys, **ONCE)["offload"], "sink": other.offload(**keys)["offload"]}
    worker = WorkerProcess(way.folder, way.settings(), pipelines)
    worker.constants = {"app.pipeline.topic_watcher:_LOOK_S": 1.0}
    with worker:
        worker.wait_ready()
        for each in (way, other):
            send(each.broker, each.raw, mixed(3, seed=1, partitions=3))
        until(lambda: all(page["records_out"] == 3 for page in worker.get("/pipelines")[1]), "all have written")
        gone = [way.raw, other.orders]
        for name in gone:
            operations.delete_topic(name)
        send(way.broker, other.raw, mixed(3, seed=2, partitions=3))  # the producer looks for the topic
        until(lambda: all(page["restarts"] > 1 for page in worker.get("/pipelines")[1]), "each has looked again")
        reasons = worker.get("/health")[1]["reasons"]
        for name, reason in zip(gone, reasons.values(), strict=True):
            assert f"topic {name} does not exist" in reason
            assert "did you mean" not in reason
        assert [operations.topic(name) for name in gone] == [None] * len(gone)
        assert worker.terminate() == 0


def test_password_withdrawn(cluster: Cluster, make_way: Callable[[], Way]) -> None:
    """A password that is withdrawn lets pipelines wait and say so, until it is back; no record is lost.

    Brokers ask for it when a connection begins: those that there are go on. A pipeline that has delivered nothing waits
    too.
    """
    operations = Operations(cluster.bootstrap_servers)
    way, idle = make_way(), make_way()
    for each in (way, idle):
        grant(cluster, each, SCRAM_USER)
    head = {**way.settings(), **secured(cluster, "SASL_PLAINTEXT"), **STEERED, "sasl.username": SCRAM_USER}
    head["sasl.mechanism"] = "SCRAM-SHA-256"
    traffic = Traffic({"offload": way})
    soon = {"errors.retry.delay.max.ms": 500}
    pipelines = {**way.offload(**soon), "idle": idle.offload(**soon)["offload"]}
    with WorkerProcess(way.folder, head, pipelines) as worker:
        worker.wait_ready()
        traffic.send()
        until(traffic.committed, "records flow")
        operations.set_password(SCRAM_USER, None)
        traffic.send()
        until(partial(traffic.flows, traffic.ways), "those who are in stay in")
        for name in pipelines:
            steer(worker, name, "POST", "restart")
        traffic.send()
        for name in pipelines:
            until(partial(is_told, worker, name, NOT_ACCEPTED), "it is told what is refused")
            until(partial(is_told, worker, name, "(since "), "it is told since when")
        until(lambda: worker.get("/health")[1]["status"] == "restarting", "the worker restarts them")
        status, health = worker.get("/health")
        assert (status, health["live"]) == (503, True)
        operations.set_password(SCRAM_USER, PASSWORD)
        until(partial(traffic.flows, traffic.ways), "all have come")
        until(lambda: worker.get("/health")[1]["status"] == "ok", "it is well again by itself")
        assert worker.terminate() == 0
        assert PASSWORD not in worker.log.read_text()
    arrived_in_order(way, traffic.sent, once=False)


def secured(cluster: Cluster, protocol: str) -> dict[str, object]:
    """The keys of a worker that logs in."""
    keys: dict[str, object] = {
        "bootstrap.servers": cluster.addresses(protocol),
        "security.protocol": protocol,
    }
    if protocol.startswith("SASL"):
        keys |= {"sasl.mechanism": "PLAIN", "sasl.username": USER, "sasl.password": PASSWORD}
    if protocol.endswith("SSL"):
        keys["ssl.ca.location"] = str(cluster.ca)
    if protocol == "SSL":
        keys |= {
            "ssl.certificate.location": str(cluster.certificate),
            "ssl.key.location": str(cluster.key),
            "ssl.key.password": KEY_PASSWORD,
        }
    return keys


def grant(cluster: Cluster, way: Way, user: str = USER) -> None:
    """What docs/deployment.md says that the user needs."""
    cluster.allow(user, way.raw, READ, DESCRIBE, DESCRIBE_CONFIGS)
    cluster.allow(user, way.orders, WRITE, DESCRIBE, DESCRIBE_CONFIGS)
    cluster.allow(user, way.group("offload"), READ, kind=GROUP)


NOT_THIS_TOPIC = "the user may not use this topic; grant Read on source topics and Write on output topics"
NOT_THIS_ID = (
    "the user may not use this transactional.id; grant Write and Describe on all transactional ids that begin as it "
    "does, up to the colon"
)
# what is taken away, of a topic, a group, or the ids of transactions, and what /health says then
RIGHTS = [
    ("raw", (READ,), NOT_THIS_TOPIC),
    ("orders", (WRITE,), NOT_THIS_TOPIC),
    ("raw", (DESCRIBE, READ), "grant Describe on it"),  # Read and Write imply Describe
    ("group", (READ,), "the user may not use this group; grant Read on it"),
    ("ids", (WRITE,), NOT_THIS_ID),
    ("ids", (DESCRIBE, WRITE), "the brokers refuse transactional.id offload:"),
]


def checked(document: Mapping[str, object]) -> None:
    """Checks a configuration as the worker does at its start, and waits until its connections are closed.

    Over TLS that takes an answer of the broker. The clients do not wait for it, and what is still open when the event
    loop ends would be a warning in some later test.
    """

    async def check_and_close() -> None:
        try:
            await check(parse(document, {}))
        finally:
            transports = asyncio.get_running_loop()._transports  # type: ignore[attr-defined]
            sockets = [each.get_extra_info("socket") for each in transports.values()]
            while any(each.fileno() >= 0 for each in sockets):  # noqa: ASYNC110  # nothing tells when
                await asyncio.sleep(0.01)

    asyncio.run(check_and_close())


def is_told(worker: WorkerProcess, pipeline: str, what: str) -> bool:
    """Whether /health gives this for a reason why a pipeline waits."""
    return what in str(worker.get("/health")[1]["reasons"].get(pipeline))


@contextlib.contextmanager
def granted_transactions(cluster: Cluster, *operations: int) -> Iterator[None]:
    """Lets the user have transactions in pipelines of this name, as long as the block runs."""
    cluster.allow(USER, "offload:", *operations, kind=TRANSACTIONAL_ID, pattern=PREFIXED)
    try:
        yield
    finally:
        cluster.forbid(USER, "offload:", *operations, kind=TRANSACTIONAL_ID, pattern=PREFIXED)


class Traffic:
    """The same records on several ways, by the name of the pipeline, and what has come of them."""

    def __init__(self, ways: Mapping[str, Way]) -> None:
        self.ways = ways
        self.sent = 0
        self._counted = {name: Counted(way.broker, way.orders) for name, way in ways.items()}

    def send(self) -> None:
        """Sends ten more."""
        more: list[Sent] = [(0, b"%d" % number, b"v", [], 1) for number in range(self.sent, self.sent + 10)]
        for way in self.ways.values():
            send(way.broker, way.raw, more)
        self.sent += 10

    def flows(self, names: Iterable[str]) -> bool:
        """Whether all have arrived on these ways."""
        return all(self._counted[name].total() >= self.sent for name in names)

    def committed(self) -> bool:
        """Whether all are committed, on all ways."""
        return all(way.all_read("offload") for way in self.ways.values())


def test_worker_rights_come_and_go(cluster: Cluster, make_way: Callable[[], Way]) -> None:
    """Over TLS, with a login: a right that is taken away lets the pipeline wait and say so, until it is back.

    So it is with both guarantees; and where one pipeline waits, the other goes on.
    """
    ways = {"offload": make_way(), "plain": make_way()}
    once = ways["offload"]
    for way in ways.values():
        grant(cluster, way)
    settings = {**once.settings(), **secured(cluster, "SASL_SSL")}
    keys = {"errors.retry.delay.max.ms": 500}
    pipelines = {**once.offload(**keys, **ONCE), "plain": ways["plain"].offload(**keys)["offload"]}
    traffic = Traffic(ways)
    with granted_transactions(cluster, WRITE, DESCRIBE), WorkerProcess(once.folder, settings, pipelines) as worker:
        worker.wait_ready()
        traffic.send()
        until(partial(traffic.flows, ways), "records flow")
        for what, operations, told in RIGHTS:
            waiting = {"offload": once} if what == "ids" else ways
            resources = [RESOURCES[what](way) for way in waiting.values()]
            for resource, which in resources:
                cluster.forbid(USER, resource, *operations, **which)
            traffic.send()
            for name in waiting:
                until(partial(is_told, worker, name, told), f"it is told of {name}: {told}")
            until(partial(traffic.flows, ways.keys() - waiting.keys()), "the other flows")
            for resource, which in resources:
                cluster.allow(USER, resource, *operations, **which)
            until(partial(traffic.flows, ways), "records flow again")
            until(lambda: worker.get("/health")[1]["status"] == "ok", "it is well again")
        until(traffic.committed, "all is committed")
        assert worker.terminate() == 0
        assert PASSWORD not in worker.log.read_text()
    for name, way in ways.items():
        arrived_in_order(way, traffic.sent, once=name == "offload")


RESOURCES: Mapping[str, Callable[[Way], tuple[str, dict[str, int]]]] = {
    "raw": lambda way: (way.raw, {}),
    "orders": lambda way: (way.orders, {}),
    "group": lambda way: (way.group("offload"), {"kind": GROUP}),
    "ids": lambda _: ("offload:", {"kind": TRANSACTIONAL_ID, "pattern": PREFIXED}),
}


def arrived_in_order(way: Way, count: int, *, once: bool) -> None:
    """Each record has arrived, in order; some more than once, unless that is excluded."""
    found = [record.key for record in read_all(way.broker, way.orders, "read_committed")[0]]
    assert (found if once else list(dict.fromkeys(found))) == [b"%d" % number for number in range(count)]


def test_transactional_ids_refused(cluster: Cluster, way: Way) -> None:
    """Without rights to its transactional ids a pipeline is refused at start, without Write at its first producer.

    A replay writes nothing then, and says which; at least once it needs none.
    """
    grant(cluster, way)
    group = f"{way.group('offload')}-dlq-replay"
    cluster.allow(USER, way.dead, READ, DESCRIBE, DESCRIBE_CONFIGS)
    cluster.allow(USER, way.raw, WRITE)
    cluster.allow(USER, group, READ, kind=GROUP)
    settings = {**way.settings(), **secured(cluster, "SASL_PLAINTEXT")}
    told = rf"the brokers refuse transactional\.id offload:{way.raw}:0.* grant Write"
    with pytest.raises(ConfigurationError, match=told):
        checked({**settings, "pipeline": way.offload(**ONCE)})
    with (
        granted_transactions(cluster, DESCRIBE),
        WorkerProcess(way.folder, settings, way.offload(**ONCE, **way.tolerant)) as worker,
    ):
        assert worker.wait() == 1
        log = worker.log.read_text()
    error = f"starting a transactional producer: [Error 53] TransactionalIdAuthorizationFailed: offload:{way.raw}:"
    assert error in log
    assert "grant Write and Describe on all transactional ids that begin as it does, up to the colon" in log
    assert "Traceback" not in log
    replay = ("dlq", "replay", "-c", worker.config, "--to", way.raw, "--yes")
    refused = (
        f'wideload: --processing-guarantee: found "exactly_once", and the brokers refuse transactional.id {group}:'
    )
    send(way.broker, way.dead, [(0, b"letter", b"v", [], 1)])
    done = wideload(*replay)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(refused)
    done = wideload(*replay, "--processing-guarantee", "at_least_once")
    assert done.returncode == 0, done.stderr
    assert [record.key for record in read_all(way.broker, way.raw)[0]] == [b"letter"]


def test_worker_refused_at_start(cluster: Cluster, way: Way) -> None:
    """A wrong password, no right to the topics, brokers of another authority: one sentence each, and no secret.

    None is waited for with `startup.wait.ms`.
    """
    head = {**way.settings(), **secured(cluster, "SASL_SSL")}
    mistakes: dict[str, tuple[dict[str, object], str]] = {
        "login": ({"sasl.password": "wrong-one"}, NOT_ACCEPTED),
        "rights": ({}, f"topic {way.raw} does not exist"),
        "authority": ({"ssl.ca.location": None}, "CERTIFICATE_VERIFY_FAILED"),
    }
    for more, told in mistakes.values():
        document = {key: value for key, value in {**head, **more}.items() if value is not None}
        with pytest.raises(ConfigurationError) as refused:
            checked({**document, "pipeline": way.offload()})
        assert told in str(refused.value)
        assert "wrong-one" not in str(refused.value)
        assert not any(map(_may_pass, refused.value.each))


# how to log in: protocol, keys, the user that brokers then see, a key that is wrong, what is said then
NOT_ACCEPTED = "the brokers do not accept sasl.username and sasl.password"
LOGINS = {
    "scram-256": ("SASL_PLAINTEXT", {"sasl.mechanism": "SCRAM-SHA-256"}, USER, "sasl.password", NOT_ACCEPTED),
    "scram-512": ("SASL_SSL", {"sasl.mechanism": "SCRAM-SHA-512"}, USER, "sasl.password", NOT_ACCEPTED),
    "certificate": ("SSL", {}, "CN=client", "ssl.key.password", "ssl.key.password do not match"),
}


@pytest.mark.parametrize("login", LOGINS)
def test_worker_logs_in(cluster: Cluster, way: Way, login: str) -> None:
    """By SCRAM and by a certificate: admin, consumer and producers get in, and nobody who has not the secret."""
    protocol, more, user, secret, told = LOGINS[login]
    grant(cluster, way, user)
    cluster.allow(user, "*", WRITE, DESCRIBE, kind=TRANSACTIONAL_ID)
    if login == "certificate":
        cluster.allow(user, "__consumer_offsets", DESCRIBE)
    head = {**way.settings(), **secured(cluster, protocol), **more}
    pipelines = way.offload(**ONCE)
    traffic = Traffic({"offload": way})
    with WorkerProcess(way.folder, head, pipelines) as worker:
        worker.wait_ready()
        traffic.send()
        until(traffic.committed, "all is committed")
        assert worker.terminate() == 0
        log = worker.log.read_text()
    arrived_in_order(way, traffic.sent, once=True)
    assert log.count("grant Describe on topic __consumer_offsets") == (login != "certificate")
    assert "left in time" not in log  # of the group
    assert PASSWORD not in log
    assert KEY_PASSWORD not in log
    with pytest.raises(ConfigurationError, match=told) as refused:
        checked({**head, secret: "wrong-one", "pipeline": pipelines})
    assert "wrong-one" not in str(refused.value)


def test_worker_without_its_certificate(cluster: Cluster, way: Way) -> None:
    """Brokers that ask for a certificate say nothing where there is none; the sentence says which key is missing."""
    head = {**way.settings(), **secured(cluster, "SSL")}
    document = {key: value for key, value in head.items() if not key.startswith(("ssl.certificate", "ssl.key"))}
    with pytest.raises(
        ConfigurationError,
        match=r"in this way: set ssl\.certificate\.location",
    ):
        checked({**document, "pipeline": way.offload()})


def test_rights_to_the_control_topic(cluster: Cluster, way: Way) -> None:
    """Read for each worker, Write for those that take requests: the error at the start says which is missing."""
    topic = f"{way.raw}-control"
    document = {**way.settings(), "control.topic": topic, "pipeline": way.offload()}
    asyncio.run(check_control_topic(parse(document, {})))  # it makes the topic, and may do all
    settings = parse({**document, **secured(cluster, "SASL_PLAINTEXT")}, {})
    steering = dataclasses.replace(settings, web_control=True)
    cluster.allow(USER, topic, DESCRIBE, DESCRIBE_CONFIGS)
    may_not = "control.topic: this user lacks Read on topic .*, and each worker reads it"
    with pytest.raises(ConfigurationError, match=may_not):
        asyncio.run(check_control_topic(settings))
    cluster.allow(USER, topic, READ)
    asyncio.run(check_control_topic(settings))
    with pytest.raises(
        ConfigurationError, match=r"lacks Write on topic .*, and a worker with web\.control\.enable writes"
    ):
        asyncio.run(check_control_topic(steering))
    cluster.allow(USER, topic, WRITE)
    asyncio.run(check_control_topic(steering))


SAME, CUT = 10, 30  # so many records are in both logs, and so many were in the one that was lost
GROWN = {0: 50, 1: CUT, 2: 15}  # where the new log ends, by partition: further, at the same place, before it


@pytest.mark.chaos
def test_worker_log_cut_and_grown_again(cluster: Cluster, way: Way) -> None:
    """After an unclean election the worker begins again where the logs part, however long the new one is.

    So it is for a pipeline that was paused, for one that waited at the end, and with both guarantees; with `none` it
    stops. What is gone is told, in the log and on /metrics.
    """
    topic, names = f"{way.raw}-cut", ("paused", "waiting", "once", "stops")
    sinks = {name: f"{topic}-{name}" for name in names}
    forever = {"retention.ms": "-1"}
    unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    cluster.make_topics(topic, partitions=len(GROWN), replicas=(1, 2), configs=forever | unclean)
    cluster.make_topics(*sinks.values(), partitions=len(GROWN), configs=forever)
    late: dict[str, object] = {"offset.flush.interval.ms": 60_000}  # nothing is committed of what is lost
    more: dict[str, dict[str, object]] = {
        "waiting": late,
        "once": {**ONCE},
        "stops": {"consumer.auto.offset.reset": "none"},
    }
    pipelines = {
        name: {
            **way.offload(**more.get(name, {}))["offload"],
            "topics": [topic],
            "output.topic": sink,
            "group.id": sink,
        }
        for name, sink in sinks.items()
    }
    for sink in sinks.values():  # with `none` a group that has committed nothing does not begin
        commit(way.broker, sink, topic)

    with (
        contextlib.ExitStack() as restarted,
        WorkerProcess(way.folder, {**way.settings(), **STEERED}, pipelines) as worker,
    ):
        worker.wait_ready()
        write(way, topic, "same", dict.fromkeys(GROWN, SAME))
        first, second = cluster.nodes[:2]
        for node in (first, second):
            restarted.callback(node.start)
        until(lambda: cluster.in_sync(topic, 2), "both have all records")
        second.kill()
        until(lambda: cluster.in_sync(topic, 1), "one is left")
        cut = dict.fromkeys(GROWN, CUT)
        write(way, topic, "gone", cut)
        until(lambda: end_offsets(way.broker, sinks["waiting"]) == cut, "all is delivered")
        for name in ("paused", "once", "stops"):
            until(lambda group=sinks[name]: committed(way.broker, group, topic) == cut, "all is committed")  # type: ignore[misc]
        for name in ("paused", "once"):
            steer(worker, name, "PUT", "pause")
        until(lambda: list(states(worker).values()).count("PAUSED") == 2, "two are paused")
        first.kill()
        second.start()
        until(lambda: cluster.leaders(topic) == dict.fromkeys(GROWN, 2), "the other leads")
        write(way, topic, "new", GROWN)
        for name in ("paused", "once"):
            steer(worker, name, "PUT", "resume")
        for name in ("paused", "waiting", "once"):
            until(
                partial(read_anew, way, topic, sinks[name], once=name == "once"), f"all that is there has come: {name}"
            )
        until(lambda: states(worker)["stops"] == "FAILED", "it has stopped")
        assert "consumer.auto.offset.reset is none" in str(worker.get("/health")[1]["reasons"]["stops"])
        for name in ("paused", "waiting", "once"):
            total = f'wideload_truncated_records_total{{pipeline="{name}"}} {len(GROWN) * (CUT - SAME)}'
            assert total in worker.text("/metrics")
            for at in GROWN:
                told = (
                    f"pipeline {name}: topic {topic}, partition {at}: the cluster has lost the end of the log, as by "
                    f"an unclean election: it was read up to offset {CUT}, and parts from what was read at {SAME}; "
                    f"it is read again from there; {CUT - SAME} records are gone, or have others in their place"
                )
                assert worker.log.read_text().count(told) == 1
        assert worker.terminate() == 1


def write(way: Way, topic: str, word: str, ends: Mapping[int, int]) -> None:
    """Fills each partition of a topic up to an offset."""
    begins = end_offsets(way.broker, topic)
    numbers = [(at, number) for at, end in ends.items() for number in range(begins[at], end)]
    send(way.broker, topic, [(at, f"{word}-{number}".encode(), b"v", [], 1) for at, number in numbers])


def read_anew(way: Way, topic: str, sink: str, *, once: bool) -> bool:
    """Whether all that was lost, and all that is there, has come, in order; each once, or at least once."""
    there, found = (
        {at: [record.key for record in records] for at, records in read_all(way.broker, name, "read_committed").items()}
        for name in (topic, sink)
    )
    assert {at: len(keys) for at, keys in there.items()} == GROWN
    gone = [f"gone-{number}".encode() for number in range(SAME, CUT)]
    expected = {at: [*keys[:SAME], *gone, *keys[SAME:]] for at, keys in there.items()}
    return expected == (found if once else {at: list(dict.fromkeys(keys)) for at, keys in found.items()})


def commit(broker: str, group: str, topic: str) -> None:
    """Commits the beginning of a topic, as a pipeline does that has begun."""

    async def run() -> None:
        async with AIOKafkaConsumer(bootstrap_servers=broker, group_id=group, enable_auto_commit=False) as consumer:
            places = [TopicPartition(topic, number) for number in GROWN]
            consumer.assign(places)
            await consumer.commit(dict.fromkeys(places, 0))

    asyncio.run(run())


def steer(worker: WorkerProcess, pipeline: str, method: str, what: str) -> None:
    """Pauses, resumes or restarts a pipeline."""
    ask(worker.port, method, f"/connectors/{pipeline}/{what}", headers={"Authorization": f"Bearer {TOKEN}"})


def states(worker: WorkerProcess) -> dict[str, str]:
    """The states of the pipelines of a worker."""
    return {each["name"]: each["state"] for each in worker.get("/pipelines")[1]}
