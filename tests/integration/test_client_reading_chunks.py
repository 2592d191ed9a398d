"""What every consumer promises of chunks: messages come whole and once, and no commit passes one that is not whole."""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Any

import pytest

from app.chunks import Discarded
from app.chunks.inbox import Inbox
from tests.integration.aiokafka_records import Source
from tests.integration.chunk_records import delete_up_to, interleaved, pieces, plain, value_of
from tests.integration.client_config import Config
from tests.integration.client_readers import CHUNKS, CLIENTS, Client
from transforms.commit_metadata import Noted, noted

TIGHT: Config = {"max.pending.chunked.message": 1}
EXPIRES = "expire.time.of.incomplete.chunked.message.ms"

every = pytest.mark.parametrize("client", CHUNKS, ids=lambda each: each.__name__)
one_each = pytest.mark.parametrize("client", CLIENTS, ids=lambda each: each.__name__)


def reported(found: list[Discarded]) -> list[tuple[str, str | None, list[int]]]:
    """Of each discarded message the reason, the uuid, and the offsets of the chunks that are given back."""
    return [(each.reason, each.uuid, [record.offset for record in each.records]) for each in found]


# --- memory -----------------------------------------------------------------------------------------------------------


@every
async def test_more_is_pending_than_memory_holds(source: Source, client: Client) -> None:
    """What is over a limit, of messages or of bytes, is read again; all come once, in the order of the last chunks."""
    log = list(interleaved([pieces(f"u{n}", 3_000, n) for n in range(8)], 3))
    await source.write(log)
    for limits in (TIGHT, {"max.pending.chunked.bytes": 20_000, "chunk.max.message.bytes": 5_000}):
        found: list[Discarded] = []
        async with client(source, limits, found.append) as reader:
            got = await reader.read(8)
            assert await reader.position() == len(log)
            counts, stats = reader.consumer.counts, reader.consumer.stats()
        assert (counts.assembled, stats["pendingChunkedBytes"], found) == (8, 0, [])
        assert counts.set_aside == stats["setAside"] >= 2
        assert {each.value for each in got} == {value_of(3_000, n) for n in range(8)}
        assert [each.offset for each in got] == sorted(each.offset for each in got)


@one_each
async def test_chunks_that_kafka_has_removed(source: Source, client: Client) -> None:
    """What is gone before it is read again makes its message `missing-first`; what is left is given back."""
    found = list[Discarded]()
    a, b = pieces("a", 1_000, 1), pieces("b", 2_000, 2)
    await source.write([b[0], a[0], b[1]])
    async with client(source, TIGHT, found.append) as reader:
        await reader.becomes(lambda: reader.consumer.stats()["pendingChunkedMessages"] == 2, "both have begun")
        await delete_up_to(source.broker, source.topic, 2)
        await source.write([a[1], b[2], plain(b"end")])
        assert await reader.values(2) == [value_of(2_000, 2), b"end"]
    assert reported(found) == [("missing-first", "a", [3])]


@one_each
async def test_a_message_that_begins_before_what_is_read(source: Source, client: Client) -> None:
    """Its first chunk is looked for up to `chunk.lookback` offsets back, and not where retention has removed it."""
    chunks = pieces("u", 3_000, 1)
    await source.write([chunks[0], plain(b"a"), plain(b"b"), *chunks[1:], plain(b"end")])

    async def check(lookback: int, values: list[bytes], discarded: list[int], begin: int | None = 3) -> None:
        found: list[Discarded] = []
        async with client(source, {"chunk.lookback": lookback}, found.append, assigned={0: begin}) as reader:
            assert await reader.values(len(values)) == values
        assert reported(found) == [("missing-first", "u", discarded)] * bool(discarded)

    await asyncio.gather(check(3, [value_of(3_000, 1), b"end"], []), check(2, [b"end"], [3, 4, 5, 6]))
    await delete_up_to(source.broker, source.topic, 4)
    await check(10_000, [b"end"], [4, 5, 6], None)


# --- commits and positions --------------------------------------------------------------------------------------------


