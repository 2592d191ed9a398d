"""What `.github/` has: workflows, forms and updates fit GitHub's schemas, and run what is there."""

from __future__ import annotations

import json
import re
from importlib.metadata import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
SCHEMAS = {
    **dict.fromkeys(sorted(GITHUB.glob("workflows/*.yml")), "github-workflows"),
    **dict.fromkeys(sorted(GITHUB.glob("ISSUE_TEMPLATE/*.yml")), "github-issue-forms"),
    GITHUB / "ISSUE_TEMPLATE" / "config.yml": "github-issue-config",
    GITHUB / "dependabot.yml": "dependabot",
}
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def loaded(path: Path) -> dict[str, Any]:
    """A file, with the key `on` as it is written: in YAML 1.1 it is True."""
    return {"on" if key is True else key: value for key, value in yaml.safe_load(path.read_text("utf-8")).items()}


def workflow(name: str) -> dict[str, Any]:
    return loaded(GITHUB / "workflows" / f"{name}.yml")


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_file_fits_its_schema(path: Path) -> None:
    """The schemas are those of check-jsonschema, whose own modules are not needed."""
    (schema,) = [file for file in files("check-jsonschema") or () if file.match(f"vendor/{SCHEMAS[path]}.json")]
    jsonschema.validate(loaded(path), json.loads(schema.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ["ci", "matrix", "release"])
def test_jobs_have_no_more_than_they_need(name: str) -> None:
    """Each job has a time limit, and runs targets of make or files that exist; no expression is part of a command.

    Permissions are to read, but for the identity with which the last job of a release publishes.
    """
    document = workflow(name)
    allowed = {"contents": "read"}
    for job, each in document["jobs"].items():
        permissions = each.get("permissions", document["permissions"])
        assert permissions == ({"id-token": "write"} if job == "publish" else allowed), job
        if "uses" in each:
            continue
        assert each["timeout-minutes"] <= 90
        for step in each["steps"]:
            assert (
                not step.get("uses", "").startswith("actions/checkout") or step["with"]["persist-credentials"] is False
            )
            if command := step.get("run"):
                assert "${{" not in command
                words = command.split()
                assert words[1] in TARGETS if words[0] == "make" else (ROOT / words[0]).is_file(), command


def test_release_is_tested_and_tried_before_it_is_published() -> None:
    """A tag runs what a pull request runs, then the check of the release; what publishes runs none of our code."""
    document = workflow("release")
    assert document["on"] == {"push": {"tags": ["v*"]}}
    test, build, publish = (document["jobs"][name] for name in ("test", "build", "publish"))
    assert (test["uses"], build["needs"], publish["needs"]) == ("./.github/workflows/ci.yml", "test", "build")
    assert {"push", "pull_request", "workflow_call"} == set(workflow("ci")["on"])
    assert [step["run"].split()[:2] for step in build["steps"] if "run" in step] == [["make", "release-check"]]
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
