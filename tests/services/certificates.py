"""A certificate authority for one test session, and a certificate of loopback signed by it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import find_tools, tool

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_DAYS = ("-days", "2")
_EXTENSIONS = """\
subjectAltName=DNS:localhost,IP:127.0.0.1
basicConstraints=critical,CA:FALSE
extendedKeyUsage=serverAuth
"""


@dataclass(frozen=True)
class Certificates:
    """PEM files."""

    ca: Path  # what clients have to trust
    certificate: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    """Make a CA and a certificate of "localhost" and 127.0.0.1, valid for two days.

    Not one self-signed certificate for both: strict clients take no CA's certificate for a server.

    Raises:
        MissingToolError: no openssl.
        ServiceError: openssl failed.
    """
    openssl = find_tools({"openssl": "openssl"})["openssl"]
    made = Certificates(directory / "ca.pem", directory / "server.pem", directory / "server.key")
    ca_key, request, extensions = (directory / name for name in ("ca.key", "csr", "extensions"))
    extensions.write_text(_EXTENSIONS)
    authority = ("-keyout", str(ca_key), "-out", str(made.ca))
    tool([openssl, "req", "-x509", *_KEY, *_DAYS, "-subj", "/CN=hpckit test CA", *authority])
    wanted = ("-keyout", str(made.key), "-out", str(request))
    tool([openssl, "req", *_KEY, "-subj", "/CN=localhost", *wanted])
    signer = ("-CA", str(made.ca), "-CAkey", str(ca_key), "-CAcreateserial")
    signed = ("-extfile", str(extensions), "-in", str(request), "-out", str(made.certificate))
    tool([openssl, "x509", "-req", *signer, *_DAYS, *signed])
    return made
