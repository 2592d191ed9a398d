"""The image where Docker or Podman run containers: `docker-compose.yml` is brought up, as docs/deployment.md says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.image.tools import expect, run, say, step
from tests.image.traffic import FOLDER, travel

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
            container = run(*compose, "ps", "--quiet", "worker").split()[-1]
            image = run(name, "inspect", "--format", "{{.Image}}", container).strip()
            size = int(run(name, "image", "inspect", "--format", "{{.Size}}", image))
            say(f"size: {size / 1e6:.0f} MB")
            inside = (*compose, "exec", "-T", "worker", "python", "-c")
            expect(_last(run(*inside, "import os; print(os.getuid(), os.getgid())")), "10001 10001", "user and group")
            missing = "import importlib.util as u; print(u.find_spec('pip') is None)"
            expect(_last(run(*inside, missing)), "True", "no pip")
            say(_last(wideload("--version")))
        # Inside of the network of the containers; docker/wideload.toml is mounted there.
        travel(wideload, folder, ("-c", "/etc/wideload/wideload.toml"))
        with step("stop the worker"):
            run(*compose, "stop", "worker")
            expect(run(name, "inspect", "--format", "{{.State.ExitCode}}", container).strip(), "0", "status")
    finally:
        run(*compose, "down", "--volumes")


def _last(text: str) -> str:
    """The last line: Compose may say something before."""
    return text.strip().splitlines()[-1]
