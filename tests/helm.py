"""Helm for the tests, where this machine has it, and what the chart gives.

`make helm-test` puts Helm into `bin` in the cache directory: it compiles for a minute or two, so `make test` does
without.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
CHART = _ROOT / "deploy" / "helm" / "wideload"
MANIFEST = _ROOT / "deploy" / "kubernetes" / "wideload.yaml"
MANIFEST_HEAD = """\
# The output of the chart in deploy/helm for ci/minimal-values.yaml, for clusters without Helm. Replace image,
# configuration and memory; docs/kubernetes.md. After a change of the configuration run `kubectl rollout restart`.
"""

# Helm built by `go install` takes each cluster for an old one.
_CLUSTER = "--kube-version=1.37"


def helm(*arguments: str, status: int = 0) -> str:
    """What Helm prints, errors too; skips the test where there is none, and fails it at another exit status."""
    binary = _binary()
    if binary is None:
        pytest.skip("no helm: `make helm-test` compiles it, which takes minutes")
    run = subprocess.run([binary, *arguments], check=False, capture_output=True, text=True)
    assert run.returncode == status, run.stdout + run.stderr
    return run.stdout + run.stderr


def rendered(values: str, *arguments: str) -> str:
    """What the chart gives for one of its value files, as YAML."""
    return helm("template", "wideload", str(CHART), "--values", str(value_files()[values]), _CLUSTER, *arguments)


def value_files() -> dict[str, Path]:
    """The value files for which the chart is tested, by name."""
    return {file.name.removesuffix("-values.yaml"): file for file in sorted((CHART / "ci").glob("*-values.yaml"))}


def is_there() -> bool:
    """Whether this machine has Helm."""
    return _binary() is not None


def _binary() -> str | None:
    cache = Path(os.environ.get("WIDELOAD_CACHE") or Path.home() / ".cache" / "wideload")
    return shutil.which("helm", path=os.pathsep.join((str(cache / "bin"), os.environ.get("PATH", ""))))
