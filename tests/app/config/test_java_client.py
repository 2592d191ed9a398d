"""The properties of Kafka's Java client, made of ours, and read into ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.config.client import embedded_client_settings
from app.config.java_client import from_java, to_java
from transforms.errors import ConfigurationError

CREDENTIALS = "sasl.oauthbearer.client.credentials.client"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"


def java(**given: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in given.items()}
    return to_java(embedded_client_settings({"bootstrap.servers": "b:9092", **named}))


def test_a_login_both_ways() -> None:
    """User and password reach Java's client as they are, quotes and all, and come back the same."""
    login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "ann", "sasl.password": 'p"9\\x'}
    found = to_java(embedded_client_settings({"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", **login}))
    assert found["sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="p\\"9\\\\x";'
    )
    again = from_java(found)
    assert {name: again[name] for name in login} == login
    assert "sasl.jaas.config" not in again


def test_logins_by_tokens_both_ways() -> None:
    """Java's client gets id and secret in the login (KIP-768), and names a class of its own, which we leave out."""
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", ENDPOINT: "https://login/token"}
    given |= {f"{CREDENTIALS}.id": "ann", f"{CREDENTIALS}.secret": 'p"9'}
    found = to_java(embedded_client_settings({"bootstrap.servers": "b:1", **given}))
    assert found["sasl.jaas.config"].endswith('LoginModule required clientId="ann" clientSecret="p\\"9";')
    assert found["sasl.login.callback.handler.class"].endswith(".OAuthBearerLoginCallbackHandler")
    again = from_java(found)
    assert {name: again[name] for name in given} == given
    assert not [name for name in again if name.endswith("class")]
    amazon = java(security_protocol="SASL_SSL", sasl_mechanism="AWS_MSK_IAM")
    assert amazon["sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"
    assert from_java(amazon)["sasl.mechanism"] == "AWS_MSK_IAM"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"sasl.jaas.config": "org.example.Module required;"},
            'has no username and password; allowed is … username="…',
        ),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": 'M required clientId="ann";'}, "has no clientId and"),
        (
            {"ssl.truststore.location": "/secret"},
            r"ssl.truststore.location: is supported by Java .*: set ssl.ca.location$",
        ),
        ({"ssl.keystore.password": "secret"}, "set ssl.certificate.location and ssl.key.location$"),
    ],
)
def test_what_only_java_can_use(given: dict[str, str], said: str) -> None:
    """One sentence, with what to give, and without the value."""
    with pytest.raises(ConfigurationError, match=said) as caught:
        from_java(given)
    assert "secret" not in str(caught.value)


def test_pem_files_by_javas_names() -> None:
    """Stores of PEM files are the files that we read, too; the file of a key store has key and certificate."""
    given = {"ssl.truststore.type": "PEM", "ssl.truststore.location": "ca", "ssl.keystore.type": "PEM"}
    given |= {"ssl.keystore.location": "both", "ssl.endpoint.identification.algorithm": "", "ssl.key.password": "p"}
    assert from_java(given) == {
        "ssl.ca.location": "ca",
        "ssl.certificate.location": "both",
        "ssl.key.location": "both",
        "ssl.endpoint.identification.algorithm": "none",
        "ssl.key.password": "p",
    }


def test_certificates(tmp_path: Path) -> None:
    """Java gets what is in the PEM files, so that executors need none; a key that it cannot read is reported."""
    for name in ("ca", "certificate", "key"):
        begin = "PRIVATE KEY" if name == "key" else "CERTIFICATE"
        (tmp_path / name).write_text(f"-----BEGIN {begin}-----\n{name}\n")
    files = {f"ssl_{name}_location": str(tmp_path / name) for name in ("ca", "certificate", "key")}
    given = {**files, "ssl_endpoint_identification_algorithm": "none", "ssl_key_password": "secret"}
    assert java(security_protocol="SSL", **given) == {
        "bootstrap.servers": "b:9092",
        "security.protocol": "SSL",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----BEGIN CERTIFICATE-----\nca\n",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----\ncertificate\n",
        "ssl.keystore.key": "-----BEGIN PRIVATE KEY-----\nkey\n",
        "ssl.key.password": "secret",
    }
    (tmp_path / "key").write_text("-----BEGIN RSA PRIVATE KEY-----\n")
    with pytest.raises(
        ConfigurationError, match=r"ssl\.key\.location: is not in PKCS #8 format, the only one that Java reads"
    ):
        java(security_protocol="SSL", **given)
    (tmp_path / "ca").unlink()
    with pytest.raises(ConfigurationError, match=r"ssl\.ca\.location: .* cannot be read"):
        java(security_protocol="SSL", **given)
