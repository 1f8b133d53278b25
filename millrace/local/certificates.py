"""Certificates for a server on loopback.

MySQL makes its own when its data folder is initialised. MariaDB 11.4 makes a key of 4096 bits at every start
unless it is given one, which takes several seconds.
"""

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_VALIDITY = dt.timedelta(days=3650)


def write_certificates(folder: Path) -> None:
    """Write ``ca.pem``, ``server-cert.pem`` (for localhost and 127.0.0.1) and ``server-key.pem``."""
    ca_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name, server_name = _name("Millrace local CA"), _name("localhost")
    ca = _builder(ca_name, ca_name, ca_key.public_key())
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    server = _builder(server_name, ca_name, server_key.public_key())
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = server.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
    for name, builder in (("ca", ca), ("server-cert", server)):
        certificate = builder.sign(ca_key, hashes.SHA256())
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file = folder / "server-key.pem"
    key_file.touch(mode=0o600)
    key_file.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + _VALIDITY)
    )
