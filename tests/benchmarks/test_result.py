from __future__ import annotations

import json
from pathlib import Path

import cramjam
import pytest
from click.testing import CliRunner

from benchmarks.digests import Digester
from benchmarks.offload import _file_fetch
from benchmarks.passthrough import CELLS
from benchmarks.result import TARGETS, Result, Target, merge, published
from benchmarks.run import main
from benchmarks.source import records


def test_client_figures_divide_to_their_ratio() -> None:
    """The two times of a client that are published are of one round, so their quotient is the ratio beside them."""
    rows = [row for name, row in published().items() if name.startswith("clients.")]
    assert len(rows) > 20
    assert [row["name"] for row in rows if row["ratio"] != pytest.approx(row["against"] / row["value"], rel=2e-3)] == []


def test_source_records() -> None:
    """They have 1 KB of JSON, a key and one header, and a batch of them compresses to about a third."""
    made = list(records(1_000))
    assert all(len(value) == 1024 and json.loads(value)["order"] == n for n, (_, value, _) in enumerate(made))
    assert len({key for key, _, _ in made}) == len({headers[0] for _, _, headers in made}) == len(made)
    assert all(len(headers) == 1 for _, _, headers in made)
    batch = b"".join(value for _, value, _ in made)
    for codec in (cramjam.zstd, cramjam.lz4):
        assert 2.3 < len(batch) / len(bytes(codec.compress(batch))) < 4.5


def test_digests_see_headers() -> None:
    """A header that is lost, changed or moved to another record is another topic."""
    one, two = [("a", b"1")], [("a", b"2")]
    found = []
    for first, second in ((one, two), (two, one), (one, []), ([], one), (one, one), ([("a1", b"")], two)):
        digester = Digester()
        digester.add(0, b"key", b"value", first)
        digester.add(0, b"key", b"value", second)
        found.append(digester.result()[0][1])
    assert len(set(found)) == len(found)


def test_targets_of_cells() -> None:
    """Each cell of the pass-through has its targets, by the names of its results; librdkafka has to compress again."""
    assert len(CELLS) == 12
    found = {name: str(target) for name, target in TARGETS.items()}
    assert found["passthrough.none.16k.4p.vs_java"] == found["passthrough.lz4.1m.4p.vs_librdkafka"] == "≥ 1×"
    assert found["passthrough.none.1m.1p.vs_java"] == found["passthrough.zstd.16k.1p.vs_librdkafka"] == "≥ 1.3×"
    assert found["passthrough.none.1m.4p.cpu_vs_librdkafka"] == "≤ 0.6×"
    assert found["passthrough.zstd.16k.1p.cpu_vs_librdkafka"] == "≤ 0.3×"


@pytest.mark.parametrize("only", ["passthroug", "passthrough.snappy", "memory.1p", "passthrough.none.1m.4"])
def test_only_refuses_what_is_not_there(only: str) -> None:
    """A scenario or a part that does not exist is refused with those that do, before anything starts."""
    ended = CliRunner().invoke(main, ["--only", only])
    assert ended.exit_code == 2
    assert "there are passthrough," in ended.output or "it has " in ended.output


def test_merge_keeps_other_results(tmp_path: Path) -> None:
    """A run of one scenario replaces its own results in the file, and leaves those of others."""
    path = tmp_path / "build" / "bench.json"
    merge(path, [Result("a", 1.0, "s"), Result("b", 2.0, "s", 4.0, 0.5)], keep=False)
    merge(path, [Result("a", 3.0, "s")], keep=True)
    assert json.loads(path.read_text()) == [
        {"name": "b", "value": 2.0, "unit": "s", "against": 4.0, "ratio": 0.5},
        {"name": "a", "value": 3.0, "unit": "s", "against": None, "ratio": None},
    ]


@pytest.mark.parametrize(
    ("at", "ratio", "reached"),
    [("least", 7.99, False), ("least", 8.0, True), ("most", 8.0, True), ("most", 8.01, False), ("least", None, None)],
)
def test_target_reached(at: str, ratio: float | None, *, reached: bool | None) -> None:
    """The bound itself reaches the target; a number that is missing says nothing."""
    assert (
        Target("ratio", "least" if at == "least" else "most", 8.0).reached(Result("x", 1.0, "", 1.0, ratio)) is reached
    )


def test_file_fetch_decodes_paths(tmp_path: Path) -> None:
    """A payload is found by its reference, whatever its folder is called."""
    path = tmp_path / "a b%" / "payload"
    path.parent.mkdir()
    path.write_bytes(b"value")
    assert _file_fetch(path.as_uri()) == b"value"
