"""Keys of a configuration as arguments of a client: names, types, options, TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from app.kafka.arguments import Arguments
from transforms.errors import ConfigurationError

CLIENT = Arguments(
    {
        "bootstrap_servers": "localhost",
        "acks": object(),
        "compression_type": None,
        "enable_idempotence": False,
        "linger_ms": 0,
        "max_batch_size": 16_384,
        "rebalance_timeout_ms": None,
        "retries": float("inf"),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_password": None,
        "sasl_plain_username": None,
        "security_protocol": "PLAINTEXT",
        "ssl_context": None,
    },
    renamed={"batch.size": "max_batch_size"},
    aside=frozenset({"max.block.ms"}),
)
WITH_FILES = Arguments({**CLIENT.defaults, "ssl_cafile": None})


@pytest.mark.parametrize(
    ("key", "value", "arguments"),
    [
        ("bootstrap.servers", "a:1,b:2", {"bootstrap_servers": "a:1,b:2"}),
        ("acks", "all", {"acks": "all"}),
        ("acks", "1", {"acks": 1}),
        ("acks", 0, {"acks": 0}),
        ("compression.type", "none", {"compression_type": None}),
        ("compression.type", "zstd", {"compression_type": "zstd"}),
        ("enable.idempotence", "True", {"enable_idempotence": True}),
        ("linger.ms", "5", {"linger_ms": 5}),
        ("rebalance.timeout.ms", "5000", {"rebalance_timeout_ms": 5000}),
        ("retries", "inf", {"retries": float("inf")}),
        ("batch.size", "100", {"max_batch_size": 100}),
        ("sasl.mechanisms", "PLAIN", {"sasl_mechanism": "PLAIN"}),
        ("sasl.username", "123", {"sasl_plain_username": "123"}),
        ("sasl.plain.password", "1.5", {"sasl_plain_password": "1.5"}),
        ("security.protocol", "sasl_plaintext", {"security_protocol": "SASL_PLAINTEXT"}),
        ("max.block.ms", 5, {}),  # only serializers read it
    ],
)
def test_a_key_is_an_argument(key: str, value: object, arguments: dict[str, object]) -> None:
    """A key has its argument, and a string is what the argument takes."""
    assert key in CLIENT.keys()  # noqa: SIM118  # a method of its own
    assert CLIENT.read({key: value}) == arguments


def test_another_key_is_not() -> None:
    """What the client lacks is not its own, nor is a key in the spelling of arguments."""
    assert not {"bootstrap.server", "bootstrap_servers", "max.request.size", "s3.bucket"} & {*CLIENT.keys()}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"linger.ms": "soon"}, r"^linger\.ms: found 'soon', allowed is a number$"),
        ({"enable.idempotence": "perhaps"}, r"^enable\.idempotence: found 'perhaps', allowed is true or false$"),
        (
            {"sasl.username": "a", "sasl.plain.username": "b"},
            r"^sasl\.plain\.username: says again what sasl_plain_username is",
        ),
    ],
)
def test_a_wrong_value_is_refused(given: dict[str, str], told: str) -> None:
    """A string that is none of the argument's values, or an argument named twice, is told with its key."""
    with pytest.raises(ConfigurationError, match=told):
        CLIENT.read(given)


def test_options_join_the_configuration() -> None:
    """An option is the key with other dots; one of the two, not both."""
    assert CLIENT.merged({"acks": "all"}, {"max_request_size": 5}) == {"acks": "all", "max.request.size": 5}
    with pytest.raises(ConfigurationError, match=r"^linger\.ms: is set in the configuration and as linger_ms="):
        CLIENT.merged({"linger.ms": 5}, {"linger_ms": 5})


def test_tls_has_a_context(tmp_path: Path) -> None:
    """A client that makes none by itself gets one; one that does only where the files have Kafka's names."""
    tls = {"security.protocol": "SASL_SSL", "ssl.endpoint.identification.algorithm": "none"}
    for client in (CLIENT, WITH_FILES):
        context = client.read(tls)["ssl_context"]
        assert isinstance(context, ssl.SSLContext)
        assert not context.check_hostname
    assert isinstance(CLIENT.read({"security.protocol": "ssl"})["ssl_context"], ssl.SSLContext)
    assert "ssl_context" not in WITH_FILES.read({"security.protocol": "SSL", "ssl.cafile": "ca.pem"})
    assert "ssl_context" not in CLIENT.read({"security.protocol": "PLAINTEXT"})
    assert CLIENT.read({"security.protocol": "SSL", "ssl.context": None})["ssl_context"] is not None
    given = ssl.create_default_context()
    assert CLIENT.read({"security.protocol": "SSL", "ssl.context": given})["ssl_context"] is given
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(ConfigurationError, match=r"^ssl\.ca\.location: is not a PEM file"):
        CLIENT.read({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "ca.pem")})
