"""The queue that knows the lowest offsets of what waits in it."""

from __future__ import annotations

import random

from app.chunks.bounded_queue import BoundedQueue


def test_it_does_as_a_list() -> None:
    """Whatever is added, dropped, replaced or forgotten: order and lowest offsets are those of a look at each."""
    rng = random.Random(1)
    queue, model = BoundedQueue[str](), list[tuple[str, str, int, int]]()
    for number in range(5_000):
        partition = rng.choice("abc")
        match rng.choice(["add"] * 5 + ["drop"] * 3 + ["replace", "forget"] if rng.random() < 0.9 else ["add"]):
            case "add":
                first = rng.randrange(20)
                each = (partition, f"item {number}", first, first + rng.randrange(20))
                queue.append(each[0], each[1], each[2], each[3])
                model.append(each)
            case "drop" if model:
                queue.drop_head()
                model.pop(0)
            case "replace" if model:
                queue.replace_head(f"item {number}")
                model[0] = (model[0][0], f"item {number}", *model[0][2:])
            case "forget" if rng.random() < 0.3:
                queue.forget(partition)
                model = [each for each in model if each[0] != partition]
        assert list(queue) == [item for _, item, _, _ in model]
        assert len(queue) == len(model)
        if model:
            assert queue.head == model[0][1]
        for place in "abc":
            offsets = [(first, last) for of, _, first, last in model if of == place]
            lowest = (min(first for first, _ in offsets), min(last for _, last in offsets)) if offsets else None
            assert queue.lowest(place) == lowest
