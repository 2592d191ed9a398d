"""The history of `dlq replay`: letters of a pipeline go back to where they came from, by runs that end in any way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from app.config.parsing import parse
from app.deadletters.log import Filters, open_log
from app.deadletters.record_writer import check_exactly_once, open_writer
from app.deadletters.replay import Replay
from app.deadletters.replay_offsets import ReplayedOffsets
from app.kafka.sender import find_topic
from app.kafka.source_batch import ReadRecord
from tests.simulation.groups import Commit
from tests.simulation.play import Play, PlayActor, PlayScenario
from tests.simulation.promises import Broken
from tests.simulation.storm import Acts
from transforms.errors import WideloadError
from transforms.letter import Cause, dead_letter

_GROUP = "p-dlq-replay"


class _Replayer(PlayActor):
    """One who runs the command until it has ended well, though not when it was asked to end."""

    play: ReplayPlay

    async def work(self) -> None:
        while not self.stopping:
            begun_calm = self.play.weather.calm
            try:
                limit = None if begun_calm else self.chance.choice((None, None, 1, 3))
                count = await self._run(Filters(limit=limit))
            except WideloadError as exc:
                self.play.tell(f"{self.process.name}: {exc}")
                await asyncio.sleep(self.chance.random())
            else:
                self.play.tell(f"{self.process.name} has replayed {count}")
                self.play.done = self.play.done or begun_calm
                return

    async def _run(self, filters: Filters) -> int:
        settings = self.play.settings
        pipeline = settings.pipelines[0]
        topic = await find_topic(settings.client, "dead")
        dry = self.chance.random() < 0.1 and not self.play.weather.calm
        async with open_log(settings.client, topic, _GROUP) as log:
            work = Replay(settings.client, pipeline, log, None, filters, None, 3, lambda _: None)
            timeout_ms = pipeline.guarantee.timeout_ms if self.play.exactly_once else None
            if timeout_ms is not None:
                await check_exactly_once(settings.client, log, timeout_ms)
            await work.run(None if dry else partial(open_writer, settings.client, log, timeout_ms))
            if work.tally.failures:
                self.play.breaks(f"dead-letter records cannot be replayed: {work.tally.failed}")
            return 0 if dry else work.tally.replayed


class ReplayPlay(Play):
    def prepare(self) -> None:
        chance = self.chance
        self.done = False
        self.exactly_once = chance.random() < 0.7
        self.settings = parse(self._document())
        raw, dead = chance.choice((1, 2, 3)), chance.choice((1, 1, 2))
        self.cluster.create("raw", raw, max_message_bytes="2000")
        self.cluster.create("dead", dead)
        self.cluster.committed = self._committed
        self._letters: dict[int, list[tuple[int, bytes, int]]] = {number: [] for number in range(dead)}
        self._write(raw, dead, chance.choice((1, 5, 20)))
        runs = chance.choice((1, 1, 2, 3))
        self.scenario = PlayScenario(runs, sum(map(len, self._letters.values())))
        for _ in range(runs):
            self.new()

    def drawn(self) -> list[Callable[[], None]]:
        return [*super().drawn(), Acts(self, self.chance).join]

    def _document(self) -> Mapping[str, Any]:
        table: dict[str, Any] = {
            "topics": ["raw"],
            "output.topic": "out",
            "transforms": ["assemble"],
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": "dead",
            "processing.guarantee": "exactly_once" if self.exactly_once else "at_least_once",
        }
        if self.exactly_once:
            table["producer.transaction.timeout.ms"] = 8_000
        return {"bootstrap.servers": "broker:9001,broker:9002,broker:9003", "pipeline": {"p": table}}

    def _write(self, raw: int, dead: int, most: int) -> None:
        """Letters of the partitions of the source, each of which has its letters in one partition."""
        chance = self.chance
        cause = Cause(ValueError("not mine"), pipeline="p", stage="Assemble", context=True)
        offsets = Counter[int]()
        for batch in range(chance.choice((1, 2, 4))):
            number = chance.randrange(dead)
            sources = [each for each in range(raw) if each % dead == number]
            log = self.cluster.log("dead", number)
            builder = DefaultRecordBatchBuilder(2, chance.choice((0, 1)), False, -1, -1, -1, 1 << 30)
            count = 0
            for delta in range(chance.randrange(1, most + 1) if sources else 0):
                source = chance.choice(sources)
                key = b"%d-%d-%d" % (number, batch, delta)
                offset = offsets[source]
                offsets[source] += chance.choice((1, 1, 5))
                own = ReadRecord("raw", source, offset, self.cluster.now_ms, key, key + b"." * 300, (("n", key),))
                letter = dead_letter(own, cause.headers(own))
                builder.append(delta, letter.timestamp, letter.key, letter.value, list(letter.headers))
                self._letters[number].append((log.end + delta, key, source))
                count += 1
            if count:
                assert log.append(bytes(builder.build()), 1 << 30).code == 0

    def new(self, former: Any = None) -> None:
        _Replayer(self, "replay")

    def _found(self, number: int) -> list[bytes]:
        return [record.key for _, record in self.cluster.log("raw", number).committed()]

    def _committed(self, group: str, offsets: Mapping[Any, Commit]) -> None:
        if self.exactly_once or group != _GROUP:
            return  # the marks of one transaction come one after the other
        for (_, number), commit in offsets.items():
            self._check_offsets(number, commit)

    def _check_offsets(self, number: int, commit: Commit | None) -> None:
        """All that counts as replayed is in the source."""
        if commit is None:
            return
        replayed = ReplayedOffsets.parse(commit.offset, commit.metadata)
        if replayed is None:
            self.breaks(f"nobody can read the commit of {number}: {commit}")
            return
        found: set[bytes] = set().union(*(self._found(each) for each in range(len(self.cluster.topics["raw"].logs))))
        for offset, key, _ in self._letters[number]:
            if offset in replayed and key not in found:
                self.breaks(f"{key!r}, at {offset} of dead-{number}, counts as replayed, and was not written: {commit}")

    def left(self) -> object:
        if not self.done and not self.alive:
            self.new()
        return None if self.done and not self.cluster.transactions.open else "no replay has ended well"

    def check_end(self) -> None:
        for number, letters in self._letters.items():
            commit = self.cluster.groups.committed(_GROUP).get(("dead", number))
            self._check_offsets(number, commit)
            end = self.cluster.log("dead", number).end
            # At least once, the slower one of two runs may commit what it has replayed itself.
            if letters and self.exactly_once and (commit is None or commit.offset != end):
                raise Broken(f"dead-{number} ends at {end}, and its commit is {commit}")
            for source in range(len(self.cluster.topics["raw"].logs)):
                wanted = [key for _, key, own in letters if own == source]
                found = [key for key in self._found(source) if key in wanted]
                if [*dict.fromkeys(found)] != wanted:
                    raise Broken(f"raw-{source} has {found}, not {wanted}")
                if self.exactly_once and found != wanted:
                    raise Broken(f"raw-{source} has records twice: {found}")
        self.check_left()
