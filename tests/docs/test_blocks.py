"""Each block of code in the pages is checked by its language; a block of a language that nobody checks is an error."""

from __future__ import annotations

import ast
import builtins
import configparser
import importlib
import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.commands.check import store_text
from app.config.parsing import parse
from app.serializers import (
    LargeMessageDeserializer,
    LargeMessageSerializer,
    PayloadNotFoundError,
    ReferenceRefusedError,
    SerializationError,
    config,
)
from docs import readers_program
from docs.python_blocks import PAGES
from tests.docs.command_lines import OMITTED, check_command, commands_of

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_SECRET = "0123456789abcdef" * 4  # as long as a key of encryption
_FILE = re.compile(r"/(?:run/secrets|etc/wideload)/[\w./-]+")
_SIGNED = {"wideload reference 1", "wideload signing key name"}  # texts that go into signatures


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code, and where it stands."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> Iterator[Block]:
    page = path.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(page):
        lines = [line.removeprefix(found["indent"]) for line in found["text"].splitlines(keepends=True)]
        yield Block(path.name, page.count("\n", 0, found.start()) + 1, found["language"].strip(), "".join(lines))


def check_toml(text: str, folder: Path) -> None:
    """A worker takes it as its file; what a fragment leaves out is added. Its stores are opened, without a request."""
    secret = folder / "secret"
    secret.write_text(_SECRET, encoding="utf-8")
    document: dict[str, Any] = tomllib.loads(_FILE.sub(str(secret), text).replace(OMITTED, "x"))
    document.setdefault("bootstrap", {"servers": "localhost:9092"})
    default = {
        "topics": ["raw"],
        "output": {"topic": "sink"},
        "transforms": ["unwrap", "offload"] if "wrapper" in document else ["offload"],
    }
    pipelines = document.setdefault("pipeline", {"orders": {}})
    for pipeline in pipelines.values():
        for key, value in default.items():
            pipeline.setdefault(key, value)
    if "large.message.payload.store.class" not in text:
        document.setdefault("large", {}).setdefault("message", {})["payload"] = {"store": {"class": "memory"}}
    environ = dict.fromkeys(re.findall(r"\$\{env:(\w+)\}", text), "c2VjcmV0")
    for each in parse(document, environ).pipelines:
        store_text(each)


def check_yaml(text: str, folder: Path) -> None:
    """It is YAML; a configuration in it is one that a worker takes."""
    document = yaml.safe_load(text)
    if isinstance(document, Mapping) and isinstance(document.get("config"), str):
        check_toml(document["config"], folder)


def check_ini(text: str, folder: Path) -> None:
    """It is a unit of systemd, and what it starts are commands that there are."""
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # as Python's documentation does it
    unit.read_string(text)
    check_shell(unit["Service"]["ExecStart"], folder)


