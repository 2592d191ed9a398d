"""What `ingest` does where checkpoint and output no longer belong together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, partialmethod
from operator import methodcaller
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.driver.jvm import Files
from jobs.ingest import IngestSettings
from jobs.ingesting.checkpoint import bind
from jobs.ingesting.topics import Topics, sentence
from jobs.ingesting.values import ValueForm
from jobs.reading.ranges import Bounds
from tests.app.payloads.swept import write
from tests.integration.operations import Operations
from tests.jobs.ingests import Settings, ingest, numbered, require_delta, written
from transforms.errors import ConfigurationError
from transforms.record import Record

MakeTopic = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Pair:
    """Copies of a checkpoint and an output."""

    checkpoint: Path
    output: Path

    def drop(self, *names: str) -> Pair:
        """Deletes files, given by their paths below the folder of both, with their checksums."""
        for name in names:
            path = self.checkpoint.parent / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        return self

    def put(self, name: str, content: str) -> None:
        """Writes a file anew, as after a disk that lost what was in it."""
        self.drop(name)
        (self.checkpoint.parent / name).write_text(content)


Change = Callable[[Pair], object]


def put(name: str, content: str) -> Change:
    return methodcaller("put", name, content)


def refused(spark: SparkSession, chosen: IngestSettings, change: Change) -> str:
    """What is said after a change, in one line; the change is undone."""
    folder = Path(chosen.checkpoint).parent
    kept = folder.with_name(f"{folder.name}-kept")
    shutil.copytree(folder, kept)
    try:
        change(Pair(Path(chosen.checkpoint), Path(chosen.output)))
        with pytest.raises(ConfigurationError) as found:
            bind(spark, chosen)
    finally:
        shutil.rmtree(folder)
        kept.rename(folder)
    assert "\n" not in str(found.value)
    return str(found.value).replace(str(folder), "F")


def no_rows(pair: Pair) -> None:
    for file in pair.output.glob("*.parquet"):
        file.unlink()


@pytest.mark.matrix
def test_output_that_is_not_the_checkpoints(
    spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """An output that is gone, empty, older, newer or another's is refused; each damage of a checkpoint is one line.

    `--rebuild` then reads all again, once the output has no rows.
    """
    topic = make_topic(partitions=1)
    write(broker, topic, *numbered(3))
    chosen, other = settings(topic), settings(topic, place="two")
    again = replace(chosen, rebuild=True)
    for each in (chosen, other):
        ingest(spark, each)
    write(broker, topic, *numbered(2, first=3))
    ingest(spark, chosen)
    plan = Path(chosen.checkpoint, "offsets", "1").read_text()
    spoilt = plan.replace("5", "6")
    gone = (
        "--output: F/out is missing or empty, or is another one than checkpoint F/checkpoint has written: records of "
    )
    unlisted = "the list of files in F/out/_spark_metadata cannot be read"

    def drop(*names: str) -> Change:
        return methodcaller("drop", *names)

    def copied(pair: Pair) -> None:
        shutil.copytree(other.output, pair.drop("out").output)

    def unsummed(pair: Pair) -> None:
        (pair.checkpoint / "offsets" / "1").write_text(spoilt)

    rows: list[tuple[IngestSettings, Change, str]] = [
        (chosen, drop("out"), gone),
        (chosen, drop("out/_spark_metadata"), gone),
        (chosen, no_rows, gone),
        (chosen, copied, "--output: F/out is another one than"),
        (chosen, drop("out/_spark_metadata/1"), "F/out ends with batch 0, but checkpoint F/checkpoint is ahead of it"),
        (
            chosen,
            drop("checkpoint/offsets/1", "checkpoint/commits/1"),
            "--checkpoint: F/checkpoint ends with batch 0, and F/out with batch 1: Spark would skip",
        ),
        (chosen, drop("checkpoint", "out/_spark_metadata"), "F/out was written with another checkpoint"),
        (
            chosen,
            drop("checkpoint/offsets/1"),
            "F/checkpoint is damaged: batch 1 is finished, and its offsets are missing",
        ),
        (chosen, drop("checkpoint/metadata"), "F/checkpoint/metadata is "),
        (
            chosen,
            drop("checkpoint/offsets/1", "checkpoint/commits", "out/_spark_metadata", "checkpoint/sources"),
            "F/checkpoint/sources/0/0 is missing; it contains the start of the first batch",
        ),
        (chosen, unsummed, "F/checkpoint/offsets/1 cannot be read: Checksum error"),
        (chosen, drop("out/_spark_metadata/0"), unlisted),
        *(
            (chosen, put(f"out/_spark_metadata/{name}", content), f"--output: {unlisted}, so the rows cannot")
            for name, content in (("0", "\x00" * 9), ("1", ""), ("1", "v1\n{"))
        ),
        (
            chosen,
            put("out/_wideload.json", ""),
            "is damaged; it contains the id of the checkpoint; delete it if no other ingest writes there",
        ),
        (again, drop(), "--rebuild: F/out contains rows"),
        (settings("else", rebuild=True), drop(), f"belongs to source {topic}, this is source else"),
        (again, drop("out", "checkpoint/wideload.json"), "was not created by this job"),
    ]
    for refusing, change, said in rows:
        assert said in refused(spark, refusing, change)

    for name, content in (
        ("offsets/1", "v1\n{"),
        ("offsets/0", ""),
        ("commits/1", "\x00" * 9),
        ("metadata", ""),
        ("metadata", '{"id": 5}'),
        ("sources/0/0", ""),
        ("sources/0/0", "garbage"),
        ("wideload.json", "[1]"),
        ("wideload.json", '{"job": "ing'),
    ):
        said = refused(spark, chosen, put(f"checkpoint/{name}", content))
        assert said.startswith(f"--checkpoint: F/checkpoint/{name} is ")
        assert "damaged" in said
        assert said.endswith("or start over: move the output away and use --rebuild")
    ends = f"it ends topic {topic} partition 0 at offset"
    for offsets, reason in (
        ("{}", f"{ends} 0, and the batch before it ended at 3"),
        (json.dumps({topic: {"0": 1}}), f"{ends} 1, and the batch before it ended"),
        (json.dumps({topic: {"0": -7}}), "it is not what Spark writes"),
        (json.dumps({topic: {"0": "5"}}), "it is not what Spark writes"),
        ("{}\n{}", "it is not what Spark writes"),
    ):
        content = "\n".join([*plan.splitlines()[:2], offsets])
        said = refused(spark, chosen, put("checkpoint/offsets/1", content))
        assert said.startswith("--checkpoint: F/checkpoint/offsets/1 is damaged: ")
        assert reason in said

    bind(spark, chosen)  # as it was, it is right
    no_rows(Pair(Path(chosen.checkpoint), Path(chosen.output)))
    assert ingest(spark, again).rows == 5
    told = f"ingest: starts over, and reads 5 offsets by partition ({topic} 0: 0 to 5)"
    assert told in capsys.readouterr().err.splitlines()
    assert [bytes(row.value) for row in written(spark, chosen)] == [b"v%d" % n for n in range(5)]


def test_two_first_runs_at_once(
    spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings, tmp_path: Path
) -> None:
    """Of two ingests that begin with one new output, the second is refused; Spark would drop the batches of one.

    With `--rebuild` the second takes it, and the first is refused.
    """
    one, two = make_topic(partitions=1), make_topic(partitions=1)
    write(broker, two, *numbered(3))
    first, second = (settings(topic, checkpoint=str(tmp_path / name)) for topic, name in ((one, "c1"), (two, "c2")))
    bind(spark, first)
    with pytest.raises(
        ConfigurationError,
        match=r"--output: \S+ is reserved for another checkpoint than \S+/c2, "
        r"by an",
    ):
        bind(spark, second)
    bind(spark, first)  # again, as after a kill
    bind(spark, replace(second, rebuild=True))
    with pytest.raises(ConfigurationError, match=r"reserved for another checkpoint than \S+/c1"):
        bind(spark, first)
    assert ingest(spark, second).rows == 3


def test_delta_table_that_is_not_the_checkpoints(
    spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings
) -> None:
    """A Delta table that is gone, or another one, is refused, as its log does not name the query."""
    require_delta(spark)
    topic = make_topic(partitions=1)
    write(broker, topic, *numbered(2))
    chosen = settings(topic, format="delta")
    again = replace(chosen, rebuild=True)
    ingest(spark, chosen)
    bind(spark, chosen)

    def another(pair: Pair) -> None:
        pair.drop("out")
        spark.sql(f"CREATE TABLE delta.`{pair.output}` (key BINARY, value BINARY) USING delta")

    for change in (methodcaller("drop", "out"), no_rows, another):
        assert "--output: F/out is missing or empty, or is another one" in refused(spark, chosen, change)
    for change in (methodcaller("drop"), no_rows):  # its log names them
        assert "--rebuild: F/out contains rows" in refused(spark, again, change)
    shutil.rmtree(chosen.output)
    assert ingest(spark, again).rows == 2
    assert len(written(spark, chosen)) == 2


def test_checkpoint_of_before(spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings) -> None:
    """A checkpoint from before there were marks goes on, and is marked; a batch that was cut off is done again."""
    topic = make_topic(partitions=1)
    write(broker, topic, *numbered(1))
    chosen = settings(topic)
    ingest(spark, chosen)
    pair = Pair(Path(chosen.checkpoint), Path(chosen.output))
    tie = json.loads((pair.checkpoint / "wideload.json").read_text())
    pair.put("checkpoint/wideload.json", json.dumps({name: tie[name] for name in tie if name != "id"}))
    pair.drop("out/_wideload.json", "out/_spark_metadata", "checkpoint/commits")
    no_rows(pair)
    assert ingest(spark, chosen).rows == 1
    assert json.loads((pair.output / "_wideload.json").read_text()) == {
        "checkpoint": json.loads((pair.checkpoint / "wideload.json").read_text())["id"]
    }


def test_what_begins_anew_is_told() -> None:
    """The sentence has how much is read, from where to where, and which partitions have lost their beginning."""
    assert sentence({("t", 0): 0}, {("t", 0): Bounds(0, 1200)}) == (
        "starts over, and reads 1,200 offsets by partition (t 0: 0 to 1,200)"
    )
    said = sentence({("t", 0): 0, ("t", 1): 7}, {("t", 0): Bounds(0, 1), ("t", 1): Bounds(7, 7)})
    assert said == (
        "starts over, and reads 1 offsets by partition (t 0: 0 to 1, t 1: 7 to 7); the first records of 1 of 2 "
        "partitions are no longer in Kafka, and the new output lacks them: t 1"
    )
    many = {("t", n): Bounds(0, 1) for n in range(30)}
    assert "t 27" not in sentence(dict.fromkeys(many, 0), many)


def test_checkpoint_among_the_rows(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    """A new checkpoint is not the output itself, nor a directory of its rows; a hidden folder in it will do.

    Nor is the output in the checkpoint, where Spark may have a folder of that name.
    """
    output, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    for place, missing, refusal in (
        (output, output, r"^--checkpoint: \S+ is the output itself, or a directory of its rows"),
        (output / "checkpoint", output, r"^--checkpoint: \S+ is the output itself, or a directory of its rows"),
        (output / "topic=t/_checkpoint", output, r"^--checkpoint: \S+ is the output itself, or a directory of its"),
        (checkpoint / "state", checkpoint, r"^--output: \S+ is in the checkpoint"),
        (checkpoint / "rows/of/t", checkpoint, r"^--output: \S+ is in the checkpoint"),
    ):
        folders = {"output": output, "checkpoint": checkpoint, "checkpoint" if missing == output else "output": place}
        with pytest.raises(ConfigurationError, match=refusal):
            bind(spark, settings("t", **{name: str(folder) for name, folder in folders.items()}))
        assert not missing.exists()
    for _ in range(2):
        bind(spark, settings("t", output=str(output), checkpoint=str(output / "_checkpoint")))


def test_topic_made_anew(spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings) -> None:
    """A topic that was deleted and made again is refused, though it has more records by now than were read.

    Spark would go on at its offset, and the records below would be missing. `--no-fail-on-data-loss` accepts that.
    """
    topic = make_topic(partitions=1)
    write(broker, topic, *numbered(2))
    chosen = settings(topic)
    ingest(spark, chosen)
    ingest(spark, chosen)
    topics = Topics(spark, bind(spark, chosen), pause_s=0)  # as of a run that goes on
    Operations(broker).remove_topic(topic)
    make_topic(partitions=1, named=topic)
    write(broker, topic, *numbered(5, first=10))
    refusal = f"--topic: topic {topic} was deleted and created again since checkpoint"
    with pytest.raises(ConfigurationError, match=refusal):
        ingest(spark, chosen)
    topics.watch(0)
    with pytest.raises(ConfigurationError, match=refusal):
        topics.watch(1)
    assert len(written(spark, chosen)) == 2
    for wanted in (3, 0):
        assert ingest(spark, replace(chosen, fail_on_data_loss=False)).rows == wanted
    assert ingest(spark, chosen).rows == 0


def test_schema_of_a_batch_that_is_not_noted(
    spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings
) -> None:
    """After a kill behind the first batch's rows the schema may not change: no reader takes both types."""
    topic = make_topic(partitions=1)
    write(broker, topic, Record(b"k", b'{"id": 5}'))
    first, second = (
        settings(topic, value=ValueForm(format="json", schema=spark.createDataFrame([], schema).schema.json()))
        for schema in ("id int", "id string")
    )
    ingest(spark, first)
    Pair(Path(first.checkpoint), Path(first.output)).drop("checkpoint/commits")
    with pytest.raises(ConfigurationError, match=r"does not fit what checkpoint .* field id was INT and is STRING now"):
        ingest(spark, second)
    assert ingest(spark, first).rows == 0


