"""Certificates of an S3 server that expire and are renewed while a store is open."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.stores.scripted_server import payload, scripted_server
from tests.stores.test_s3 import NAME, opened
from transforms.errors import PayloadStoreError

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """An authority, whose own certificate clients trust by `pem`."""

    name: x509.Name
    key: ec.EllipticCurvePrivateKey
    pem: bytes

    @classmethod
    def named(cls, text: str) -> Authority:
        """A new one."""
        name, key = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]), ec.generate_private_key(_CURVE)
        made = _certificate(name, name, key, key, dt.datetime.now(dt.UTC) + _DAY, authority=True)
        return cls(name, key, made.public_bytes(serialization.Encoding.PEM))

    def serve(self, context: ssl.SSLContext, folder: Path, ends: dt.datetime) -> None:
        """Makes the next connections of a server on 127.0.0.1 have a certificate that ends then."""
        key, host = ec.generate_private_key(_CURVE), x509.Name([])
        made = _certificate(host, self.name, key, self.key, ends, authority=False)
        plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        file = folder / "server.pem"
        pem = serialization.Encoding.PEM
        file.write_bytes(key.private_bytes(pem, *plain) + made.public_bytes(pem))
        context.load_cert_chain(file)


_CURVE = ec.SECP256R1()


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signing: ec.EllipticCurvePrivateKey,
    ends: dt.datetime,
    *,
    authority: bool,
) -> x509.Certificate:
    keys = key.public_key(), signing.public_key()
    usage = x509.KeyUsage(*[each in (0, 5, 6) for each in range(9)])  # a signature, of certificates too
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    extensions: tuple[tuple[x509.ExtensionType, bool], ...] = (
        (x509.BasicConstraints(ca=authority, path_length=None), True),
        (x509.SubjectKeyIdentifier.from_public_key(keys[0]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[1]), False),
        (usage, True) if authority else (names, True),
    )
    built = x509.CertificateBuilder(issuer, subject, keys[0], x509.random_serial_number(), ends - 9 * _DAY, ends)
    for extension, critical in extensions:
        built = built.add_extension(extension, critical)
    return built.sign(signing, hashes.SHA256())


def test_a_certificate_that_is_renewed_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expired one is a final error, which a pipeline that has worked waits for; a new one is taken by the next call.

    So is one of another authority, as soon as the file of authorities has it.
    """
    trusted, now = tmp_path / "ca.pem", dt.datetime.now(dt.UTC)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
    first, second = Authority.named("first"), Authority.named("second")
    trusted.write_bytes(first.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    first.serve(context, tmp_path, now + _DAY)
    with scripted_server(payload(b"", length=0), context) as server, opened(server.config()) as store:
        store.put(*NAME, b"data")
        first.serve(context, tmp_path, now - _DAY)
        with pytest.raises(PayloadStoreError, match="certificate has expired") as caught:
            store.put(*NAME, b"data")
        assert (caught.value.retriable, caught.value.key) == (False, "s3.endpoint")
        first.serve(context, tmp_path, now + _DAY)
        store.put(*NAME, b"data")
        second.serve(context, tmp_path, now + _DAY)
        with pytest.raises(PayloadStoreError, match="CERTIFICATE_VERIFY_FAILED"):
            store.put(*NAME, b"data")
        trusted.write_bytes(second.pem)
        store.put(*NAME, b"data")
