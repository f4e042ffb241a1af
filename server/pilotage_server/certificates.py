"""The server's certificate: one that every client would refuse is refused; a renewed one is used without a restart."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256

from pilotage.errors import WorldError
from pilotage_server.own_authority import OwnCertificate

log = structlog.get_logger()

WARNED_BEFORE = timedelta(days=14)
"""How long before the end of the certificate the log warns, once a day."""

_WARN_EVERY = timedelta(days=1)


def check_certificate(path: Path, now: datetime) -> datetime:
    """Return when a certificate chain (PEM) ends: with the first of its certificates to end.

    Raises
    ------
    WorldError
        It has ended or not begun, or gRPC's clients do not support the kind of its key.
    """
    chain = _chain(path)
    for each in chain:
        name = f"the certificate {path} ({each.subject.rfc4514_string()})"
        if now >= each.not_valid_after_utc:
            raise WorldError(
                f"{name} ended at {each.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: renew it", transient=False
            )
        if now < each.not_valid_before_utc:
            begins = f"{each.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
            raise WorldError(f"{name} is not valid before {begins}: check the clock of this host", transient=False)
    if not _is_supported(chain[0]):
        why = "clients do not support the kind of its key: make one with RSA, or with ECDSA on P-256 or P-384"
        raise WorldError(f"the certificate {path} cannot be used: {why}", transient=False)
    return min(each.not_valid_after_utc for each in chain)


def _chain(path: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        raise WorldError(f"the certificate {path} cannot be used: {error}", transient=False) from error


def _is_supported(certificate: x509.Certificate) -> bool:
    """Return whether the key is of a kind that gRPC's clients accept: BoringSSL's defaults."""
    try:
        key = certificate.public_key()
    except (UnsupportedAlgorithm, ValueError):
        return False
    is_curve = isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1 | SECP384R1)
    return is_curve or isinstance(key, RSAPublicKey)


@dataclass(frozen=True, slots=True)
class ConfiguredCertificate:
    """The certificate chain and the key of the settings (PEM)."""

    path: Path
    key: Path

    def load(self, now: datetime) -> tuple[bytes, bytes]:
        """Return private key and chain (PEM). Raises WorldError as `check_certificate`, or if the key does not fit."""
        check_certificate(self.path, now)
        try:  # gRPC's own report of a key that does not fit has many lines
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.path, self.key)
            return self.key.read_bytes(), self.path.read_bytes()
        except OSError as error:
            message = f"the certificate {self.path} with the key {self.key} cannot be used: {error}"
            raise WorldError(message, transient=False) from error


class ServedCertificate:
    """The certificate that a server presents. A new one in the files is presented to the connections that follow."""

    def __init__(self, source: ConfiguredCertificate | OwnCertificate, clock: Callable[[], datetime]) -> None:
        self.path = source.path
        self._source = source
        self._clock = clock
        self._pair = self._presented = source.load(clock())
        self._warned: datetime | None = None
        self._contexts: list[ssl.SSLContext] = []

    @property
    def authority(self) -> str:
        """The fingerprint (SHA-256, hexadecimal) of the authority that ends the chain; "" = the chain has none."""
        last = self._chain()[-1]
        return last.fingerprint(SHA256()).hex() if last.subject == last.issuer else ""

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of gRPC's server, which follow this certificate."""
        return grpc.dynamic_ssl_server_credentials(_configuration(self._pair), self._fetch)

    def tls_context(self) -> ssl.SSLContext:
        """Return the context of a server that uses Python's TLS, which follows this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load(context, self._pair)
        self._contexts.append(context)
        return context

    def _fetch(self) -> Any:  # gRPC's stubs leave out None
        """Return a new certificate, None = it is the same. gRPC calls this in its thread at each handshake."""
        pair = self._pair
        if pair is self._presented:
            return None
        self._presented = pair
        return _configuration(pair)

    async def refresh(self) -> None:
        """Read the files again, and warn once a day if the end is near; a bad file leaves the present one in use.

        Raises WorldError for such a file.
        """
        now = self._clock()
        pair = await asyncio.to_thread(self._source.load, now)
        if pair != self._pair:
            self._pair = pair
            for context in self._contexts:
                _load(context, pair)
            log.info("certificate has changed: new connections get it", certificate=str(self.path))
        ends = min(each.not_valid_after_utc for each in self._chain())
        if ends - now <= WARNED_BEFORE and (self._warned is None or now - self._warned >= _WARN_EVERY):
            self._warned = now
            log.warning(
                "certificate ends soon: renew it",
                certificate=str(self.path),
                ends=ends.isoformat(),
                days_left=max(0, (ends - now).days),
            )

    def _chain(self) -> list[x509.Certificate]:
        return x509.load_pem_x509_certificates(self._pair[1])


def _load(context: ssl.SSLContext, pair: tuple[bytes, bytes]) -> None:
    """Load private key and chain. Python loads files only: this one is in memory, as the key must not be elsewhere."""
    with open(os.memfd_create("certificate"), "wb") as file:
        file.write(b"".join(pair))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def _configuration(pair: tuple[bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([pair])
