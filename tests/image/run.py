"""`make image-test`: builds the image of the Dockerfile, and sends records through the worker in it.

With Docker or Podman it brings up `docker-compose.yml`. Without, Buildah builds the image on a stand-in for its base;
the worker runs with the embedded Kafka broker and a store in a folder. That takes root, and a minute or two. No part of
`make test`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from app.local.broker import EmbeddedBroker
from app.local.jars import cache_folder
from tests.image.base import stand_in
from tests.image.buildah import Buildah, Image, first_process
from tests.image.compose import engine, try_compose
from tests.image.tools import ImageError, expect, needed, say, step
from tests.image.traffic import FOLDER, travel
from tests.integration.worker_process import toml, until
from transforms.errors import WideloadError

_PORT = 6066  # of the image's health check
_USER = 10001
_STORE = "/var/lib/payloads"
_CONFIG = "/etc/wideload"
_STOP_S = 40
# What is for the build alone.
_LEFT_OVER = ("**/pip", "**/pip-*", "root/.cache", "src", "opt/wideload/bin/pip*", "tmp/*", "**/*.whl", "**/.git")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.image.run", description=__doc__)
    parser.add_argument("--buildah", action="store_true", help="with Buildah, though Docker or Podman answers")
    parser.add_argument("--keep", action="store_true", help="leave images and logs in build/image-…")
    options = parser.parse_args(arguments)
    Path("build").mkdir(exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="image-", dir="build")).resolve()
    work.chmod(0o755)  # the image's user reads its configuration there
    began = time.monotonic()
    try:
        found = None if options.buildah else engine()
        if found is not None:
            try_compose(found, work)
        else:
            _try_buildah(work)
    except (ImageError, AssertionError, OSError, subprocess.SubprocessError, WideloadError) as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    print(f"The image works: {time.monotonic() - began:.0f} s")
    return 0


def _try_buildah(work: Path) -> None:
    print("No Docker or Podman answers: Buildah builds the image on a stand-in for its base.")
    if os.geteuid() != 0:
        raise ImageError("without Docker or Podman this test mounts and changes users, which takes root: sudo make …")
    needed("buildah", "unshare", "setpriv")
    with step("make the base"):
        archive = stand_in(cache_folder() / "image", work)
    buildah = Buildah(work)
    with step("bring it into Buildah"):
        buildah.base(archive)
    with step("build the Dockerfile"):
        image = buildah.build()
    with step("look at the image"):
        _look(buildah, image)
    _run(image, work)


def _look(buildah: Buildah, image: Image) -> None:
    size = image.size_bytes / 1e6
    own = sum(file.lstat().st_size for file in (image.root / "opt/wideload").rglob("*")) / 1e6
    say(f"size: {size:.0f} MB, of them {own:.0f} MB Wideload and its packages, the rest is the stand-in's")
    expect(image.config["User"], f"{_USER}:{_USER}", "user of the image")
    expect(image.config["StopSignal"], "SIGTERM", "signal to stop")
    expect(
        buildah.in_container(image, "python", "-c", "import os; print(os.getuid(), os.getgid())"),
        f"{_USER} {_USER}",
        "user and group in a container",
    )
    say(buildah.in_container(image, *image.config["Entrypoint"], "--version"))
    buildah.in_container(image, "python", "-Ic", "import boto3, aws_msk_iam_sasl_signer")
    say("packages for S3 and MSK: there")
    left = sorted(str(each.relative_to(image.root)) for pattern in _LEFT_OVER for each in image.root.glob(pattern))
    expect(left, [], "left of the build")
    writable = [
        str(each.relative_to(image.root))
        for each in (image.root / "opt/wideload").rglob("*")
        if not each.is_symlink() and (each.stat().st_uid == _USER or each.stat().st_mode & 0o022)
    ]
    expect(writable, [], "what the worker could change of itself")
    names = [each.split("=", 1)[0] for each in image.config["Env"]]
    expect(sorted(names), ["PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"], "variables of the image")


def _run(image: Image, work: Path) -> None:
    folders = {name: work / name for name in ("files", "payloads", "etc")}
    for folder in folders.values():
        folder.mkdir()
        folder.chmod(0o755)
    os.chown(folders["payloads"], _USER, _USER)
    mounts = {
        _CONFIG: (folders["etc"], "ro"),
        _STORE: (folders["payloads"], "rw"),
        FOLDER: (folders["files"], "rw"),
    }
    config = ("-c", f"{_CONFIG}/wideload.toml")
    with step("start an embedded Kafka broker"):
        broker = EmbeddedBroker()
        broker.start()
    with broker:
        file = folders["etc"] / "wideload.toml"
        file.write_text(_configuration(broker.bootstrap_servers))
        file.chmod(0o644)

        def wideload(*arguments: str) -> str:
            return image.wideload(mounts, work / "command.log", *arguments)

        with step("make the topics, and check"):
            wideload("topics", "create", *config, "--yes", "--partitions", "3", "--max-message-bytes", "32MiB")
            say(wideload("check", *config).splitlines()[-1])
        log = work / "worker.log"
        before = _files(image.root)
        command = [*image.config["Entrypoint"], *image.config["Cmd"]]
        try:
            with image.process(command, mounts, log) as process:
                with step("start the worker, as process 1"):
                    worker = first_process(process)
                    until(image.healthy, "the health check passes", 60)
                    say("the health check passes")
                    _look_at_process(worker)
                travel(wideload, folders["files"], config)
                with step("SIGTERM"):
                    worker.send_signal(signal.SIGTERM)
                    expect(process.wait(_STOP_S), 0, "status")
        except BaseException:
            print(log.read_text() if log.exists() else "", file=sys.stderr)
            raise
        expect(image.healthy(), False, "health check without a worker")
        expect(sorted(_files(image.root) ^ before), [], "files that the worker has left outside of its store")
        payloads = [file for file in folders["payloads"].rglob("*") if file.is_file()]
        expect({file.stat().st_uid for file in payloads}, {_USER}, "owner of the payloads")


def _look_at_process(worker: psutil.Process) -> None:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines())
    expect(status["NSpid"].split()[-1], "1", "process id inside")
    expect(set(status["Uid"].split() + status["Gid"].split()), {str(_USER)}, "its user and group")
    capabilities = {status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    expect(capabilities, {"0" * 16}, "its capabilities")
    expect(status["NoNewPrivs"].strip(), "1", "no new privileges")
    mounts = [line.split() for line in Path(f"/proc/{worker.pid}/mounts").read_text().splitlines()]
    (options,) = {each[3].split(",")[0] for each in mounts if each[1] == "/"}
    expect(options, "ro", "its root file system")


def _files(root: Path) -> set[tuple[str, int]]:
    """All files, with the time of their last change."""
    found = (path for path in root.rglob("*") if path.parts[len(root.parts)] not in {"dev", "proc", "sys"})
    return {(str(path.relative_to(root)), path.lstat().st_mtime_ns) for path in found}


def _configuration(bootstrap: str) -> str:
    store = {"large.message.payload.store.class": "filesystem", "filesystem.root": _STORE}
    return toml(
        {"bootstrap.servers": bootstrap, "web.bind": "0.0.0.0", "web.port": _PORT, **store},  # noqa: S104  # as in a pod
        {
            "orders-offload": {"topics": ["raw-large"], "output.topic": "orders", "transforms": ["offload"]},
            "orders-inflate": {"topics": ["orders"], "output.topic": "orders-inflated", "transforms": ["inflate"]},
        },
    )


if __name__ == "__main__":
    sys.exit(main())
