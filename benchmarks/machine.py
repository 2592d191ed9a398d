"""The machine and the versions that a measurement was made with; numbers mean little without them."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path

import psutil

_DISTRIBUTIONS = ("aiokafka", "faust-streaming", "boto3", "psutil")


def load_average() -> float:
    """How many processes wanted a core in the last minute, on average."""
    return os.getloadavg()[0]


def describe() -> dict[str, object]:
    """Cores, memory, system and versions, ready for JSON."""
    return {
        "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": os.cpu_count(),
        "memory_mib": psutil.virtual_memory().total // 2**20,
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average_at_start": round(load_average(), 2),
        "versions": {name: metadata.version(name) for name in _DISTRIBUTIONS},
    }


def sentence(machine: dict[str, object]) -> str:
    """`describe` in one line."""
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_mib']:,} MiB, {machine['system']}, "
        f"Python {machine['python']}, load average {machine['load_average_at_start']}"
    )


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
