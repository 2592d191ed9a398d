"""What a commit of a topic with chunks notes, where brokers have less room than Kafka's default."""

from __future__ import annotations

import pytest

from transforms.commit_metadata import LEAST_BYTES, Noted, note, noted

IDS = tuple(f"{number:022}" for number in range(32))
LAST = 2**63 - 1


@pytest.mark.parametrize("most_bytes", [LEAST_BYTES, 66, 67, 89, 90, 779, 780])
def test_note_that_fits(most_bytes: int) -> None:
    """It says what was delivered, and as many of the newest ids as there is room for."""
    text = note(5, LAST, IDS, most_bytes)
    found = noted(text)
    assert found == Noted(LAST, IDS[32 - len(found.torn) :] if found and found.torn else ())
    assert len(text) <= most_bytes < len(text) + (28 if not found.torn else 23)


@pytest.mark.parametrize(("delivered", "most_bytes"), [(LAST, LEAST_BYTES - 1), (9, 16), (5, 30)])
def test_note_without_room(delivered: int, most_bytes: int) -> None:
    """No part of an offset is noted, and none that says nothing."""
    assert note(5, delivered, IDS, most_bytes) == ""


@pytest.mark.parametrize("torn", [(), IDS[:2]])
def test_what_a_client_reads_behind_a_note_is_no_part_of_it(torn: tuple[str, ...]) -> None:
    """confluent-kafka (2.16.1) takes metadata for a string of C: it reads to the first NUL, wherever that is."""
    text = note(5, 11, torn)
    in_memory = text + "7\x7f"
    as_c = in_memory.partition("\0")[0]
    assert noted(as_c) == noted(text) == Noted(11, torn)
