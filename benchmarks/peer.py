"""The peer's Python environment: faust-large-message-serializer and its dependencies, pinned in `peer.lock`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from app.local.jars import cache_folder

_LOCK = Path(__file__).with_name("peer.lock")
_MESSAGE_CHARACTERS = 500


class PeerUnavailableError(Exception):
    """The peer's environment cannot be created; the message has the reason."""


def python() -> Path:
    """The interpreter of the peer's environment, created in the cache directory at the first call.

    Raises:
        PeerUnavailableError: it cannot be created, for instance without a network.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / f"bench-peer-{version}-{hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:12]}"
    interpreter = folder / "bin" / "python"
    done = folder / "complete"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(folder))
        _run(str(interpreter), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(_LOCK))
        done.touch()
    return interpreter


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        said = ended.stderr.strip()[-_MESSAGE_CHARACTERS:]
        raise PeerUnavailableError(f"{' '.join(command[:4])} ended with status {ended.returncode}: {said}")
