"""Payloads and the time that records stay: the command, the check and the worker as users run them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stores.s3_lifecycle import own_id
from tests.faults.proxy import keeping_rules
from tests.integration.command_line import lines, wideload
from tests.integration.way import MakeTopic
from tests.integration.worker_process import WorkerProcess, toml, until
from tests.s3_server import S3Server, free_port

pytestmark = pytest.mark.s3

DAY = 86_400_000
S3 = "large.message.payload.store.class"


class Place:
    """Topics, a bucket, and configurations of pipelines between them."""

    def __init__(self, broker: str, make_topic: MakeTopic, folder: Path, found: S3Server) -> None:
        self.folder = folder
        self.worker = {"bootstrap.servers": broker, "web.port": free_port()}
        self.make_topic = make_topic
        self.store = {S3: "s3", **found.config("p")}
        self.raw = make_topic()
        self.client = found.client()

    def topic(self, policy: str = "delete", retention_ms: int = 7 * DAY, segment_ms: int = DAY) -> str:
        config = {"cleanup.policy": policy, "retention.ms": retention_ms, "segment.ms": segment_ms}
        return self.make_topic(1, **config)

    def offload(self, topic: str, **more: object) -> dict[str, object]:
        """The keys of a pipeline that publishes payloads of the topic."""
        keys = {"topics": [self.raw], "output.topic": topic, "transforms": ["offload"], "group.id": f"{topic}-group"}
        return {**keys, **self.store, **more}

    def run(
        self, pipelines: Mapping[str, Mapping[str, object]], *arguments: str, command: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        path = self.folder / "wideload.toml"
        path.write_text(toml(self.worker, pipelines))
        return wideload(*(command or ("store", "lifecycle")), "-c", path, *arguments, environ={"COLUMNS": "160"})

    def rows(self, pipelines: Mapping[str, Mapping[str, object]], *arguments: str, status: int) -> list[dict[str, Any]]:
        """The JSON lines of a command that ends with `status`."""
        done = self.run(pipelines, "--json", *arguments)
        assert done.stderr == ""
        return lines(done, status)

    def set_rules(self, *rules: tuple[str, str, int]) -> None:
        """Rules of others: ID, what keys begin with, days."""
        self.client.put_bucket_lifecycle_configuration(
            Bucket="payloads",
            LifecycleConfiguration={
                "Rules": [
                    {"ID": name, "Status": "Enabled", "Filter": {"Prefix": prefix}, "Expiration": {"Days": days}}
                    for name, prefix, days in rules
                ]
            },
        )

    def rules(self) -> dict[str, int]:
        """The days of every rule in the bucket, by ID."""
        try:
            answer = self.client.get_bucket_lifecycle_configuration(Bucket="payloads")
        except self.client.exceptions.ClientError:
            return {}
        return {rule["ID"]: rule["Expiration"]["Days"] for rule in answer["Rules"]}


@pytest.fixture
def place(broker: str, make_topic: MakeTopic, tmp_path: Path, versitygw: S3Server) -> Iterator[Place]:
    """A source, and a bucket without rules."""
    with keeping_rules(versitygw) as server:
        found = Place(broker, make_topic, tmp_path, server)
        yield found
        found.client.close()


def test_apply_for_each_policy_and_rule(place: Place) -> None:
    """Topics that are deleted from get a rule of retention and 15 %; where records stay there is none, and why.

    Our own rule is made longer, but no shorter, as another cluster may need it, and goes where records stay. Rules of
    others are named, left as they are, and keep the status at 1.
    """
    # pipeline: policy, days of retention, days of Wideload's rule before; verdict before, days after, what has changed
    rows = {
        "delete": ("delete", 7, None, "missing", 9, "Wideload's rule is set to 9 d"),
        "both": ("compact,delete", 30, None, "missing", 35, "Wideload's rule is set to 35 d"),
        "longer": ("delete", 7, 3, "too-short", 9, "Wideload's rule is set to 9 d"),
        "shorter": ("delete", 7, 400, "too-long", 400, None),
        "compact": ("compact", 7, None, "no-ttl", None, None),
        "forever": ("delete", None, None, "no-ttl", None, None),
        "removed": ("compact", 7, 9, "forbidden", None, "Wideload's rule is removed"),
        "others": ("delete", 7, None, "too-short", 9, "Wideload's rule is set to 9 d"),
    }
    topics = {name: place.topic(row[0], -1 if row[1] is None else row[1] * DAY) for name, row in rows.items()}
    own = {name: own_id(f"p/{topic}/") for name, topic in topics.items()}
    others = {"cheap": 3, "elsewhere": 1}
    place.set_rules(
        *((own[name], f"p/{topics[name]}/", row[2]) for name, row in rows.items() if row[2] is not None),
        ("cheap", f"p/{topics['others']}/", 3),
        ("elsewhere", "q/", 1),
    )
    pipelines = {name: place.offload(topic) for name, topic in topics.items()}
    before = {row["pipeline"]: row for row in place.rows(pipelines, status=1)}
    assert {name: row["verdict"] for name, row in before.items()} == {name: row[3] for name, row in rows.items()}
    assert before["delete"]["payloads"] == f"s3://payloads/p/{topics['delete']}/"
    said = {
        "delete": f"no rule deletes payloads, so they stay forever; topic {topics['delete']} keeps records for 7 d, "
        "so payloads should be kept for 9 d; `wideload store lifecycle --apply` sets Wideload's rule",
        "compact": "is compacted without delete (cleanup.policy=compact), so a TTL must not be used",
        "forever": "keeps records forever (retention.ms=-1), so a TTL must not be used",
        "removed": f"but Wideload's rule {own['removed']} deletes payloads after 9 d; remove it",
        "others": "rule 'cheap' (keys that begin with p/",
    }
    assert {name: text in before[name]["message"] for name, text in said.items()} == dict.fromkeys(said, True)
    applied = {row["pipeline"]: row for row in place.rows(pipelines, "--apply", status=1)}
    assert {name: row["changed"] for name, row in applied.items()} == {name: row[5] for name, row in rows.items()}
    after = {own[name]: row[4] for name, row in rows.items() if row[4] is not None}
    assert place.rules() == after | others
    assert applied["shorter"]["message"].endswith(
        "; --apply does not shorten it, because another cluster may need it: remove the rule to set a new one"
    )
    assert applied["others"]["message"] == (
        f"rule 'cheap' (keys that begin with p/{topics['others']}/) deletes payloads after 3 d; topic "
        f"{topics['others']} keeps records for 7 d, so payloads should be kept for 9 d; "
        "--apply does not change rules of others: change such a rule where it was created"
    )
    again = place.rows(pipelines, "--apply", status=1)
    assert {row["changed"] for row in again} == {None}
    verdicts = {
        "shorter": "too-long",
        "compact": "no-ttl",
        "forever": "no-ttl",
        "removed": "no-ttl",
        "others": "too-short",
    }
    assert {row["pipeline"]: row["verdict"] for row in again if row["verdict"] != "ok"} == verdicts
    del pipelines["others"]
    assert place.rows(pipelines, status=0)


def test_topics_that_references_are_carried_into(place: Place) -> None:
    """Dead letters that stay longer than the payloads they refer to are noted; what no longer refers is not.

    A pipeline that inflates has a row for each source, whose records refer to the payloads.
    Payloads of letters that are too large are their topic's own, and stay as long as that keeps records.
    """
    orders, dead, inflated = place.topic(), place.topic("delete", 30 * DAY), place.topic("delete", 90 * DAY)
    letters = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": dead}
    pipelines = {
        "writer": place.offload(orders, **letters),
        "reader": place.offload(inflated, **{"topics": [orders], "transforms": ["inflate"], **letters}),
    }
    rows = place.rows(pipelines, "--apply", status=0)
    note = (
        f"references of topic {orders} are also forwarded to topic {dead}, where they outlive their payloads: "
        f"retention.ms is {30 * DAY}, cleanup.policy is delete"
    )
    assert [(row["topic"], row["transform"], row["changed"], row["notes"]) for row in rows] == [
        (orders, "offload", "Wideload's rule is set to 9 d", [note]),
        (dead, "dead-letter", "Wideload's rule is set to 35 d", []),
        (orders, "inflate", None, [note]),
        (dead, "dead-letter", None, []),
    ]
    del pipelines["reader"]
    assert [row["notes"] for row in place.rows(pipelines, status=0)] == [[], []]


def test_table_and_notes(place: Place) -> None:
    """Without --json there is a table, and the sentences below it, each once; segments count for the age."""
    topic = place.topic("delete", 7 * DAY, segment_ms=7 * DAY)
    reader = place.offload(place.topic(), topics=[topic], transforms=["inflate"])
    done = place.run({"orders": place.offload(topic), "reader": reader}, "--apply")
    assert done.returncode == 0, done.stderr
    table = re.sub(r"\s+", " ", done.stdout)
    for part in ("retention.ms", "cleanup.policy", "604800000 (7 d)", "15 d: Wideload", "ok", "delete"):
        assert part in table
    first, second = done.stdout.splitlines()[-2:]
    assert first == "orders: Wideload's rule is set to 15 d"
    assert second.startswith("orders, reader: Wideload's rule wideload-")


def test_clients_without_a_worker(place: Place) -> None:
    """A client's own file and a topic are enough: retention from the brokers, rules from its store, and --apply."""
    topic = place.topic()
    file = place.folder / "producer.properties"
    keys = {"bootstrap.servers": place.worker["bootstrap.servers"], "acks": "all", **place.store}
    file.write_text("".join(f"{name} = {value}\n" for name, value in keys.items()))
    options = ("store", "lifecycle", "--topic", topic, "--store-config", file, "--json")
    (row,) = lines(wideload(*options), status=1)
    assert (row["verdict"], row["recommended_days"], row["retention_ms"]) == ("missing", 9, 7 * DAY)
    (row,) = lines(wideload(*options, "--apply"))
    assert (row["verdict"], row["changed"]) == ("ok", "Wideload's rule is set to 9 d")
    assert list(place.rules().values()) == [9]


