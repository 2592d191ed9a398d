"""The name that a worker had which is forked; each is, by now."""

from __future__ import annotations

from tests.integration.worker_process import WorkerProcess as ForkedWorker

__all__ = ["ForkedWorker"]
