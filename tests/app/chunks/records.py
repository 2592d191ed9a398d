"""An inbox of plain records."""

from __future__ import annotations

from app.chunks.inbox import Inbox
from app.kafka.source_batch import ReadRecord
from transforms.chunked_message import Assembled


class Records(Inbox[ReadRecord]):
    """Takes a message as its last chunk with another value."""

    def whole(self, last: ReadRecord, message: Assembled) -> ReadRecord:
        return last._replace(value=message.record.value, headers=message.record.headers)
