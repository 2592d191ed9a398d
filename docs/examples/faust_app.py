"""Faust: a large value is sent and read back; a record whose payload is gone is replaced.

Needs a topic and a bucket:

    export KAFKA_BOOTSTRAP_SERVERS=localhost:9092 S3_BUCKET=payloads ORDERS_TOPIC=orders
    export AWS_ENDPOINT_URL=http://127.0.0.1:7070 AWS_ACCESS_KEY_ID=me AWS_SECRET_ACCESS_KEY=a-long-password
    python docs/examples/faust_app.py worker
"""

import os
from typing import cast

import faust
from faust.types.tuples import Message

from wideload.serializers import SerializationError
from wideload.serializers.faust import LargeMessageSchema, LargeMessageTopic

STORE = {"large.message.payload.store.class": "s3", "s3.bucket": os.environ.get("S3_BUCKET", "payloads")}


class Order(faust.Record):
    """The application's record; Faust serializes it as JSON, and the schema offloads it if it is large."""

    id: int
    scan: str = ""
    lost: bool = False


def lost(error: SerializationError, message: Message) -> Order:
    """Replaces a record whose payload is gone, so that the agent can continue."""
    print(f"offset {message.offset}: {error.__cause__}")
    return Order(id=-1, lost=True)


app = faust.App(
    "faust-example",
    broker=f"kafka://{os.environ.get('KAFKA_BOOTSTRAP_SERVERS', 'localhost:9092')}",
    consumer_auto_offset_reset="earliest",
    Topic=LargeMessageTopic,  # uploads off the event loop
)
orders = app.topic(
    os.environ.get("ORDERS_TOPIC", "orders"), value_type=Order, schema=LargeMessageSchema(STORE, on_failure=lost)
)


@app.agent(orders)
async def read(stream: faust.StreamT[Order]) -> None:
    """Sees whole orders."""
    async for event in stream.events():
        order = cast("Order", event.value)  # the type of an event knows no model
        if order.lost:
            print(f"offset {event.message.offset}: lost")
        else:
            print(f"offset {event.message.offset}: order {order.id}, {len(order.scan):,} characters", flush=True)


async def write() -> None:
    """Sends 5 MB, and waits until Kafka has them: without that, a failure is only logged."""
    sent = await orders.send(key=b"order", value=Order(id=os.getpid(), scan="x" * 5_000_000))
    await sent


app.task(write)


if __name__ == "__main__":
    app.main()
