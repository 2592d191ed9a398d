"""A worker whose disk is full, read-only or gone: with real file systems, mounted where only the worker sees them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.topics import Sent, end_offsets, read_all, send
from tests.integration.way import THRESHOLD, Way, digests, expected
from tests.integration.worker_process import StartedWorker, until

_IN_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


class MountedWorker(StartedWorker):
    """A worker in a mount namespace of its own, where a small disk is bound to the root of its store."""

    disk: Path
    root: Path

    def command(self) -> list[str]:
        """See `StartedWorker.command`."""
        script = 'mount -t tmpfs -o size=1m tmpfs "$0"; mount --bind "$0" "$1"; shift; exec "$@"'
        return [*_IN_NAMESPACE, "sh", "-ec", script, str(self.disk), str(self.root), *super().command()]

    def inside(self, script: str) -> None:
        """Runs a script where the worker's disks are seen; `$0` is the disk, `$1` the root of the store."""
        assert self.process is not None
        command = ["nsenter", "--preserve-credentials", "--user", "--mount", f"--target={self.process.pid}"]
        subprocess.run([*command, "sh", "-ec", script, str(self.disk), str(self.root)], check=True)


def test_worker_outlasts_disk_troubles(make_way: Callable[..., Way]) -> None:
    """Full, read-only and not mounted, one after the other: degraded and why, then on by itself, nothing lost.

    What is written while nothing is mounted would be hidden when it is mounted again; so nothing is.
    """
    try:
        subprocess.run([*_IN_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"this machine lets nobody mount a disk of his own: {exc}")
    way = make_way(partitions=2)
    disk, root = way.folder / "disk", way.folder / "store"
    disk.mkdir()
    quick = {"large.message.store.timeout.ms": 1_000, "errors.retry.delay.max.ms": 200}
    worker = MountedWorker(way.folder, way.settings(), {**way.offload(**quick), **way.inflate(**quick)})
    worker.disk, worker.root = disk, root
    troubles = [
        ("ENOSPC", 'head -c 2000000 /dev/zero > "$0/filler" 2>/dev/null || true', 'rm "$0/filler"'),
        ("EROFS", 'mount -o remount,bind,ro "$1"', 'mount -o remount,bind,rw "$1"'),
        ("is no longer mounted", 'umount --lazy "$1"', 'mount --bind "$0" "$1"'),
    ]
    sent: list[Sent] = []

    def more(partition: int, size: int, count: int = 1) -> None:
        records: list[Sent] = [
            (partition, b"%d" % n, os.urandom(size), [], 1) for n in range(len(sent), len(sent) + count)
        ]
        sent.extend(records)
        send(way.broker, way.raw, records)

    with worker:
        worker.wait_ready()
        more(0, THRESHOLD + 1, 2)
        until(lambda: way.arrived(len(sent)), "all is well at first")
        for reason, break_it, mend_it in troubles:
            worker.inside(break_it)
            more(0, THRESHOLD + 1, 3)
            until(lambda: worker.get("/health")[1]["status"] == "degraded", f"{reason}: degraded")
            assert reason in worker.get("/health")[1]["reasons"]["offload"]
            more(1, 10)
            until(
                lambda: end_offsets(way.broker, way.inflated)[1] == sum(record[0] for record in sent),
                f"{reason}: small records flow",
            )
            assert list(root.iterdir()) == []
            worker.inside(mend_it)
            until(lambda: way.arrived(len(sent)), f"{reason}: all have gone on")
            until(lambda: worker.get("/health")[1]["status"] == "ok", f"{reason}: all is well again")
        assert [(page["state"], page["restarts"]) for page in worker.get("/pipelines")[1]] == [("RUNNING", 0)] * 2
        assert worker.terminate() == 0
    assert digests(read_all(way.broker, way.inflated)) == expected(sent)