def test_rebuild_that_is_killed(
    spark: SparkSession, broker: str, make_topic: MakeTopic, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed anywhere, and run without `--rebuild`: it is refused, or reads all; a Delta table knows the old query."""
    require_delta(spark)
    topic = make_topic(partitions=1)
    write(broker, topic, *numbered(2))
    chosen = settings(topic, format="delta")
    ingest(spark, chosen)
    spark.sql(f"DELETE FROM delta.`{chosen.output}`")  # noqa: S608  # the folder of this test
    no_rows(Pair(Path(chosen.checkpoint), Path(chosen.output)))
    left: list[int] = []

    def dying(delete: Callable[[Files, str], None], files: Files, path: str) -> None:
        if not left.pop():
            raise KeyboardInterrupt
        delete(files, path)

    for steps in range(1, 20):
        left[:] = [0, *[1] * steps]
        with monkeypatch.context() as patch:
            for name in ("delete", "delete_folder"):
                patch.setattr(Files, name, partialmethod(partial(dying, getattr(Files, name))))
            with suppress(KeyboardInterrupt):
                bind(spark, replace(chosen, rebuild=True))
                break
        with suppress(ConfigurationError):
            bind(spark, chosen)
            break
    assert ingest(spark, chosen).rows == 2
    assert len(written(spark, chosen)) == 2
