"""The image where Docker or Podman run containers: `docker-compose.yml` is brought up, as docs/deployment.md says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.image.tools import expect, run, say, step
from tests.image.traffic import FOLDER, travel

__all__ = ["engine", "try_compose"]

_ROOT = Path(__file__).parents[2]
_PROJECT = "wideload-image-test"


def engine() -> str | None:
    """`docker` or `podman`, if it answers and knows `compose`."""
    for name in ("docker", "podman"):
        if shutil.which(name) is None:
            continue
        answers = [
            subprocess.run([name, *question], check=False, capture_output=True).returncode == 0
            for question in (("info",), ("compose", "version"))
        ]
        if all(answers):
            return name
    return None


def try_compose(name: str, work: Path) -> None:
    """Builds the image, brings up broker, S3 server and worker, sends records through it, and takes all away again.

    Raises:
        ImageError: a container does not become healthy, or the image is not what it should be.
    """
    compose = (name, "compose", "--project-name", _PROJECT, "--file", str(_ROOT / "docker-compose.yml"))
    folder = work / "files"
    folder.mkdir()

    def wideload(*arguments: str) -> str:
        once = ("run", "--rm", "--no-deps", "-T", "--volume", f"{folder}:{FOLDER}", "worker")
        return run(*compose, *once, *arguments)

    try:
        with step(f"{name} compose up --build --wait"):
            run(*compose, "up", "--build", "--wait", shown=("#", " Container"))
        with step("look at the image"):
            image = run(*compose, "images", "--quiet", "worker").split()[-1]
            size = int(run(name, "image", "inspect", "--format", "{{.Size}}", image))
            say(f"size: {size / 1e6:.0f} MB")
            inside = (*compose, "exec", "-T", "worker", "python", "-c")
            expect(run(*inside, "import os; print(os.getuid(), os.getgid())").strip(), "10001 10001", "user and group")
            missing = "import importlib.util as u; print(u.find_spec('pip') is None)"
            expect(run(*inside, missing).strip(), "True", "no pip")
            say(wideload("--version").strip())
        # Inside of the network of the containers; docker/wideload.toml is mounted there.
        travel(wideload, folder, ("-c", "/etc/wideload/wideload.toml"))
        with step("stop the worker"):
            run(*compose, "stop", "worker")
            state = run(*compose, "ps", "--all", "--format", "{{.ExitCode}}", "worker").strip()
            expect(state, "0", "status")
    finally:
        run(*compose, "down", "--volumes")
