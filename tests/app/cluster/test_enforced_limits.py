"""Names that are too long for brokers that enforce the limits, though the configuration says that none does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any, cast

import pytest
from aiokafka.errors import ClusterAuthorizationFailedError
from click.testing import CliRunner

from app.cluster.enforced_limits import CommitLimits, check_enforced, check_notes, commit_limits, limits_of
from app.cluster.name_uses import Audit, NotRead
from app.cluster.preflight import plan_pipeline
from app.commands import names
from app.config.parsing import parse
from app.kafka.admin import AdminClient
from transforms.errors import ConfigurationError
from transforms.identifiers import LIMIT_KEY


class Cluster:
    """Brokers that say of their limits what a test wants: by id, whether they enforce them, None for a refusal."""

    def __init__(self, **enforced: bool | None) -> None:
        self._enforced = {int(name.removeprefix("b")): value for name, value in enforced.items()}
        self.asked: list[int] = []

    async def describe_cluster(self) -> dict[str, Any]:
        """See `AIOKafkaAdminClient`."""
        return {"brokers": [{"node_id": number} for number in self._enforced]}

    async def broker_configs(self, broker: int, _: object) -> Mapping[str, str]:
        """See `AdminClient`."""
        self.asked.append(broker)
        if (enforced := self._enforced[broker]) is None:
            raise ClusterAuthorizationFailedError
        sizes = {"offset.metadata.max.bytes": str(1000 + broker), "offsets.retention.minutes": str(broker)}
        return {LIMIT_KEY: str(enforced).lower(), **sizes}


def settings(group: str, *, limited: bool) -> Any:
    """One pipeline whose group has this name."""
    table = {"topics": ["raw"], "output.topic": "orders", "transforms": ["offload"], "group.id": group}
    table["large.message.payload.store.class"] = "memory"
    return parse({"bootstrap.servers": "b:1", LIMIT_KEY: limited, "pipeline": {"p": table}}, {})


async def check(cluster: Cluster, group: str, *, limited: bool = False) -> None:
    """As the preflight does it."""
    found = settings(group, limited=limited)
    await check_enforced(cast(AdminClient, cluster), found.client, found.pipelines[0])


async def test_a_name_that_one_broker_enforces() -> None:
    """It is told by its key before anything is read, with the broker, although another one takes it."""
    with pytest.raises(ConfigurationError, match=f"broker 2 enforces the limit: its {LIMIT_KEY} is true") as refused:
        await check(Cluster(b1=False, b2=True), "g" * 250)
    assert [each.key for each in refused.value.each] == ["group.id"]
    assert "the group id has 250 characters, allowed are 249; shorten it" in str(refused.value)


async def test_a_name_that_no_broker_enforces() -> None:
    """It passes once each broker was asked; so does any where the user may not ask."""
    free, silent = Cluster(b1=False, b2=False), Cluster(b1=None)
    for cluster, asked in ((free, [1, 2]), (silent, [1])):
        await check(cluster, "g" * 250)
        assert sorted(cluster.asked) == asked


async def test_names_within_the_limits_cost_no_request() -> None:
    """Nor do those that were checked when the configuration was read."""
    cluster = Cluster(b1=True)
    await check(cluster, "g" * 249)
    await check(cluster, "g", limited=True)
    assert cluster.asked == []


async def test_what_a_broker_says_of_its_limits() -> None:
    """Its switch, its length of metadata and how long it keeps a commit; or its refusal."""
    cluster = cast(AdminClient, Cluster(b1=True, b2=None))
    found = await limits_of(cluster, 1)
    assert (found.enforced, found.metadata_bytes, found.retention_ms) == (True, 1001, 60_000)
    with pytest.raises(ClusterAuthorizationFailedError):
        await limits_of(cluster, 2)


@pytest.mark.parametrize("silent", [1, 2])
async def test_a_broker_that_may_not_be_asked_hides_no_other(silent: int) -> None:
    """Whichever it is: the one that says that it enforces the limits is heard."""
    brokers = {"b1": True, "b2": True, f"b{silent}": None}
    with pytest.raises(ConfigurationError, match=f"broker {3 - silent} enforces the limit"):
        await check(Cluster(**brokers), "g" * 250)


async def test_the_preflight_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline with a name that a broker refuses has no plan; no topic is asked for."""
    reached(monkeypatch, "app.cluster.preflight", Cluster(b1=True))
    found = settings("g" * 250, limited=False)
    with pytest.raises(ConfigurationError, match=r"^\[pipeline\.p\] group\.id: broker 1 enforces the limit"):
        await plan_pipeline(found.client, found.pipelines[0])


def reached(monkeypatch: pytest.MonkeyPatch, module: str, cluster: Cluster) -> None:
    """Lets a module reach this cluster."""

    @asynccontextmanager
    async def admin(_: object) -> AsyncIterator[Cluster]:
        yield cluster

    monkeypatch.setattr(f"{module}.admin", admin)


@pytest.mark.parametrize(
    ("brokers", "size", "minutes"),
    [
        ({"b2": False, "b3": False}, 1002, 2),
        ({"b1": None, "b3": False}, 1003, 3),
        ({"b3": False, "b4": None}, 1003, 3),
        ({"b1": None}, 4096, 7 * 24 * 60),
        ({}, 4096, 7 * 24 * 60),
    ],
)
async def test_what_all_brokers_take_of_commits(
    brokers: dict[str, bool | None], size: int, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strictest one counts; Kafka's defaults count for those that may not be asked, and for no other."""
    reached(monkeypatch, "app.cluster.enforced_limits", Cluster(**brokers))
    found = await commit_limits(settings("g", limited=True).client)
    assert found == CommitLimits(size, minutes * 60_000)


@pytest.mark.parametrize(
    ("more", "size", "refused"),
    [
        ({"transforms": ["assemble"]}, 38, True),
        ({"transforms": ["assemble"]}, 39, False),
        ({"transforms": ["inflate"]}, 37, False),
        ({"transforms": ["inflate"], "processing.guarantee": "exactly_once"}, 37, True),
        ({"transforms": ["inflate"], "large.message.strategy": "auto"}, 37, True),
        ({"transforms": ["chunk"], "processing.guarantee": "exactly_once"}, 0, False),
    ],
)
def test_room_for_what_is_noted_of_chunks(more: dict[str, object], size: int, refused: bool) -> None:  # noqa: FBT001
    """A pipeline that would fail at the first incomplete message does not start; nor one whose records came twice."""
    store = {} if "inflate" not in str(more) else {"large.message.payload.store.class": "memory"}
    table = {"topics": ["raw"], "output.topic": "orders", **store, **more}
    (pipeline,) = parse({"bootstrap.servers": "b:1", "pipeline": {"p": table}}, {}).pipelines
    caught = pytest.raises(ConfigurationError, match=rf"^transforms: .*metadata.max.bytes of a broker is {size};")
    with caught if refused else nullcontext():
        check_notes(pipeline, size)


@pytest.mark.parametrize(("failed", "status"), [(True, 1), (False, 0)])
def test_a_strict_audit_fails_for_what_it_could_not_read(
    failed: bool,  # noqa: FBT001
    status: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not for what no request of Kafka tells; without `--strict` it fails for neither."""

    async def audit(_: object) -> Audit:
        return Audit((), (NotRead("groups", "no right", failed),), None)

    monkeypatch.setattr("app.commands.names.cluster.audit", audit)
    runner = CliRunner()
    command = ["audit", "-b", "localhost:1"]
    found = [runner.invoke(names.command, [*command, *more], standalone_mode=False) for more in ([], ["--strict"])]
    assert [each.return_value for each in found] == [0, status]
