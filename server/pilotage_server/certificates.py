"""The server's certificate: one that every client would refuse is refused at the start; its end is announced."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from pilotage.errors import WorldError

log = structlog.get_logger()

WARNED_BEFORE = timedelta(days=14)
"""How long before the end of the certificate the log warns, once a day."""


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
    except ValueError as error:
        raise WorldError(f"the certificate {path} cannot be used: {error}", transient=False) from error


def _is_supported(certificate: x509.Certificate) -> bool:
    """Return whether the key is of a kind that gRPC's clients accept: BoringSSL's defaults."""
    try:
        key = certificate.public_key()
    except (UnsupportedAlgorithm, ValueError):
        return False
    is_curve = isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1 | SECP384R1)
    return is_curve or isinstance(key, RSAPublicKey)


class CertificateWatch:
    """Warns in the log before the certificate ends. The server reads the file at its start only."""

    def __init__(self, path: Path, ends: datetime, clock: Callable[[], datetime]) -> None:
        self._path = path
        self._ends = ends
        self._clock = clock

    async def run_once(self) -> None:
        """Warn if the end is near, or past."""
        left = self._ends - self._clock()
        if left <= WARNED_BEFORE:
            log.warning(
                "certificate ends soon: renew it and restart the server",
                certificate=str(self._path),
                ends=self._ends.isoformat(),
                days_left=max(0, left.days),
            )
