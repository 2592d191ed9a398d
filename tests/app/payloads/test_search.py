"""The search of topics that nobody has named: on plain references, and on a real broker."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from app.config.client import embedded_client_settings
from app.config.settings import ClientSettings
from app.kafka.admin import AdminClient
from app.kafka.topics import Identity, Operation
from app.payloads.search import Search, _Searching, refers, search
from app.payloads.sweep_settings import SweepSettings
from tests.app.payloads.swept import referring, write
from tests.integration.topics import write_raw
from transforms.found_references import BEGINS, FoundReference
from transforms.record import Record

MakeTopic = Callable[..., str]
ROOT = "s3://bucket/payloads/"


@pytest.fixture
def client(broker: str) -> ClientSettings:
    """How to reach the broker."""
    return embedded_client_settings({"bootstrap.servers": broker})


@pytest.mark.parametrize("topic", ["orders", "values", "keys"])
def test_topic_of_a_path(topic: str) -> None:
    """A path leads to the payloads of a topic under each name of the store, also if the topic is named as a folder is.

    bakdata's serializers keep payloads in the folders `values` and `keys` of a topic.
    """
    settings = SweepSettings(ClientSettings("b:1"), {}, (topic,), other_roots=("s3://theirs/",))

    def leads_there(found: FoundReference) -> bool | None:
        return refers(settings, "s3://b/p/", found)

    leads = [f"s3://b/p/{topic}/1f", f"s3://other/{topic}/1f", f"s3://b/p/{topic}/values/1", f"s3://b/p/{topic}/keys/1"]
    others = [f"s3://b/p/{topic}s/1f", f"s3://b/{topic}/p/1f", f"s3://b/p/q/{topic}1", topic, f"s3://theirs/{topic}/1f"]
    assert [leads_there(FoundReference("value", path=path)) for path in leads] == [True] * 4
    assert [leads_there(FoundReference("value", path=path)) for path in others] == [False] * 5
    errors = [f"{BEGINS}s3://b/p/{topic}/ and is not marked", f"{BEGINS}s3://b/p/{topic}s/ and …", "is malformed"]
    assert [leads_there(FoundReference("value", error=error)) for error in errors] == [True, False, None]
    assert refers(settings, None, FoundReference("value", path=others[0]))


def test_carriers_that_were_forgotten(broker: str, client: ClientSettings, make_topic: MakeTopic) -> None:
    """A topic whose newest records refer to the payloads is found, with a record; one that is unclear is counted.

    A record of another client, with any bytes as the name of a header, ends no search.
    """
    copies, flagged, odd, plain, ignored, known, named = (make_topic(2) for _ in range(7))
    swept = f"{copies}-swept"
    carried = referring(f"{ROOT}{swept}/1f")
    theirs = referring(f"{ROOT}{swept}-2/1f")
    write(broker, copies, Record(b"k", b"plain"), carried, theirs, partition=1)
    asyncio.run(write_raw(broker, named, [Record(carried.key, carried.value, [("\udcff", b"x"), *carried.headers])]))
    write(broker, flagged, Record(None, f"\x01{ROOT}{swept}/1".encode()))
    write(broker, odd, Record(b"k", b"\xff", carried.headers), Record(b"k", b"\xfe", carried.headers), theirs)
    write(broker, plain, Record(b"k", b"plain"), referring("s3://elsewhere/x/1"), theirs)
    for topic in (ignored, known):
        write(broker, topic, carried)
    settings = SweepSettings(client, {}, (swept,), carriers=(known,), ignored=(f"{ignored[:-1]}?",))
    found = search(settings, ROOT)
    places = {name: (at.partition, at.offset) for name, at in found.found.items()}
    assert places == {copies: (1, 1), flagged: (0, 0), named: (0, 0)}
    told = ", ".join(f"{name} (partition {at[0]} offset {at[1]})" for name, at in sorted(places.items()))
    assert f"refer to these payloads: {told}; specify each" in found.refusals[0]
    # A record that does not say where it leads is no reason to refuse: anybody may write one into any topic.
    assert len(found.refusals) == len(found.warnings) == 1
    assert f"topic {odd}, which was not specified, has 2 records" in found.warnings[0]
    assert "in partition 0 at offset 0: malformed reference: value" in found.warnings[0]
    assert found.searched >= 5
    # Of each partition only the newest records are looked at.
    write(broker, copies, theirs, partition=1)
    assert set(search(dataclasses.replace(settings, search_records=1), ROOT).found) == {flagged, named}


def test_older_records_come_after_the_newest(broker: str, client: ClientSettings, make_topic: MakeTopic) -> None:
    """A reference among the oldest records that are searched is found, behind plain ones. None counts twice."""
    topic, odd = make_topic(), make_topic()
    write(broker, odd, *[Record(b"k", b"\xff", [("large-message", b"true")])] * 30)
    swept = f"{topic}-swept"
    write(broker, topic, referring(f"{ROOT}{swept}/1f"))
    for _ in range(4):
        write(broker, topic, *[Record(b"k", b"plain")] * 30)
    settings = SweepSettings(client, {}, (swept,), search_records=121)
    found = search(settings, ROOT)
    assert (found.found[topic].offset, found.unclear[odd].records) == (0, 30)
    assert topic not in search(dataclasses.replace(settings, search_records=120), ROOT).found


@pytest.mark.parametrize("limit_s", [0.0, 0.7])
def test_search_has_an_end(
    broker: str, client: ClientSettings, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, limit_s: float
) -> None:
    """What there was no time for is as good as found: it is a reason to refuse."""
    topic = make_topic(1)
    for _ in range(50):
        write(broker, topic, Record(b"k", b"plain"))
    monkeypatch.setattr(_Searching, "_look", lambda *_: time.sleep(0.1))
    begun = time.monotonic()
    found = search(SweepSettings(client, {}, ("swept",), search_time=timedelta(seconds=limit_s)), ROOT)
    assert time.monotonic() - begun < 15
    assert found.unread[topic] == "the time limit was reached; raise --search-time"
    assert f"{topic} (the time limit was reached; raise --search-time)" in found.refusals[0]


def test_topics_that_may_not_be_read(
    broker: str, client: ClientSettings, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that these credentials may not read is a reason to refuse, and the others are searched."""
    hidden, refused, gone, carrier = (make_topic() for _ in range(4))
    write(broker, carrier, referring(f"{ROOT}swept/1f"))
    identities = {name: Identity(None, 1) for name in (refused, gone, carrier)}
    identities[hidden] = Identity(None, 1, operations=frozenset({Operation.WRITE}))
    identities["__own"] = Identity(None, 1, operations=frozenset(), internal=True)
    monkeypatch.setattr("app.payloads.search.listed", lambda _: identities)
    offsets = AdminClient.offsets

    async def asked(self: AdminClient, places: Iterable[TopicPartition], when: int) -> dict[TopicPartition, int]:
        names = {place.topic for place in places}
        if gone in names:
            raise UnknownTopicOrPartitionError(gone)
        if refused in names:
            raise TopicAuthorizationFailedError(refused)
        return await offsets(self, places, when)

    monkeypatch.setattr(AdminClient, "offsets", asked)
    found = search(SweepSettings(client, {}, ("swept",)), ROOT)
    assert (found.unread, set(found.found)) == (dict.fromkeys((hidden, refused), "may not be read"), {carrier})
    (carriers, unknown) = found.refusals
    assert carrier in carriers
    assert "it is not known whether records of these topics refer to them" in unknown


def test_refusal_names_some() -> None:
    """A refusal names ten topics, and says how many more there are."""
    found = Search(unread={f"t{number:02}": "may not be read" for number in range(12)})
    assert found.refusals[0].count("may not be read") == 10
    assert "t09 (may not be read) and 2 more; specify each with --carrier" in found.refusals[0]
