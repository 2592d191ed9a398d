"""The image with Buildah, for machines without a Docker engine, and a worker in it as Kubernetes would run it.

`buildah bud --isolation chroot` builds the Dockerfile as it is. The worker runs in namespaces of its own for processes
and mounts: its root file system is read-only, /tmp is a tmpfs, it is process 1, has the user of the image, no
capability, and no way to get one. The network is that of the host.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from app.local.watchdog import Watched, watched
from tests.image.tools import ImageError, run
from tests.integration.worker_process import until

_ROOT = Path(__file__).parents[2]
_BASE = "localhost/wideload-base:stand-in"
_SYSTEM_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_NAMESPACES = ("unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child")
# $1 is the root of the container, $2 and $3 user and group; then three words for each mount, up to `--`. The user
# changes in the last program: what it sets lets the worker end with the test, and would be lost by a later change.
_CONFINED = """\
set -eu
root=$1 user=$2 group=$3
shift 3
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
    mount --bind "$1" "$root$2"
    [ "$3" = rw ] || mount -o remount,bind,ro "$root$2"
    shift 3
done
shift
mount -o remount,bind,ro "$root"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$root/tmp"
exec chroot "$root" setpriv --reuid="$user" --regid="$group" --clear-groups --bounding-set=-all --no-new-privs \\
    --pdeathsig=KILL "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """An image that was built, and a container of it.

    Attributes:
        root: of the container's file system.
        config: the image's configuration: User, Env, Entrypoint, Cmd, Healthcheck and so on.
        size_bytes: of all layers.
    """

    container: str
    root: Path
    config: Mapping[str, Any]
    size_bytes: int

    @contextmanager
    def process(self, command: list[str], mounts: Mapping[str, tuple[Path, str]], log: Path) -> Iterator[Watched]:
        """A command in the container, confined as the module says.

        Args:
            command: with its arguments.
            mounts: by the path in the container: the path outside, and `ro` or `rw`.
            log: gets what it prints.
        """
        pairs = []
        for inside, (outside, mode) in mounts.items():
            (self.root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
            pairs += [str(outside), inside, mode]
        with log.open("ab") as output:
            process = watched(
                [
                    *(*_NAMESPACES, "sh", "-c", _CONFINED, "sh", self.root, *self.config["User"].split(":"), *pairs),
                    *("--", "env", "--ignore-environment", f"--chdir={self.config['WorkingDir']}"),
                    *(*self.config["Env"], *command),
                ],
                output=output,
            )
        try:
            yield process
        finally:
            process.kill()

    def wideload(self, mounts: Mapping[str, tuple[Path, str]], log: Path, *arguments: str) -> str:
        """What a command of the image's entry point prints.

        Raises:
            ImageError: it fails.
        """
        log.write_bytes(b"")
        with self.process([*self.config["Entrypoint"], *arguments], mounts, log) as process:
            status = process.wait(120)
        if status:
            print(log.read_text(), file=sys.stderr)
            raise ImageError(f"wideload {arguments[0]} ended with status {status}; what it printed is above")
        return log.read_text()

    def healthy(self) -> bool:
        """Whether the image's health check passes, run as the image says."""
        kind, *command = self.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        environ = dict(each.split("=", 1) for each in self.config["Env"])
        return (
            subprocess.run(
                [shutil.which("chroot") or "chroot", f"--userspec={self.config['User']}", self.root, *command],
                check=False,
                env=environ,
                stderr=subprocess.DEVNULL,
            ).returncode
            == 0
        )


def first_process(process: Watched) -> psutil.Process:
    """Process 1 of the namespace; it waits until it has become the program."""

    def program() -> psutil.Process | None:
        children = psutil.Process(process.pid).children()
        return children[0] if children and "wideload" in " ".join(children[0].cmdline()[:2]) else None

    found = until(program, "the program runs in its namespace", 30)
    assert found is not None
    return found


class Buildah:
    """Buildah with a store of its own.

    Args:
        work: a folder for images, containers and their temporary files.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
        self._options = ("--root", work / "store", "--runroot", work / "run", "--storage-driver", "vfs")

    def base(self, archive: Path) -> None:
        """Makes the stand-in of the base from its archive."""
        file = self._work / "Base"
        file.write_text(f"FROM scratch\nADD {archive.name} /\nENV PATH=/usr/local/bin:/usr/bin:/bin\n")
        self._buildah("bud", "--isolation=chroot", f"--tag={_BASE}", "--file", file, archive.parent)

    def build(self) -> Image:
        """Builds the Dockerfile of the checkout, unchanged, on the stand-in, and makes a container."""
        names = {line.split()[1] for line in (_ROOT / "Dockerfile").read_text().splitlines() if line.startswith("FROM")}
        contexts = [f"--build-context={name}=container-image://{_BASE}" for name in names]
        pip = self._work / "pip.conf"
        pip.write_text(_pip_settings())
        # How this machine reaches the package index is its own matter, and no part of the image.
        mounts = (f"--volume={pip}:/etc/pip.conf:ro", f"--volume={_certificates()}:{_SYSTEM_CERTIFICATES}:ro")
        tag = "localhost/wideload:test"
        build = ("--isolation=chroot", "--format=docker", f"--tag={tag}", *mounts, *contexts)
        self._buildah("bud", *build, _ROOT, shown=("[", "STEP"))
        container = self._buildah("from", tag).split()[-1]
        root = Path(self._buildah("mount", container).strip())
        found = json.loads(self._buildah("inspect", "--type=image", tag))
        size = sum(file.lstat().st_size for file in root.rglob("*") if file.is_file() and not file.is_symlink())
        return Image(container, root, found["Docker"]["config"], size)

    def in_container(self, image: Image, *command: str) -> str:
        """What a command prints that Buildah itself runs, with the user of the image."""
        return self._buildah("run", "--isolation=chroot", image.container, "--", *command).strip()

    def _buildah(self, *arguments: str | Path, shown: tuple[str, ...] = ()) -> str:
        return run("buildah", *self._options, *arguments, shown=shown)


def _certificates() -> str:
    return os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile or _SYSTEM_CERTIFICATES


def _pip_settings() -> str:
    """Those of this machine's pip that say how to reach the index."""
    found = run(sys.executable, "-m", "pip", "config", "list")
    names = "cert|extra-index-url|index-url|proxy|timeout|default-timeout|trusted-host"
    settings = {**dict(re.findall(rf"[.:]\.?({names})='(.*)'", found)), "cert": _SYSTEM_CERTIFICATES}
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())
