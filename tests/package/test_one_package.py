"""The build of the wheel: which names it changes, and what it arranges; tests/integration/test_installed.py has one."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from package.one_package import FOLDERS, INTERNAL, absolute_links, arrange, renamed

ROOT = Path(__file__).resolve().parents[2]
# Texts that look like a module of ours, and are not imported. Docstrings are not looked at.
NOT_IMPORTED = {
    "app.local.",  # bootstrap.py, which sets up a checkout
    "jobs.inflate",  # a header of dead letters, which says who wrote them
    "app.local",  # cut off the end of a module's own name, as the next
    "transforms.letter",
}
_DOTTED = re.compile(rf"(?:{'|'.join(FOLDERS)})\.\w+(?:\.\w+)*\.?(?::\w+)?|(?:{'|'.join(FOLDERS)})\.")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from app import worker\n", "from @.app import worker\n"),
        ("from app.cli import (\n    main,  # why\n)\n", "from @.app.cli import (\n    main,  # why\n)\n"),
        ("from stores.keys import Key as K", "from @.stores.keys import Key as K"),
        ("def f():\n    from  transforms import chunk", "def f():\n    from  @.transforms import chunk"),
        ("'ü'; from jobs.sweep import main", "'ü'; from @.jobs.sweep import main"),
        ("if TYPE_CHECKING: from app.a import A", "if TYPE_CHECKING: from @.app.a import A"),
        ("from app.a import A; from app.b import B", "from @.app.a import A; from @.app.b import B"),
        ('importlib.import_module("jobs.sweep")', 'importlib.import_module("@.jobs.sweep")'),
        ('importlib.import_module(f"jobs.{name}").main', 'importlib.import_module(f"@.jobs.{name}").main'),
        # names that only look alike, texts and comments
        *((source, source) for source in (
            "from application import app\n", "from . import app\n", "import apps, os\n",
            "from wideload.serializers import SerializationError\n",
            "transforms = 'from app import worker'  # from app import worker\n", 'app.topic("jobs.inflate")\n',
            "importlib.import_module(name)\n", 'importlib.import_module("their.stores.Store")\n',
        )),
    ],
)  # fmt: skip
def test_imports_of_ours_have_the_longer_name(source: str, expected: str) -> None:
    """Every form of import is found, wherever it stands; all else is left as it was."""
    assert renamed(source) == expected.replace("@", "wideload._internal")


@pytest.mark.parametrize("source", ["import app", "x = 1\nimport os, stores.keys", "import jobs.sweep as sweep"])
def test_import_that_binds_a_name_is_refused(source: str, tmp_path: Path) -> None:
    """`import app.x` would bind `app`, which the wheel has not; the build says in which file and line it stands."""
    with pytest.raises(ValueError, match=r"^line \d: import (app|stores.keys|jobs.sweep): write from … import …"):
        renamed(source)
    for name in (*FOLDERS, "wideload"):
        (tmp_path / "root" / name).mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tmp_path / "root")
    (tmp_path / "root" / "jobs" / "one.py").write_text(source)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"^wideload/_internal/jobs/one\.py, line \d: import "):
        arrange(tmp_path / "root", tmp_path / "folder")


@pytest.fixture(scope="module")
def arranged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of this checkout, as the wheel has them."""
    folder = tmp_path_factory.mktemp("arranged")
    arrange(ROOT, folder)
    return folder


def test_arranged_has_every_module_once(arranged: Path) -> None:
    """All modules are there, the four packages inside, with renamed imports on the same lines, and nothing else."""
    internal = Path(*INTERNAL.split("."))
    inside = {internal / path.relative_to(ROOT) for name in FOLDERS for path in (ROOT / name).rglob("*.py")}
    outside = {path.relative_to(ROOT) for path in (ROOT / "wideload").rglob("*.py")} | {internal / "__init__.py"}
    assert {path.relative_to(arranged) for path in arranged.rglob("*.py")} == inside | outside
    assert {path.name for path in arranged.iterdir()} == {"wideload", "pyproject.toml", "README.md", "LICENSE"}
    assert (arranged / internal / "app" / "local" / "jars.lock").is_file()
    assert (arranged / "wideload" / "py.typed").is_file()
    for path in inside:
        ours = (ROOT / path.relative_to(internal)).read_text(encoding="utf-8")
        assert (arranged / path).read_text(encoding="utf-8").replace(f"{INTERNAL}.", "") == ours


def test_links_of_the_readme_are_absolute(arranged: Path) -> None:
    """Links and images lead to the tagged files in the repository; links to other hosts and to headings stay."""
    text = "[a](docs/a.md#b), ![c](docs/c.svg), [d](https://d.example/), [e](#e), `f`(g)"
    assert absolute_links(text, "https://h.example/i", "v1.2.3") == (
        "[a](https://h.example/i/blob/v1.2.3/docs/a.md#b), ![c](https://h.example/i/raw/v1.2.3/docs/c.svg), "
        "[d](https://d.example/), [e](#e), `f`(g)"
    )
    targets = re.findall(r"\]\(([^)]+)\)", (arranged / "README.md").read_text(encoding="utf-8"))
    assert len(targets) > 30
    assert [each for each in targets if not each.startswith("https://")] == []


def test_no_text_names_a_module_by_its_place_in_the_checkout(arranged: Path) -> None:
    """What is loaded by a name in a text is named by `__package__`, or by `import_module`, which the build finds."""
    found = {
        (path.relative_to(arranged).as_posix(), text)
        for path in sorted(arranged.rglob("*.py"))
        for text in texts(path.read_text(encoding="utf-8"))
        if _DOTTED.fullmatch(text)
    }
    assert {text for _, text in found} == NOT_IMPORTED, found


def texts(source: str) -> Iterator[str]:
    """The texts of a module, without those that stand alone, which are docstrings."""
    tree = ast.parse(source)
    alone = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in alone:
            yield node.value
