"""Topics that the user named, and that are not there."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from jobs.reading.named_topics import require_topics
from jobs.reading.topics import Kafka
from transforms.errors import ConfigurationError


def test_a_topic_that_is_not_there(broker: str, make_topic: Callable[..., str]) -> None:
    """It is told before Java starts, with the option that named it and the name that was probably meant."""
    topic, carrier = make_topic(), make_topic()
    kafka = Kafka(broker, {"kafka.security.protocol": "PLAINTEXT", "minPartitions": "3"})
    require_topics(kafka, {"--topic": [topic], "--carrier": [carrier]})
    with pytest.raises(ConfigurationError) as caught:
        require_topics(kafka, {"--topic": [topic], "--carrier": [f"{carrier}x"]})
    assert str(caught.value) == (
        f"--carrier: {carrier}x is not on the broker at {broker}; create it, or check its name; did you mean {carrier}?"
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kafka.security.protocol": "SSL"},
        {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "GSSAPI"},
        {"kafka.ssl.truststore.location": "store.jks"},
    ],
)
def test_a_cluster_that_does_not_answer_is_left_to_spark(
    options: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """What only Kafka's Java client may be able to do is no error of this look, and writes nothing."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        require_topics(Kafka(f"127.0.0.1:{unused.getsockname()[1]}", options), {"--topic": ["t"]})
    assert capfd.readouterr() == ("", "")