@every
async def test_commit_holds_and_restart_repeats_nothing(source: Source, client: Client) -> None:
    """No commit passes a message that is not whole; after a restart it comes, and what has come does not come again."""
    slow, quick = pieces("slow", 3_000, 1), pieces("quick", 2_000, 2)
    await source.write([plain(b"a"), slow[0], quick[0], plain(b"b"), slow[1], quick[1], quick[2], plain(b"c")])

    async def before(way: str) -> None:
        config = {"group.id": f"{source.topic}-{way}", "enable.auto.commit": way == "auto"}
        async with client(source, config) as reader:
            assert await reader.values(4) == [b"a", b"b", value_of(2_000, 2), b"c"]
            if way != "auto":
                await reader.commit(8 if way == "offsets" else None)
        offset, metadata = (await reader.marks())[0]
        assert (offset, noted(metadata)) == (1, Noted(8))

    async def behind(way: str) -> None:
        async with client(source, {"group.id": f"{source.topic}-{way}"}) as reader:
            assert await reader.values(2) == [value_of(3_000, 1), b"d"]
            await reader.commit()
        assert await reader.marks() == {0: (12, "")}

    ways = ("commit", "offsets", "auto")
    await asyncio.gather(*map(before, ways))
    await source.write([*slow[2:], plain(b"d")])
    await asyncio.gather(*map(behind, ways))


@one_each
async def test_restart_anywhere(source: Source, client: Client) -> None:
    """A consumer that is restarted after every three records gets each once, wherever it keeps its offsets."""
    found = list[Discarded]()
    messages = [*(pieces(f"u{n}", 3_000, n) for n in range(4)), *([plain(b"%d" % n)] for n in range(4))]
    await source.write(list(interleaved(messages, 5)))

    async def check(kept: str) -> None:
        got: list[Any] = []
        at = 0
        config: Config = {**TIGHT, "group.id": f"{source.topic}-{kept}", "enable.auto.commit": kept == "auto"}
        while len(got) < 8:
            assigned: dict[int, int | None] | None = {0: at} if kept in {"offset", "position"} else None
            async with client(source, config, found.append, assigned=assigned) as reader:
                for each in await reader.read(min(3, 8 - len(got))):
                    got.append(each.value)
                    at = each.offset + 1
                if kept == "position":
                    at = await reader.position()
                if kept in {"commit", "record"}:
                    await reader.commit(at if kept == "record" else None)
        assert set(got) == {value_of(3_000, n) for n in range(4)} | {b"%d" % n for n in range(4)}
        assert len(got) == 8

    await asyncio.gather(*map(check, ("commit", "auto", "record", "offset", "position")))
    assert found == []


@one_each
async def test_commit_of_what_is_done(source: Source, client: Client) -> None:
    """An application may commit less than it was given: what is behind that comes again. Its own metadata is kept."""
    chunks = pieces("u", 1_500)
    await source.write([chunks[0], plain(b"a"), *chunks[1:]])
    async with client(source) as reader:
        assert await reader.values(2) == [b"a", value_of(1_500)]
        await reader.commit(2, "my own")
        assert await reader.marks() == {0: (0, "my own")}
        await reader.commit(2)
    async with client(source) as reader:
        assert await reader.values() == [value_of(1_500)]
        await reader.commit(len(chunks) + 1)
    assert await reader.marks() == {0: (len(chunks) + 1, "")}


@one_each
async def test_a_note_of_another_log(source: Source, client: Client) -> None:
    """Where reading begins before the commit, its note says nothing: every record is given."""
    await source.write([plain(b"%d" % n) for n in range(3)])
    async with client(source) as reader:
        assert await reader.values(3) == [b"0", b"1", b"2"]
        await reader.commit(50, "wideload:delivered=100")
    async with client(source) as reader:  # the commit is behind the end, so reading is reset to the beginning
        assert await reader.values(3) == [b"0", b"1", b"2"]


@one_each
async def test_a_commit_before_the_first_record(wide: Source, client: Client) -> None:
    """What a commit notes of a partition outlasts commits that are made before a record of it has come."""
    slow = pieces("slow", 3_000, 1)
    await wide.write([slow[0], plain(b"given")], 0)
    await wide.write([plain(b"x")], 1)
    async with client(wide) as reader:
        assert sorted(await reader.values(2)) == [b"given", b"x"]
        await reader.commit()
    async with client(wide, assigned={0: None, 1: None}) as reader:
        await reader.pause(0)
        assert await reader.poll(0.5) == []
        await reader.commit()
        assert noted((await reader.marks())[0][1]) == Noted(2)
        await wide.write(slow[1:], 0)
        await reader.resume(0)
        assert await reader.values() == [value_of(3_000, 1)]


# --- what makes no message --------------------------------------------------------------------------------------------


