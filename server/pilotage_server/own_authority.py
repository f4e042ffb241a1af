"""The certificate authority that a server makes for itself, and the server certificates that it issues.

Rules
-----
- The folder `tls` of the server's data has the authority (`authority.key`, `authority.pem`) and the present server
  certificate behind its key (`server.pem`). Only the server's user may read them.
- The authority is made once: joined machines trust it by its fingerprint. A lost one cannot be replaced unseen.
- The server certificate is replaced when a third of its life is left, and when the machine has got another address.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pilotage.errors import WorldError
from pilotage_server.rpc.framework.key_files import write_private

log = structlog.get_logger()

AUTHORITY_LIFE = timedelta(days=3650)
CLOCK_SKEW = timedelta(hours=1)
"""Certificates begin this long ago, for machines whose clocks are slow."""

_IPV4_TABLE, _IPV6_TABLE = Path("/proc/net/fib_trie"), Path("/proc/net/if_inet6")
_LINK_LOCAL = "20"
"""The scope of addresses in /proc/net/if_inet6 that no other network reaches."""


@dataclass(frozen=True, slots=True)
class AuthorityFiles:
    """The files of an authority in its folder; `certificate` is public, and what clients trust."""

    folder: Path

    @property
    def key(self) -> Path:
        """The file of the private key."""
        return self.folder / "authority.key"

    @property
    def certificate(self) -> Path:
        """The file of the authority's certificate."""
        return self.folder / "authority.pem"

    def load(self) -> Authority | None:
        """Return the authority; None = there is none. Raises WorldError if a file cannot be used."""
        if not self.certificate.exists():
            return None
        with _translated(self.certificate):
            certificate = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        with _translated(self.key):
            if self.key.stat().st_mode & 0o077:
                raise ValueError(
                    "it is open to others, who could act as this server; if no other user has read it, chmod 600 it"
                )
            key = _private_key(self.key.read_bytes())
        if key.public_key() != certificate.public_key():
            raise _unusable(self.key, "it does not belong to authority.pem")
        return Authority(key, certificate)

    def put_back(self, contents: Mapping[str, bytes]) -> None:
        """Write the files of a backup, by their names. Raises WorldError."""
        with _translated(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in (self.key, self.certificate):
                _replace(path, contents[path.name])

    def load_or_make(self, now: datetime) -> Authority:
        """Return the authority; the first call makes it. Raises WorldError."""
        found = self.load()
        if found is not None:
            return found
        key = generate_private_key(SECP256R1())
        certificate = _new_authority(key, now)
        with _translated(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(self.key, _pem(key))  # first: a key without a certificate is replaced after a crash
            _replace(self.certificate, certificate.public_bytes(Encoding.PEM))
        return Authority(key, certificate)


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority."""

    key: EllipticCurvePrivateKey
    certificate: x509.Certificate

    def fingerprint(self) -> str:
        """Return the SHA-256 of the certificate, hexadecimal."""
        return self.certificate.fingerprint(hashes.SHA256()).hex()

    def issue(self, public: EllipticCurvePublicKey, names: Iterable[str], life: timedelta, now: datetime) -> bytes:
        """Return a server certificate for names and addresses, with the authority's behind it (PEM)."""
        alternatives = x509.SubjectAlternativeName(map(_alternative, sorted(names)))
        issued = (
            _builder(public, "Pilotage server", self.certificate.subject, now)
            .not_valid_after(min(now + life, self.certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(alternatives, critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        return b"".join(each.public_bytes(Encoding.PEM) for each in (issued, self.certificate))

    def has_issued(self, certificate: x509.Certificate) -> bool:
        """Return whether the certificate is from this authority."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


def _new_authority(key: EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    public = key.public_key()
    name = f"Pilotage authority {secrets.token_hex(4)}"  # two of the same name could not be told apart
    usage = dict.fromkeys(
        (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return (
        _builder(public, name, _name(name), now)
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )


def _builder(public: EllipticCurvePublicKey, subject: str, issuer: x509.Name, now: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """The server certificate of the server's own authority, for this machine and `more_names`."""

    folder: Path
    more_names: tuple[str, ...]
    life: timedelta

    @property
    def path(self) -> Path:
        """The file of the certificate chain, behind its private key."""
        return self.folder / "server.pem"

    def load(self, now: datetime) -> tuple[bytes, bytes]:
        """Return private key and chain (PEM), issued first if that is due. Raises WorldError."""
        authority = self._authority(now)
        names = machine_names(self.more_names)
        present = self._present(authority)
        if present is None or self._is_due(present[1], names, now):
            key = generate_private_key(SECP256R1())
            chain = authority.issue(key.public_key(), names, self.life, now)
            with _translated(self.path):
                _replace(self.path, _pem(key) + chain)
            log.info("server certificate issued", names=sorted(names), certificate=str(self.path))
            return _pem(key), chain
        key, certificate = present
        return _pem(key), b"".join(each.public_bytes(Encoding.PEM) for each in (certificate, authority.certificate))

    def _authority(self, now: datetime) -> Authority:
        files = AuthorityFiles(self.folder)
        if self.path.exists() and files.load() is None:
            raise _unusable(files.certificate, "it is missing")
        authority = files.load_or_make(now)
        begins, ends = authority.certificate.not_valid_before_utc, authority.certificate.not_valid_after_utc
        if not begins <= now < ends:  # mostly of a machine whose clock was wrong at the first start
            why = f"it is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d} only: check the clock of this host"
            raise _unusable(files.certificate, why)
        return authority

    def _present(self, authority: Authority) -> tuple[EllipticCurvePrivateKey, x509.Certificate] | None:
        """Return the present key and certificate; None = they are to be replaced."""
        try:
            content = self.path.read_bytes()
            key, certificate = _private_key(content), x509.load_pem_x509_certificate(content)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
            return None
        fits = key.public_key() == certificate.public_key() and authority.has_issued(certificate)
        return (key, certificate) if fits else None

    def _is_due(self, certificate: x509.Certificate, names: frozenset[str], now: datetime) -> bool:
        present = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if any(_alternative(name) not in present for name in names):
            return True
        ends = certificate.not_valid_after_utc
        issued_for = ends - certificate.not_valid_before_utc - CLOCK_SKEW
        # It ends too late if the setting was changed, or if the clock was ahead.
        return now + self.life < ends or now >= ends - issued_for / 3


def machine_names(more: Iterable[str] = ()) -> frozenset[str]:
    """Return the names and addresses by which other machines and this one may reach this machine."""
    host = socket.gethostname()
    names = {"localhost", "127.0.0.1", "::1", *more, *_addresses()}
    return frozenset(names | ({host} if host and host.isascii() else set()))


def _addresses() -> Iterator[str]:
    """Yield the addresses of the interfaces, as the kernel lists them."""
    with suppress(OSError):
        lines = _IPV4_TABLE.read_text().splitlines()
        for line, following in pairwise(lines):
            if following.strip() == "/32 host LOCAL":
                yield line.split()[-1]
    with suppress(OSError):  # without IPv6 there is no such file
        for line in _IPV6_TABLE.read_text().splitlines():
            number, _, _, scope, *_ = line.split()
            if scope != _LINK_LOCAL:
                yield str(ipaddress.IPv6Address(bytes.fromhex(number)))


def _private_key(content: bytes) -> EllipticCurvePrivateKey:
    key = load_pem_private_key(content, password=None)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ValueError("it holds a key of another type than ECDSA")
    return key


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _replace(path: Path, content: bytes) -> None:
    """Write a file for its owner alone; a reader sees the old or the new one."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_private(draft, content)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _unusable(path, str(error)) from error


def _unusable(path: Path, why: str) -> WorldError:
    advice = (
        f"put it back from a backup, or remove {path.parent} to make a new authority, which each machine has to join"
    )
    return WorldError(f"the server's own authority cannot be used, {path}: {why}; {advice}", transient=False)
