"""Archives of classes, of a small program: Ivy, which says its version."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from app.local import jars, java
from app.local.class_archive import archive, recorded, using

FROM_ARCHIVE = "org.apache.ivy.Main source: shared objects file (top)"


def ivy(*options: str) -> tuple[int, str, str]:
    """What the program answers, with options of Java."""
    command: list[str | Path] = [java.locate(), *options, "-cp", jars._ivy_jar(), "org.apache.ivy.Main", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of the program; of one that did not end in order nothing is left, nor of half an archive."""
    path = archive(tmp_path_factory.mktemp("jars"), java.locate())
    for left in (None, bytes(8192)):  # Java writes the header last
        with recorded(path) as options:
            if left:
                Path(options[0].partition("=")[2]).write_bytes(left)
        assert list(path.parent.iterdir()) == []
    assert using(path) == ()
    with recorded(path) as options:
        assert ivy(*options)[0] == 0
        assert not path.exists()
    return path


def test_archive_is_used(made: Path) -> None:
    """A program that ended in order leaves its archive and nothing else; the next one takes its classes from there."""
    assert list(made.parent.iterdir()) == [made]
    assert ivy(*using(made)) == ivy()
    assert FROM_ARCHIVE in ivy(*using(made), "-Xlog:class+load")[1]


@pytest.mark.parametrize("how", ["half written", "foreign"])
def test_archive_that_does_not_fit(made: Path, tmp_path: Path, how: str) -> None:
    """Java that does not take an archive starts as ever, and says nothing of it."""
    data = made.read_bytes()
    path = tmp_path / made.name
    # Java writes the header last.
    path.write_bytes(bytes(8192) + data[8192 : len(data) // 2] if how == "half written" else bytes(reversed(data)))
    assert ivy(*using(path)) == ivy()
    assert FROM_ARCHIVE not in ivy(*using(path), "-Xlog:class+load")[1]


def test_archive_depends_on_java(tmp_path: Path) -> None:
    """Another Java, or another build in the same place, has another archive."""
    folder = tmp_path / "java"
    for name in ("bin/java", "lib/server/libjvm.so"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    command = folder / "bin" / "java"
    names = {archive(tmp_path, java.locate()), archive(tmp_path, command)}
    os.utime(folder / "lib" / "server" / "libjvm.so", (1, 1))
    names.add(archive(tmp_path, command))
    assert len(names) == 3
    link = tmp_path / "link"
    link.symlink_to(command)
    assert archive(tmp_path, link) in names
