"""Certificate authority of the tests, which certifies this machine's loopback address."""

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.topology.node import HOST

LASTS = dt.timedelta(days=1)
USAGES = (
    "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign "
    "encipher_only decipher_only"
).split()


@dataclass(frozen=True)
class Authority:
    """Authority that is its own server. `ca_file` is for clients, and `context` is for a server."""

    ca_file: Path
    context: ssl.SSLContext


def new_authority(folder: Path) -> Authority:
    """Make an authority in a folder. Its one certificate is that of its server, too."""
    folder.mkdir(parents=True, exist_ok=True)
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"tests {folder.name}")])
    usage = x509.KeyUsage(**{each: each in {"digital_signature", "key_cert_sign", "crl_sign"} for each in USAGES})
    address = x509.IPAddress(ipaddress.ip_address(HOST))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - LASTS, now + LASTS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    ca_file, server_file = folder / "ca.pem", folder / "server.pem"
    ca_file.write_bytes(certificate.public_bytes(pem))
    server_file.write_bytes(certificate.public_bytes(pem) + secret)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_file)
    return Authority(ca_file, context)