def test_what_cannot_be_asked(place: Place, versitygw: S3Server) -> None:
    """A server without rules, and a topic that is not there, are a row each with the reason, and status 1."""
    topic = place.topic()
    pipelines = {
        "gateway": {**place.offload(topic), **versitygw.config("p")},
        "nobody": place.offload(f"{topic}-not-there"),
        "fine": {**place.offload(place.topic("compact"))},
    }
    rows = place.rows(pipelines, "--apply", status=1)
    assert [row["verdict"] for row in rows] == ["unknown", "unknown", "no-ttl"]
    assert "this S3 server has no expiry rules (NotImplemented)" in rows[0]["message"]
    assert rows[1]["message"].startswith(f"topic {topic}-not-there does not exist")


def test_check_says_it_too(place: Place) -> None:
    """`wideload check` warns, and is content all the same; a store that cannot be asked gives no warning."""
    done = place.run({"orders": place.offload(place.topic())}, command=("check",))
    assert done.returncode == 0, done.stderr
    assert "warning: [pipeline.orders] no rule deletes payloads" in done.stdout
    assert done.stdout.endswith("OK\n")
    place.store["s3.prefix"] = "other"
    done = place.run({"orders": place.offload(place.topic("compact"))}, command=("check",))
    assert "a TTL must not be used" in done.stdout


