"""Which payloads no record refers to, on plain rows."""

from __future__ import annotations

from collections.abc import Sequence

from transforms.orphans import STATES, Listed, Marking, Tally

CUTOFF = 1_000_000


def marked(payloads: Sequence[tuple[str, int]], references: Sequence[str | None], **more: bool) -> dict[str, str]:
    """The states of payloads, given with their times."""
    rows = [(0, (path, "t", 1, modified)) for path, modified in payloads] + [(1, (path, 0)) for path in references]
    rows.sort(key=lambda row: (row[1][0] or "", row[0]))
    found = list(Marking(CUTOFF, **more).marked(rows))
    assert all(why == STATES[state] for *_, state, why in found)
    return {path: state for path, *_, state, _ in found}


def test_states() -> None:
    """A payload is live if one reference leads to it, young if it is not older than the cutoff, else an orphan.

    A file to which nobody of the project has given its name is not one.
    """
    orphan, uuid = "file:///r/t/" + "0f" * 32, "file:///r/t/0123abcd-0123-4123-8123-0123456789ab"
    others = ["file:///r/t/sales.csv", "file:///r/t/" + "0F" * 32, "file:///r/t/" + "0f" * 33, f"{orphan}\n"]
    payloads = [
        ("live", 1),
        ("shared", 1),
        ("young", CUTOFF),
        *((path, CUTOFF - 1) for path in (orphan, uuid, *others)),
    ]
    references = [None, "live", "shared", "shared", "elsewhere"]
    assert marked(payloads, references) == {
        "live": "live",
        "shared": "live",
        "young": "young",
        **dict.fromkeys((orphan, uuid), "orphan"),
        **dict.fromkeys(others, "foreign"),
    }
    assert set(marked(payloads, [], any_name=True).values()) == {"orphan", "young"}


def test_payload_that_is_listed_twice() -> None:
    """A payload that stands in two folders, as one name for both, is marked in each."""
    rows = [(0, Listed("p", topic, 1, 1)) for topic in ("T", "t")]
    assert [(topic, state) for _, topic, _, _, state, _ in Marking(CUTOFF).marked([*rows, (1, ("p",))])] == [
        ("T", "live"),
        ("t", "live"),
    ]


def test_tallies_of_parts() -> None:
    """Parts of the rows, counted one by one and merged, come to the same as all of them."""
    parts = [Tally(), Tally(), Tally()]
    parts[0].add(("t", "orphan"), 30, 5)
    parts[1].add(("t", "orphan"), 20, 7)
    parts[1].add(("t", "orphan"), 25, 4, 3)
    parts[1].add(("t", "live"), None)
    parts[2].add(("t", "live"), None)
    assert vars_of(Tally.merged(parts)) == {("t", "orphan"): (5, 16, 20), ("t", "live"): (2, 0, None)}
    assert Tally.merged(parts).of("none").count == 0


def vars_of(tally: Tally) -> dict[tuple[str, ...], tuple[int, int, object]]:
    """Count, bytes and the first of each kind."""
    return {kind: (found.count, found.bytes, found.first) for kind, found in tally.items()}
