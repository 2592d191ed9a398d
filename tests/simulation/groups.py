"""The coordinator of groups: members, generations, offsets; the classic protocol, as Kafka's `GroupCoordinator`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.loop import SimulatedLoop

ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING, FENCED_INSTANCE, ID_REQUIRED, UNSTABLE = 22, 25, 27, 82, 79, 88
METADATA_TOO_LARGE, _MOST_METADATA = 12, 4096

Reply = Callable[..., None]
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Commit:
    offset: int
    epoch: int
    metadata: str


@dataclass(slots=True, eq=False)
class _Member:
    id: str
    instance: str | None
    protocols: Any
    session_s: float
    rebalance_s: float
    join: Reply | None = None
    sync: Reply | None = None
    timer: Any = None
    assignment: bytes = b""


@dataclass(slots=True, eq=False)
class _Group:
    name: str
    state: str = "Empty"
    generation: int = 0
    leader: str | None = None
    members: dict[str, _Member] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)  # that were given, and have not joined yet
    timer: Any = None
    offsets: dict[Place, Commit] = field(default_factory=dict)
    pending: dict[int, dict[Place, Commit]] = field(default_factory=dict)  # by producer id


class Groups:
    def __init__(self, later: Callable[..., Any]) -> None:
        self._later = later
        self._groups: dict[str, _Group] = {}
        self._given = 0

    def group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group(name))

    def committed(self, name: str) -> Mapping[Place, Commit]:
        return self.group(name).offsets

    def join(self, request: Any, reply: Reply) -> None:
        group = self.group(request.group)
        instance = getattr(request, "group_instance_id", None)
        member_id = request.member_id
        if not member_id:
            former = next((each for each in group.members.values() if instance and each.instance == instance), None)
            self._given += 1
            new_id = f"{instance or 'member'}-{self._given}"
            if former is not None:
                self._replace(group, former, new_id, request, reply)
                return
            if instance is None and request.API_VERSION >= 4:
                group.ids.add(new_id)
                self._joined(reply, ID_REQUIRED, new_id)
                return
            member_id = new_id
        elif member_id not in group.members and member_id not in group.ids:
            self._joined(reply, UNKNOWN_MEMBER, "")
            return
        group.ids.discard(member_id)
        member = group.members.get(member_id)
        if member is None:
            member = _Member(member_id, instance, (), 0, 0)
            group.members[member_id] = member
        elif instance is not None and member.instance != instance:
            self._joined(reply, FENCED_INSTANCE, member_id)
            return
        self._take(member, request, reply)
        self._prepare(group)

    def _take(self, member: _Member, request: Any, reply: Reply) -> None:
        member.protocols = [(name, bytes(data)) for name, data in request.group_protocols]
        member.session_s, member.rebalance_s = request.session_timeout / 1000, request.rebalance_timeout / 1000
        if member.join is not None:
            member.join = None  # the former connection is gone
        member.join = reply
        if member.timer is not None:
            member.timer.cancel()

    def _replace(self, group: _Group, former: _Member, new_id: str, request: Any, reply: Reply) -> None:
        """A static member has come again under another id (KIP-345)."""
        del group.members[former.id]
        if former.timer is not None:
            former.timer.cancel()
        if former.join is not None:
            self._joined(former.join, FENCED_INSTANCE, former.id)
        if former.sync is not None:
            former.sync(error_code=FENCED_INSTANCE, member_assignment=b"")
        member = _Member(new_id, former.instance, former.protocols, former.session_s, former.rebalance_s)
        member.assignment = former.assignment
        group.members[new_id] = member
        led, before = group.leader == former.id, former.protocols
        if led:
            group.leader = new_id
        self._take(member, request, reply)
        if group.state == "Stable" and member.protocols == before:
            member.join = None
            # Not the leader by this answer, or it would assign (KAFKA-7728).
            leader = former.id if led else group.leader
            reply(
                error_code=0,
                generation_id=group.generation,
                group_protocol=member.protocols[0][0],
                leader_id=leader,
                member_id=new_id,
                members=[],
            )
            self._rearm(group, member)
        else:
            self._prepare(group)

    @staticmethod
    def _joined(reply: Reply, code: int, member_id: str) -> None:
        reply(error_code=code, generation_id=-1, group_protocol="", leader_id="", member_id=member_id, members=[])

    def _prepare(self, group: _Group) -> None:
        if group.state != "PreparingRebalance":
            group.state = "PreparingRebalance"
            for member in group.members.values():
                if member.sync is not None:
                    member.sync(error_code=REBALANCING, member_assignment=b"")
                    member.sync = None
                    self._rearm(group, member)
            longest_s = max((each.rebalance_s for each in group.members.values()), default=0.0)
            group.timer = self._later(longest_s, self._complete, group)
        if all(each.join is not None for each in group.members.values()):
            self._complete(group)

    def _complete(self, group: _Group) -> None:
        if group.state != "PreparingRebalance":
            return
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None
        for each in [each for each in group.members.values() if each.join is None and each.instance is None]:
            self._remove(group, each)
        joined = [each for each in group.members.values() if each.join is not None]
        group.generation += 1
        if not joined:
            group.state = "Empty" if not group.members else group.state
            if group.members:
                group.timer = self._later(5.0, self._complete, group)
            return
        if group.leader not in {each.id for each in joined}:
            group.leader = joined[0].id
        group.state = "CompletingRebalance"
        protocol = joined[0].protocols[0][0]
        rows = [
            {
                "member_id": each.id,
                "group_instance_id": each.instance,
                "member_metadata": dict(each.protocols)[protocol],
            }
            for each in group.members.values()
        ]
        for each in joined:
            reply, each.join = each.join, None
            assert reply is not None
            reply(
                error_code=0,
                generation_id=group.generation,
                group_protocol=protocol,
                leader_id=group.leader,
                member_id=each.id,
                members=rows if each.id == group.leader else [],
            )
            self._rearm(group, each)

    def _rearm(self, group: _Group, member: _Member) -> None:
        if member.timer is not None:
            member.timer.cancel()
        member.timer = self._later(member.session_s, self._expire, group, member)

    def _expire(self, group: _Group, member: _Member) -> None:
        # Who waits for the group is alive (`hasSatisfiedHeartbeat` of Kafka's `ClassicGroupMember`).
        if group.members.get(member.id) is member and member.join is None and member.sync is None:
            self._remove(group, member)
            self._moved_on(group)

    def _remove(self, group: _Group, member: _Member) -> None:
        del group.members[member.id]
        if member.timer is not None:
            member.timer.cancel()
        if member.sync is not None:
            member.sync(error_code=UNKNOWN_MEMBER, member_assignment=b"")
            member.sync = None
        if member.join is not None:
            self._joined(member.join, UNKNOWN_MEMBER, "")
            member.join = None

    def _moved_on(self, group: _Group) -> None:
        if group.members:
            self._prepare(group)
        else:
            group.state, group.leader = "Empty", None
            group.generation += 1

    def _found(self, group: _Group, member_id: str, generation: int, instance: str | None = None) -> tuple[Any, int]:
        if instance is not None:
            same = next((each for each in group.members.values() if each.instance == instance), None)
            if same is not None and same.id != member_id:
                return None, FENCED_INSTANCE
        member = group.members.get(member_id)
        if member is None:
            return None, UNKNOWN_MEMBER
        if generation != group.generation:
            return None, ILLEGAL_GENERATION
        return member, 0

    def sync(self, request: Any, reply: Reply) -> None:
        group = self.group(request.group)
        instance = getattr(request, "group_instance_id", None)
        member, code = self._found(group, request.member_id, request.generation_id, instance)
        if member is None:
            reply(error_code=code, member_assignment=b"")
            return
        self._rearm(group, member)
        if group.state == "PreparingRebalance":
            reply(error_code=REBALANCING, member_assignment=b"")
        elif group.state == "Stable":
            reply(error_code=0, member_assignment=member.assignment)
        else:
            member.sync = reply
            if member.id == group.leader:
                given = {member_id: bytes(data) for member_id, data in request.group_assignment}
                group.state = "Stable"
                for each in group.members.values():
                    each.assignment = given.get(each.id, b"")
                    if each.sync is not None:
                        each.sync(error_code=0, member_assignment=each.assignment)
                        each.sync = None
                        self._rearm(group, each)

    def heartbeat(self, request: Any, reply: Reply) -> None:
        group = self.group(request.group)
        generation = request.generation_id if hasattr(request, "generation_id") else request.generation
        member_id = request.member_id if hasattr(request, "member_id") else request.member
        member, code = self._found(group, member_id, generation, getattr(request, "instance", None))
        if member is None:
            reply(error_code=code)
            return
        self._rearm(group, member)
        reply(error_code=REBALANCING if group.state == "PreparingRebalance" else 0)

    def leave(self, request: Any, reply: Reply) -> None:
        group = self.group(request.group)
        member = group.members.get(request.member_id)
        if member is None:
            known = request.member_id in group.ids
            group.ids.discard(request.member_id)
            reply(error_code=0 if known else UNKNOWN_MEMBER)
            return
        reply(error_code=0)
        self._remove(group, member)
        self._moved_on(group)

    def forget(self, topic: str) -> None:
        for group in self._groups.values():
            for place in [each for each in group.offsets if each[0] == topic]:
                del group.offsets[place]

    def commit(self, request: Any) -> tuple[int, str]:
        """Checks a commit and applies it; the code, and who has sent it."""
        names = request.SCHEMA.names
        ours = "group" in names
        name = request.group if ours else request.consumer_group
        generation = request.generation if ours else request.consumer_group_generation_id
        member_id = request.member if ours else request.consumer_id
        group = self.group(name)
        if generation < 0 and not group.members:
            code = 0
        else:
            member, code = self._found(group, member_id, generation, getattr(request, "instance", None))
            if member is not None:
                self._rearm(group, member)
                code = REBALANCING if group.state == "CompletingRebalance" else 0
        return code, name

    def take(self, name: str, offsets: Mapping[Place, Commit]) -> Mapping[Place, int]:
        codes = {place: METADATA_TOO_LARGE * (len(each.metadata) > _MOST_METADATA) for place, each in offsets.items()}
        self.group(name).offsets.update({place: each for place, each in offsets.items() if not codes[place]})
        return codes

    def fetched(self, name: str, places: Any, *, stable: bool) -> Mapping[Place, tuple[Commit, int]]:
        """The committed offsets, -1 for none; each with its code."""
        group = self.group(name)
        open_places = {place for each in group.pending.values() for place in each}
        none = Commit(-1, -1, "")
        found = {}
        for place in group.offsets if places is None else places:
            unstable = stable and place in open_places
            found[place] = (none, UNSTABLE) if unstable else (group.offsets.get(place, none), 0)
        return found

    def take_pending(self, name: str, producer_id: int, offsets: Mapping[Place, Commit]) -> None:
        """Offsets in a transaction, which count once it has been committed."""
        self.group(name).pending.setdefault(producer_id, {}).update(offsets)

    def drop_pending(self, name: str, producer_id: int, places: Iterable[Place]) -> None:
        """Forgets offsets of an open transaction, whichever producer with this id has sent them."""
        pending = self.group(name).pending.get(producer_id, {})
        for place in places:
            pending.pop(place, None)

    def refusal(self, name: str, member_id: str, generation: int, instance: str | None) -> int:
        """The code for offsets of a transaction by somebody who is no member of this generation; 0 for a member."""
        return int(self._found(self.group(name), member_id, generation, instance)[1])

    def end_pending(self, name: str, producer_id: int, *, commit: bool) -> None:
        offsets = self.group(name).pending.pop(producer_id, {})
        if commit:
            self.group(name).offsets.update(offsets)

    def described(self, name: str) -> Mapping[str, Any]:
        group = self._groups.get(name)
        row: dict[str, Any] = {"group_id": name, "state": "Dead", "protocol_type": "", "protocol": "", "members": []}
        if group is None:
            return row
        hidden = {"client_id": "", "client_host": "", "metadata": b"", "assignment": b""}
        row["members"] = [
            {"member_id": each.id, "instance_id": each.instance, **hidden} for each in group.members.values()
        ]
        return {**row, "state": group.state, "protocol_type": "consumer"}


TOPIC = "__consumer_offsets"
NOT_AVAILABLE, NOT_AVAILABLE_BEFORE_5 = 78, 5
_KEPT = 200


class OffsetsLog:
    """The topic in which a cluster keeps the committed offsets, after a kill of all brokers.

    The new leader of a partition of `__consumer_offsets` has the high watermark of its disk, which may be seconds old.
    Until its followers have fetched, the coordinator answers as of that, and ListOffsets says that the latest offset is
    not available (KIP-207). What is written in that time is acknowledged once all replicas have it.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._clock = loop.time
        self._held: list[Callable[[], None]] = []
        self._commits: deque[tuple[float, str, Mapping[Place, Commit]]] = deque(maxlen=_KEPT)
        self._seen_s = self._until_s = 0.0

    def note(self, group: str, offsets: Mapping[Place, Commit]) -> None:
        """Takes in all committed offsets of a group, which have just changed."""
        self._commits.append((self._clock(), group, dict(offsets)))

    def fall_behind(self, lag_s: float, until_s: float) -> None:
        """From now on, and until a time, answers are those of some seconds ago."""
        self._seen_s, self._until_s = self._clock() - lag_s, until_s
        self._held.clear()  # it is gone with the brokers
        held: list[Callable[[], None]] = []
        self._held = held
        self._loop.call_at(until_s, self._release, held)

    def hold(self, write: Callable[[], None]) -> None:
        """Writes later, when all replicas have what was written before."""
        self._held.append(write)

    def _release(self, held: list[Callable[[], None]]) -> None:
        for write in held:
            write()
        held.clear()

    @property
    def left_s(self) -> float:
        """How long answers are old from now on; 0 if they are not."""
        return max(0.0, self._until_s - self._clock())

    def seen(self, group: str) -> Mapping[Place, Commit]:
        """The committed offsets of a group as a coordinator that is behind tells them."""
        found: Mapping[Place, Commit] = {}
        for when_s, name, offsets in self._commits:
            if name == group and when_s <= self._seen_s:
                found = offsets
        return found

    def refusal(self, version: int) -> int:
        """The error of ListOffsets in a version; 0 if there is none."""
        if not self.left_s:
            return 0
        return NOT_AVAILABLE if version >= 5 else NOT_AVAILABLE_BEFORE_5
