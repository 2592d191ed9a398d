"""A short run of `make fuzz`, and that it would find something."""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import pytest

from tests.fuzz import mutation
from tests.fuzz.parsers import PARSERS, Parser
from tests.fuzz.run import Defect, corpus, fuzz, main


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_parser_takes_or_refuses_any_bytes(parser: Parser) -> None:
    """Mutated bytes are taken whole or refused with the documented error; there are enough of both."""
    count = 4_000 if parser.name.startswith("batch") else 20_000  # each of these takes as long as ten of the others
    outcome = fuzz(parser, count, seed=1)
    assert outcome.taken + outcome.refused == count
    assert min(outcome.taken, outcome.refused) > 100


@pytest.mark.parametrize("change", mutation._CHANGES)
def test_each_change_makes_other_bytes(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the ways to damage bytes leaves them as they are."""
    monkeypatch.setattr(mutation, "_CHANGES", (change,))
    seeds = [b"some bytes", b"others"]
    assert {mutation.mutated(random.Random(seed), seeds) for seed in range(20)} - {*seeds}


def test_the_corpus_is_examined() -> None:
    """Each kept input is one of a parser, and is among those of any run."""
    names = {path.stem for path in (Path(__file__).parent / "corpus").glob("*.hex")}
    assert names
    assert names <= {parser.name for parser in PARSERS}
    for parser in PARSERS:
        look = mock.Mock(return_value=True)
        kept = corpus(parser.name)
        fuzz(Parser(parser.name, parser.seeds, look), len(kept) + 1, seed=1)
        assert [call.args for call in look.call_args_list[: len(kept)]] == [(data,) for data in kept]


def test_a_defect_is_found_and_can_be_had_again() -> None:
    """A parser that fails on a zero byte is caught, with the input."""
    parser = Parser("broken", [b"\0\1", b"\1"], lambda data: bool(1 // (data[0] if data else 1)))
    said = set()
    for _ in range(2):
        with pytest.raises(Defect, match=r"^broken: ZeroDivisionError: .*; the input is bytes.fromhex\('00") as found:
            fuzz(parser, 1_000, seed=1)
        said.add(str(found.value))
    assert len(said) == 1


def test_command_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a parser, with the seed."""
    assert main(["--count", "50", "--seed", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [parser.name for parser in PARSERS]
    assert all("50 inputs" in line and "--seed 3" in line for line in lines)