@every
async def test_discarded_messages(source: Source, client: Client) -> None:
    """The callback has them, whole, before what lies behind; while it fails, they come again, and no commit passes."""
    seen = list[Discarded]()
    chunks = pieces("u", 3_000)
    await source.write([chunks[0], chunks[2], plain(b"end"), *pieces("late", 3_000)[:2], *pieces("aside", 3_000)[:3]])

    def discarded(message: Discarded) -> None:
        seen.append(message)
        if len(seen) == 1:
            raise OSError("no dead-letter topic")

    async with client(source, {**TIGHT, EXPIRES: 200}, discarded) as reader:
        with pytest.raises(OSError, match="no dead-letter topic"):
            await reader.read()
        for offset in (None, 2):
            await reader.commit(offset)
            assert await reader.committed() == {0: 0}
        assert await reader.position() <= 1
        assert await reader.values() == [b"end"]
        await reader.becomes(lambda: len(seen) == 4, "the others have expired")
        await reader.commit()
    assert reported(seen[:2]) == [("out-of-order", "u", [0, 1])] * 2
    assert sorted(reported(seen[2:])) == [("expired", "aside", [5, 6, 7]), ("expired", "late", [3, 4])]
    assert await reader.committed() == {0: 8}


@one_each
async def test_discarded_messages_are_logged(source: Source, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Without a callback the log has a warning, and the records behind come."""
    await source.write(pieces("half", 3_000)[:2])
    async with client(source, {EXPIRES: 200}) as reader:
        await reader.becomes(lambda: "expired" in reader.consumer.counts.discarded, "it has expired")
        await source.write([plain(b"next")])
        assert await reader.values() == [b"next"]
        assert await reader.pending() == 0
    assert re.search(r"partition 0: a message of chunks was discarded: expired \(.*\); 2 chunks", caplog.text)


# --- calls ------------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("at", ["a checksum", "a put"])
async def test_an_interrupt_while_records_are_put_where_they_wait_or_put_together(
    wide: Source, client: Client, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next calls get the records and what was fetched with them; so does the next consumer of the group."""
    owner, name, error = (hashlib, "sha256", MemoryError) if at == "a checksum" else (Inbox, "put", client.interrupt)
    real: Any = getattr(owner, name)
    errors: list[BaseException] = []

    def failing(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(*arguments)

    monkeypatch.setattr(owner, name, failing)
    chunks = pieces("u", 3_000, 1)
    for number in (0, 1):
        await wide.write([chunks[0], *[plain(b"a")] * 3, *chunks[1:], plain(b"end")], number)
    for restarts in (False, True):
        given: list[tuple[int, int]] = []
        failed = 0
        errors.append(error("now"))
        while len(set(given)) < 10:
            async with client(wide, {"group.id": f"{wide.topic}-{restarts}", "chunk.lookback": 0}) as reader:
                while len(set(given)) < 10:
                    try:
                        given += [(each.partition, each.offset) for each in await reader.read()]
                    except error:
                        failed += 1
                        await reader.commit()
                        for number, offset in (await reader.committed()).items():
                            assert offset == 0 or (number, len(chunks) + 2) in given
                        if restarts:
                            break
        assert (failed, len(set(given))) == (1, 10)
        assert len(given) == 10 or client.repeats


@every
async def test_records_of_a_paused_partition_wait(source: Source, client: Client) -> None:
    """What was fetched of it is neither lost nor given twice, and what is sought while it is paused comes next."""
    first, *rest = pieces("u", 3_000, 1)
    await source.write([first, plain(b"a"), *rest, plain(b"b"), plain(b"c")])
    async with client(source) as reader:
        assert await reader.values() == [b"a"]
        await reader.pause(0)
        assert await reader.poll(0.3) == []
        await reader.resume(0)
        assert await reader.values(2) == [value_of(3_000, 1), b"b"]
        await reader.pause(0)
        await reader.seek(6)
        assert await reader.poll(0.3) == []
        await reader.resume(0)
        assert await reader.values(2) == [b"b", b"c"]


@every
async def test_a_call_that_waits_commits(source: Source, client: Client) -> None:
    """What was given is committed while a call waits, and not what was only fetched."""
    await source.write([plain(b"%d" % n) for n in range(3)])
    more: Config = {"enable.auto.commit": True, "auto.commit.interval.ms": 100}
    async with client(source, more) as reader:
        assert await reader.values(2) == [b"0", b"1"]
        await reader.commit()
        assert (await reader.committed(), await reader.position()) == ({0: 2}, 2)
        assert await reader.values() == [b"2"]
        waiting = asyncio.create_task(reader.poll(5.0, 1))
        while (await reader.committed()) != {0: 3}:
            assert not waiting.done()
            await asyncio.sleep(0.02)
        await source.write([plain(b"end")])
        assert [each.value for each in await waiting] == [b"end"]
