"""The peer: a Faust agent that puts large values in S3 by faust-large-message-serializer, and sends references.

Runs in the environment of `peer.lock`; credentials come in the environment, for command lines are public.

    python peer_agent.py BOOTSTRAP SOURCE SINK ENDPOINT BASE_PATH
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import faust
from faust_large_message_serializer import (  # type: ignore[import-not-found]  # another environment has it
    LargeMessageSerializer,
    LargeMessageSerializerConfig,
)
from loguru import logger  # type: ignore[import-not-found]  # likewise


def main(folder: str, bootstrap: str, source: str, sink: str, endpoint: str, base_path: str) -> None:
    """Runs until SIGTERM; `folder` is for what Faust wants to keep."""
    logger.remove()  # it would write a line a record
    config = LargeMessageSerializerConfig(
        base_path=base_path,
        large_message_s3_endpoint=endpoint,
        large_message_s3_region=os.environ["AWS_DEFAULT_REGION"],
        large_message_s3_access_key=os.environ["AWS_ACCESS_KEY_ID"],
        large_message_s3_secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
    )
    serializer = LargeMessageSerializer(sink, config)
    app = faust.App(
        f"{sink}-agent",
        broker=f"kafka://{bootstrap}",
        web_enabled=False,
        datadir=Path(folder),
    )
    source_topic = app.topic(source, key_serializer="raw", value_serializer="raw")
    sink_topic = app.topic(sink, key_serializer="raw", value_serializer="raw")

    @app.agent(source_topic)
    async def store(stream: Any) -> None:
        async for event in stream.events():
            # Faust hands bytes past a topic's serializer, so it is called here, as Faust would call it.
            _acknowledgement = await sink_topic.send(key=event.key, value=serializer.dumps(event.value))

    faust.Worker(app, loglevel="WARNING", quiet=True).execute_from_commandline()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="bench-faust-") as temporary:
        main(temporary, *sys.argv[1:])
