"""What `make release-check` refuses before it builds anything; the rest of it runs before a release."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from package.release_check import ReleaseError, agreed_version, check_links, pins

ROOT = Path(__file__).resolve().parents[2]


def test_version_changelog_and_repository_agree() -> None:
    """The newest section of the changelog has the version of pyproject.toml, and its date."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = agreed_version(ROOT, f"v{project['version']}", project["urls"]["Repository"])
    assert version == project["version"]


@pytest.mark.parametrize(
    ("changelog", "tag", "repository", "message"),
    [
        ("## [Unreleased]\n", None, None, r"^CHANGELOG\.md begins with 'no version', expected '## \[\d"),
        (
            "## [Unreleased]\n## [9.0.0] - 2026-01-01\n",
            None,
            None,
            r"begins with '## \[9\.0\.0\] - 2026-01-01', expected",
        ),
        ("## [{}]\n", None, None, r"expected '## \[\d.* - YYYY-MM-DD'$"),
        ("## [{}] - 2026-01-01\n", "v9.0.0", None, r"^the tag is v9\.0\.0, expected v\d"),
        ("## [{}] - 2026-01-01\n", None, "https://github.com/a/fork", r", expected https://github\.com/a/fork$"),
    ],
)
def test_what_does_not_agree_is_refused(
    changelog: str, tag: str | None, repository: str | None, message: str, tmp_path: Path
) -> None:
    """A version without a date, another version, another tag, another repository."""
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(changelog.format(agreed_version(ROOT, None, None)))
    with pytest.raises(ReleaseError, match=message):
        agreed_version(tmp_path, tag, repository)


@pytest.mark.parametrize(
    ("text", "message"),
    [("[a](https://b.example) ![c](docs/c.svg)", "relative links: docs/c.svg$"), ("", "no links")],
)
def test_relative_links_are_refused(text: str, message: str) -> None:
    """An index has no files that a relative link could reach."""
    with pytest.raises(ReleaseError, match=message):
        check_links(text)


def test_pins_are_constraints() -> None:
    """Versions and markers stay; pip refuses extras in constraints, and hashes would be required of all packages."""
    lock = (
        "a==1.0 \\\n    --hash=sha256:0 \\\n    --hash=sha256:1\n    # via b\nc[d,e]==2 ; sys_platform == 'win32' \\\n"
    )
    assert pins(lock) == "a==1.0\nc==2 ; sys_platform == 'win32'\n"