def check_python(text: str, _folder: Path) -> None:
    """It compiles, alone or in a coroutine, and each name that it imports is there."""
    tree = compile(text, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(tree, ast.Module)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def check_json(text: str, _folder: Path) -> None:
    """All of it is one document, or each line is."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        for line in text.splitlines():
            json.loads(line)


def check_console(text: str, folder: Path) -> None:
    """What stands behind a prompt is right; the rest is output."""
    typed = re.findall(r"^\$ ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert typed, "no line begins with a prompt"
    check_shell("\n".join(typed), folder)


def check_shell(text: str, folder: Path) -> None:
    """A shell can read it, and our commands have the options that they are given."""
    syntax = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert syntax.returncode == 0, syntax.stderr
    for name, document in re.findall(r"> (\S+) <<'EOF'\n(.*?)^EOF$", text, re.MULTILINE | re.DOTALL):
        if name.endswith(".toml"):
            check_toml(document, folder)
    text = re.sub(r" <<'EOF'\n.*?^EOF$", "", text, flags=re.MULTILINE | re.DOTALL)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        for each in commands_of(line):
            check_command(each)


_CORE = {"ALPHA", "DIGIT", "HEXDIG", "OCTET"}


def check_abnf(text: str, _folder: Path) -> None:
    """Each rule that a rule names is there, in RFC 5234, or told in a comment."""
    comments = " ".join(re.findall(r";(.*)", text))
    rules = re.sub(r'%[sxdb][^\s)]*"?|"[^"]*"|;.*', " ", text)
    defined = set(re.findall(r"^([a-z][\w.-]*) +=", rules, re.MULTILINE))
    used = set(re.findall(r"(?<![\w.-])[A-Za-z][\w.-]*", rules))
    assert {each for each in used - defined - _CORE if not re.search(rf"\b{each}\b", comments)} == set()


CHECKS: Mapping[str, Callable[[str, Path], None]] = {
    "abnf": check_abnf,
    "console": check_console,
    "ini": check_ini,
    "json": check_json,
    "pycon": lambda text, folder: check_python("".join(re.findall(r"(?m)^(?:>>>|\.\.\.) (.*\n)", text)), folder),
    "python": check_python,
    "sh": check_shell,
    "text": lambda _text, _folder: None,  # what a program prints, a picture, or a pattern of a command
    "toml": check_toml,
    "yaml": check_yaml,
}


def check(block: Block, folder: Path) -> None:
    """Checks a block by its language.

    Raises:
        AssertionError: nobody checks this language, or the block is wrong. It names page and line.
    """
    assert block.language in CHECKS, (
        f"{block}: nobody checks blocks of {block.language!r}; there are {', '.join(CHECKS)}, and text for what is none"
    )
    try:
        CHECKS[block.language](block.text, folder)
    except Exception as exc:
        message = f"{block}: {exc}"
        raise AssertionError(message) from exc


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_blocks_are_right(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configurations are taken, programs compile and import what is there, commands have the options they are given."""
    # The module of the reader's own store, as the pages tell them to write it.
    (module,) = [each for each in blocks(ROOT / "docs" / "serializers.md") if "class MyStore" in each.text]
    tmp_path.joinpath("mystore.py").write_text(module.text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for block in blocks(path):
        check(block, tmp_path)


def test_commands_in_sentences_are_right() -> None:
    """A command between two backticks has the options that it is given; a sentence may leave out what it needs."""
    count = 0
    for path in PAGES:
        found = re.findall(r"`((?:wideload|make|python -m) [^`]+)`", path.read_text(encoding="utf-8"))
        for typed in [each for each in found if each not in _SIGNED]:
            for each in commands_of(re.sub(r"\b(job |jobs\.)NAME", r"\1sweep", typed)):
                try:
                    check_command([*each, OMITTED])
                except Exception as exc:
                    message = f"{path.name}: {typed}: {exc}"
                    raise AssertionError(message) from exc
                count += 1
    assert count > 100


def test_programs_use_names_that_are_there() -> None:
    """Each name in a program is one of Python, of this or an earlier block of its page, or the reader's own.

    No block escapes: the fences of each page are those of its blocks.
    """
    for path in PAGES:
        made, found = {*dir(builtins), *readers_program.__all__}, [*blocks(path)]
        fences = re.findall(r"^ *(?:```|~~~)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) == 2 * len(found), path.name
        for block in [each for each in found if each.language == "python"]:
            nodes = [*ast.walk(ast.parse(block.text))]
            made |= {each.name for each in nodes if isinstance(each, ast.FunctionDef | ast.ClassDef)}
            made |= {each.arg for each in nodes if isinstance(each, ast.arg)}
            made |= {(each.asname or each.name).partition(".")[0] for each in nodes if isinstance(each, ast.alias)}
            names = [each for each in nodes if isinstance(each, ast.Name)]
            made |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
            assert {each.id for each in names} - made == set(), str(block)


def namespace(page: str, mark: str, **given: object) -> dict[str, Any]:
    """What the one block of a page with this text in it defines, when it runs."""
    (block,) = [each for each in blocks(ROOT / "docs" / page) if mark in each.text]
    names: dict[str, Any] = dict(given)
    exec(compile(block.text, str(block), "exec"), names)  # noqa: S102  # a block of our own pages
    return names


def test_configurations_of_clients_are_taken() -> None:
    """The composable serializers of the page are taken, and what one of them writes the other one reads."""
    names = namespace(
        "serializers.md",
        "myclient.serializers.KeySerializer",
        to_json=lambda value: json.dumps(value).encode(),
        from_json=json.loads,
        LargeMessageSerializer=LargeMessageSerializer,
        LargeMessageDeserializer=LargeMessageDeserializer,
    )
    written = config.producer({**names["producer"], "key.serializer": str.encode}, {"bootstrap.servers"})
    read = config.consumer(names["consumer"], {"bootstrap.servers", "group.id"})
    with closing(written), closing(read):
        data = written.parts["value"].serialize("orders", [], {"order": 17})
        assert (data, read.parts["value"].deserialize("orders", [], data)) == (b'{"order": 17}', {"order": 17})


def test_store_of_your_own_is_one(tmp_path: Path) -> None:
    """The class of the page stores and gives payloads, refuses foreign paths, and says what is gone."""
    keys = {
        "large.message.payload.store.class": namespace("serializers.md", "class MyStore")["MyStore"],
        "my.folder": str(tmp_path / "payloads"),
    }
    value, headers = bytes(2_000_000), list[tuple[str, bytes | None]]()
    with closing(LargeMessageSerializer(keys)) as serializer:
        path = serializer.serialize("orders", headers, value)
    assert path is not None
    with closing(LargeMessageDeserializer(keys)) as deserializer:
        assert deserializer.deserialize("orders", [*headers], path) == value
        with pytest.raises(SerializationError) as refused:
            deserializer.deserialize("orders", [*headers], b"/etc/passwd")
        Path(path.decode()).unlink()
        with pytest.raises(SerializationError) as gone:
            deserializer.deserialize("orders", [*headers], path)
    assert isinstance(refused.value.__cause__, ReferenceRefusedError)
    assert isinstance(gone.value.__cause__, PayloadNotFoundError)


@pytest.mark.parametrize(
    ("language", "text", "told"),
    [
        ("", "make demo\n", "nobody checks"),
        ("ruby", "puts 1\n", "nobody checks"),
        ("toml", 's3.buckett = "payloads"\n', "s3.buckett"),
        ("toml", '[pipeline.orders]\ntransforms = ["offlaod"]\n', "offlaod"),
        ("toml", 'large.message.payload.store.class = "s3"\n', "s3.bucket"),
        ("yaml", "a: [1\n", "expected"),
        ("yaml", "config: |\n  web.portt = 1\n", "web.portt"),
        ("ini", "[Service]\nExecStart=/opt/wideload/bin/wideload worker --confg x\n", "--confg"),
        ("python", "producer = Producer({..., 'a': 1})\n", "invalid syntax"),
        ("python", "from wideload import LargeMessageSerialiser\n", "LargeMessageSerialiser"),
        ("python", "from wideload.serialisers import LargeMessageSerializer\n", "No module"),
        ("pycon", ">>> from wideload import nothing\n", "nothing"),
        ("json", '{"a": }\n', "Expecting value"),
        ("console", "wideload check -c wideload.toml\n", "prompt"),
        ("console", "$ wideload check -c wideload.toml | jq '.a\n", "unexpected EOF"),
        ("console", "$ wideload produce raw-large photo.jpg --headers a=b\n", "--headers"),
        ("console", "$ wideload produce photo.jpg --strategy offlaod raw\n", "offlaod"),
        ("console", "$ wideload consume \\\n      --from-beginning\n", "lacks topic"),
        ("console", "$ wideload topic create -c wideload.toml\n", "no command"),
        ("console", '$ echo "$(wideload jobs jars)"\n', "no command"),
        ("sh", "sleep 1 & wideload worker --configs wideload.toml\n", "--configs"),
        ("sh", "cat > a.toml <<'EOF'\nweb.portt = 1\nEOF\n", "web.portt"),
        ("sh", "wideload job sweep -c wideload.toml --deletee\n", "--deletee"),
        ("sh", "python -m wideload.jobs.audit --topic orders --verifi\n", "--verifi"),
        ("sh", "python -m wideload.jobs.backfill --source a --to references\n", "--sink"),
        ("sh", "python -m wideload.job.audit --topic orders\n", "wideload.job"),
        ("sh", "spark-submit … jobs/ingest.py … --format orc\n", "orc"),
        ("sh", "make tests\n", "make has no tests"),
        ("sh", "make chaos SEEDS=7\n", "make has no SEEDS=7"),
        ("abnf", "size = 1*DIGITS\n", "DIGITS"),
    ],
)
def test_wrong_block_is_found(language: str, text: str, told: str, tmp_path: Path) -> None:
    """A mistake of each kind fails, with the page, the line and the reason."""
    with pytest.raises(AssertionError, match=rf"page\.md:7: (?s:.*){re.escape(told)}"):
        check(Block("page.md", 7, language, text), tmp_path)
