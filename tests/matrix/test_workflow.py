"""The workflow that runs the matrix in CI."""

from __future__ import annotations

import json
from importlib.metadata import files
from pathlib import Path

import jsonschema
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "builtin_schemas/vendor/github-workflows.json"  # of check-jsonschema, whose own modules are not needed


def test_workflow_runs_the_matrix_each_night_and_for_each_release() -> None:
    """It fits the schema of GitHub's workflows, and no text of who starts it gets into a command.

    `make` runs on the Python that the workflow chose, and not on the one of the runner's image.
    """
    text = (ROOT / ".github" / "workflows" / "matrix.yml").read_text(encoding="utf-8")
    workflow = {"on" if key is True else key: value for key, value in yaml.safe_load(text).items()}  # YAML 1.1
    (schema,) = (file for file in files("check-jsonschema") or () if file.match(SCHEMA))
    jsonschema.validate(workflow, json.loads(schema.read_text(encoding="utf-8")))
    assert {"schedule", "push", "workflow_dispatch"} == set(workflow["on"])
    commands = [step["run"] for step in workflow["jobs"]["matrix"]["steps"] if "run" in step]
    assert commands[-1] == 'make matrix CELLS="$CELLS"'
    commands += [step["run"] for step in workflow["jobs"]["simulation"]["steps"] if "run" in step]
    assert not any("${{" in command for command in commands)
    (python,) = (step for step in workflow["jobs"]["matrix"]["steps"] if "setup-python" in step.get("uses", ""))
    versions = python["with"]["python-version"].split()
    assert workflow["jobs"]["matrix"]["env"]["PYTHON"] == f"python{versions[-1]}"