def test_worker_warns_once_at_start(place: Place, versitygw: S3Server) -> None:
    """The worker's log has one warning for each pipeline with something to say, and none where all is well."""
    missing, fine, compacted = place.topic(), place.topic(), place.topic("compact")
    place.rows({"fine": place.offload(fine)}, "--apply", status=0)
    pipelines = {
        "missing": place.offload(missing),
        "fine": place.offload(fine),
        "compacted": place.offload(compacted),
        "gateway": {**place.offload(place.topic()), **versitygw.config("p")},
    }
    with WorkerProcess(place.folder, place.worker, pipelines) as worker:
        worker.wait_ready()
        log = until(lambda: warnings(worker, 2), "both warnings are in the log")
        margins = [line for line in worker.text("/metrics").splitlines() if line.startswith(MARGIN)]
        assert worker.terminate() == 0
    log = warnings(worker, 2)
    assert len(log) == 2
    by_pipeline = {line.partition("pipeline ")[2].partition(":")[0]: line for line in log}
    assert set(by_pipeline) == {"missing", "compacted"}
    assert "WARNING wideload.cluster.expiry_watch: pipeline missing: no rule deletes payloads" in by_pipeline["missing"]
    assert "a TTL must not be used" in by_pipeline["compacted"]
    assert [line.partition(" ")[2] for line in margins if 'pipeline="missing"' in line] == ["+Inf"]
    assert not [line for line in margins if 'pipeline="gateway"' in line]  # it does not tell its rules


MARGIN = "wideload_payload_expiry_margin_seconds{"


def warnings(worker: WorkerProcess, count: int) -> list[str]:
    """The lines of the log that are about expiry, once there are so many."""
    found = [line for line in worker.log.read_text().splitlines() if "wideload.cluster.expiry" in line]
    return found if len(found) >= count else []
