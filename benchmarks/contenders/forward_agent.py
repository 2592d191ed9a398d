"""A Faust agent that forwards each event, with Faust's own defaults.

python forward_agent.py BOOTSTRAP SOURCE SINK
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import faust


def main(folder: str, bootstrap: str, source: str, sink: str) -> None:
    """Runs until SIGTERM; `folder` is for what Faust wants to keep."""
    app = faust.App(
        f"{sink}-agent",
        broker=f"kafka://{bootstrap}",
        web_enabled=False,
        datadir=Path(folder),
    )
    source_topic = app.topic(source, key_serializer="raw", value_serializer="raw")
    sink_topic = app.topic(sink, key_serializer="raw", value_serializer="raw")

    @app.agent(source_topic)
    async def forward(stream: Any) -> None:
        async for event in stream.events():
            await event.forward(sink_topic)

    faust.Worker(app, loglevel="WARNING", quiet=True).execute_from_commandline()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="bench-faust-") as temporary:
        main(temporary, *sys.argv[1:])
