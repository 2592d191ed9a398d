"""An audit on Spark is the same as one without it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from app.payloads import audit_command
from jobs.audit import audit, main
from stores.registry import open_store
from stores.store import Delete
from tests.app.payloads.swept import filesystem
from tests.integration.topics import send
from transforms.compression import Codec
from transforms.errors import ConfigurationError
from transforms.formats import WIDELOAD
from transforms.offload import Offload, Payload
from transforms.record import Record

COMPACT = {"cleanup.policy": "compact"}


def filled(broker: str, root: Path, *topics: str) -> dict[str, object]:
    """References of each kind: well, compressed, missing, changed, malformed, overwritten. Returns the store."""
    config = filesystem(root)
    codecs: list[Codec | None] = [None, "zstd"]
    with closing(open_store(config)) as store:
        assert isinstance(store, Delete)
        for topic in topics:
            records = [Record(b"k", b"plain"), Record(b"m", b"\xff", [("large-message", b"true")])]
            for number in range(24):
                payload: Payload = Offload(codec=codecs[number % 2]).payload(b"%d" % number * 200)
                reference = payload.reference(store.publish(topic, payload.data))
                records.append(WIDELOAD.write_reference(Record(b"%d" % (number // 2), b"?"), reference))
                if number % 5 == 0:
                    store.delete(reference.path)
                elif number % 7 == 0:
                    Path(reference.path.removeprefix("file://")).write_bytes(b"changed")
            send(broker, topic, [(n % 3, r.key, r.value, list(r.headers), n) for n, r in enumerate(records)])
    return config


@pytest.mark.matrix
@pytest.mark.usefixtures("in_session")
def test_with_and_without_spark(
    broker: str, make_topic: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same findings, examples, report and status on the same topics and store."""
    topics = make_topic(3), make_topic(3, **COMPACT)
    config = filled(broker, tmp_path / "store", *topics)
    base = ["--bootstrap-servers", broker, *(f"--topic={name}" for name in topics)]
    base += [f"--store={key}={str(value).lower() if value is False else value}" for key, value in config.items()]
    for number, more in enumerate(([], ["--verify"], ["--verify", "--newest-only"])):
        files = tmp_path / f"{number}.parquet", tmp_path / f"{number}"
        found: list[dict[str, Any]] = []
        mains: list[Callable[[list[str]], int]] = [audit_command.main, main]
        for run, file in zip(mains, files, strict=True):
            assert run([*base, *more, "--report", str(file)]) == 3
            summary = json.loads(capsys.readouterr().out)
            assert set(summary.pop("seconds")) >= {"reading the topics", "asking the store"}
            assert summary.pop("report") == str(file)
            found.append(summary)
        assert found[0] == found[1]
        assert found[0]["wrong"] > 5
        rows = [sorted(pyarrow.parquet.read_table(file).to_pylist(), key=str) for file in files]
        assert rows[0] == rows[1]
        assert len(rows[0]) == sum(sum(states.values()) for states in found[0]["topics"].values())
    assert main([*base, "--report", str(files[1])]) == 2
    assert "--report" in capsys.readouterr().err


def test_audit_of_a_program(spark: SparkSession, broker: str, make_topic: Callable[..., str], tmp_path: Path) -> None:
    """A program gets the findings as rows; options are those of Spark's source or ours."""
    topic = make_topic(3)
    config = filled(broker, tmp_path, topic)
    rows = audit(spark, {"kafka.bootstrap.servers": broker}, config, topic, verify=True)
    counts = {row["state"]: row["count"] for row in rows.groupBy("state").count().collect()}
    assert counts == {"ok": 16, "missing": 5, "malformed": 1, "size": 1, "compression": 2}
    rows.unpersist()
    with pytest.raises(ConfigurationError, match="--topic: nowhere is not on the broker"):
        audit(spark, {"bootstrap.servers": broker}, config, "nowhere")
