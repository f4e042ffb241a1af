"""A command finds out whom it talks to: what it says of each fault of a server's certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from pilotage import clock
from pilotage.errors import ServerUnreachableError, WorldError
from pilotage.rpc.channel import system_authorities
from pilotage_client.cli.main import main
from pilotage_client.joining import JoinToken, fetch_authority, join
from pilotage_server.certificates import ConfiguredCertificate, ServedCertificate
from pilotage_server.own_authority import AuthorityFiles, OwnCertificate
from support.server import running_server, self_signed_certificate


@dataclass(frozen=True)
class Certificate:
    """What the certificate of a server says."""

    name: str = "localhost"
    since_days: int = -2
    until_days: int = 2


class Authority:
    """A certificate authority, with its certificate in a file."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        own = self._certificate(self._name, self._key, Certificate(), is_authority=True)
        self.file.write_bytes(own.public_bytes(Encoding.PEM))

    def issue(self, certificate: Certificate) -> grpc.ServerCredentials:
        """Return the credentials of a server."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, certificate.name)])
        issued = self._certificate(name, key, certificate, is_authority=False).public_bytes(Encoding.PEM)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        return grpc.ssl_server_credentials([(private, issued)])

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, certificate: Certificate, *, is_authority: bool
    ) -> x509.Certificate:
        now = clock.now()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=certificate.since_days))
            .not_valid_after(now + timedelta(days=certificate.until_days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(certificate.name)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )


@contextmanager
def serving(credentials: grpc.ServerCredentials | None) -> Iterator[str]:
    """Serve without services and yield the address; None = without TLS."""
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        port = server.add_secure_port("localhost:0", credentials) if credentials else server.add_insecure_port("[::]:0")
        server.start()
        try:
            yield f"localhost:{port}"
        finally:
            server.stop(None).wait()


def whoami(address: str, *options: str, **environment: str) -> Result:
    return CliRunner().invoke(
        main, ["whoami", "--server", address, *options], env={"PILOTAGE_TOKEN": "none", **environment}
    )


GOOD = Certificate()


@pytest.mark.parametrize(
    ("certificate", "expected"),
    [
        (replace(GOOD, name="elsewhere.example.org"), "its certificate is for another name"),
        (replace(GOOD, until_days=-1), "its certificate has expired"),
        (replace(GOOD, since_days=1), "its certificate is not valid yet"),
        (None, "it does not speak TLS"),
    ],
)
def test_fault_of_a_certificate_is_a_sentence(tmp_path: Path, certificate: Certificate | None, expected: str) -> None:
    authority = Authority(tmp_path)
    with serving(None if certificate is None else authority.issue(certificate)) as address:
        done = whoami(address, "--ca-file", str(authority.file))
    assert (done.exit_code, done.stderr.count("\n")) == (3, 1)
    assert expected in done.stderr


def test_unknown_authority_is_a_sentence(tmp_path: Path) -> None:
    with serving(Authority(tmp_path).issue(GOOD)) as address:
        done = whoami(address, "--ca-file", str(Authority(tmp_path, "other").file))
        known = whoami(address, PILOTAGE_CA=str(tmp_path / "authority.pem"))
    assert (done.exit_code, "no authority that is trusted here has signed its certificate" in done.stderr) == (3, True)
    assert "cannot be used" not in known.stderr


def test_plain_call_of_a_server_with_tls_is_a_sentence(tmp_path: Path) -> None:
    with serving(Authority(tmp_path).issue(GOOD)) as address:
        done = whoami(address)
    assert (done.exit_code, "it may demand TLS" in done.stderr) == (3, True)


def test_command_reaches_a_server_whose_authority_is_given(tmp_path: Path) -> None:
    certificate, key = self_signed_certificate(tmp_path)
    with running_server(tmp_path / "data", tls_cert=str(certificate), tls_key=str(key)) as server:
        (tmp_path / "token").write_text(server.token())
        done = whoami(server.address, "--ca-file", str(certificate), "--token-file", str(tmp_path / "token"))
    assert (done.exit_code, "alice" in done.stdout) == (0, True)


def test_authorities_of_the_system_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    assert system_authorities() == authority.file.read_bytes()
    monkeypatch.delenv("SSL_CERT_FILE")
    found = system_authorities()
    if found is not None:
        assert ssl.create_default_context(cadata=found.decode("ascii", "ignore")).get_ca_certs()


class _Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.days_ago = 61

    def __call__(self) -> datetime:
        return clock.now() - timedelta(days=self.days_ago)


async def test_own_certificate_is_renewed_without_a_restart(tmp_path: Path) -> None:
    time = _Clock()
    own = OwnCertificate(tmp_path / "tls", (), timedelta(days=90))
    served = ServedCertificate(own, time)
    authority = AuthorityFiles(own.folder).certificate
    with serving(served.credentials()) as address:
        first = presented(address)
        for time.days_ago, renewed in ((2, False), (0, True)):
            await served.refresh()
            assert (presented(address) != first) is renewed
        assert "cannot be used" not in whoami(address, "--ca-file", str(authority)).stderr
        assert fetch_authority(address, served.authority).decode() == authority.read_text()
    assert {path.stat().st_mode & 0o777 for path in own.folder.iterdir()} == {0o600}
    authority.write_text("nothing")
    with pytest.raises(WorldError, match=r"authority\.pem: .*put it back from a backup"):
        ServedCertificate(own, time)


@pytest.mark.parametrize(
    ("spoil", "days_later", "why"),
    [
        (lambda folder: (folder / "authority.pem").unlink(), 0, r"authority\.pem: it is missing; put it back"),
        (lambda folder: (folder / "authority.key").chmod(0o640), 0, r"authority\.key: it is open to others"),
        (lambda _: None, 3651, r"authority\.pem: it is valid from .* only"),
        (lambda _: None, -1, r"authority\.pem: it is valid from .* only"),
    ],
)
def test_authority_that_clients_cannot_trust_is_refused(
    tmp_path: Path, spoil: Callable[[Path], object], days_later: int, why: str
) -> None:
    own = OwnCertificate(tmp_path / "tls", (), timedelta(days=90))
    own.load(clock.now())
    key = (own.folder / "authority.key").read_bytes()
    spoil(own.folder)
    with pytest.raises(WorldError, match=why):
        own.load(clock.now() + timedelta(days=days_later))
    assert (own.folder / "authority.key").read_bytes() == key


def test_token_is_not_sent_to_a_server_that_only_shows_the_authority(tmp_path: Path) -> None:
    """Someone in between can send the true authority's certificate, and has no certificate from it."""
    true, between = (OwnCertificate(tmp_path / name, (), timedelta(days=90)) for name in ("true", "between"))
    true.load(clock.now())
    authority = AuthorityFiles(true.folder).load()
    assert authority is not None
    key, chain = between.load(clock.now())
    (issued, _) = x509.load_pem_x509_certificates(chain)
    shown = b"".join(each.public_bytes(Encoding.PEM) for each in (issued, authority.certificate))
    token = JoinToken(authority.fingerprint(), "a.b.c")
    with (
        serving(grpc.ssl_server_credentials([(key, shown)])) as address,
        pytest.raises(ServerUnreachableError, match="no authority that is trusted here has signed its certificate"),
    ):
        join(address, token, "node", None, cpus=1)


async def test_own_certificate_gets_a_new_address_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = OwnCertificate(tmp_path / "tls", ("queue.example.org",), timedelta(days=90))
    served = ServedCertificate(own, clock.now)
    with serving(served.credentials()) as address:
        first = presented(address)
        await served.refresh()
        assert presented(address) == first
        monkeypatch.setattr("socket.gethostname", lambda: "renamed")
        await served.refresh()
        names = x509.load_pem_x509_certificate(presented(address).encode()).extensions
    known = names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert {"queue.example.org", "renamed", "localhost"} <= set(known)


async def test_renewed_certificate_of_the_settings_is_presented(tmp_path: Path) -> None:
    certificate, key = self_signed_certificate(tmp_path)
    served = ServedCertificate(ConfiguredCertificate(certificate, key), clock.now)
    https = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=served.tls_context())
    https_address = "{}:{}".format(*https.sockets[0].getsockname())
    async with https:
        with serving(served.credentials()) as address:
            first = certificate.read_text()
            assert presented(address) == await asyncio.to_thread(presented, https_address) == first
            new_certificate, new_key = self_signed_certificate(tmp_path)
            renewed = new_key.read_bytes()
            new_key.write_bytes(b"half")
            with pytest.raises(WorldError, match="cannot be used"):
                await served.refresh()
            new_key.write_bytes(renewed)
            await served.refresh()
            second = new_certificate.read_text()
            assert presented(address) == await asyncio.to_thread(presented, https_address) == second


def presented(address: str) -> str:
    """Return the certificate (PEM) that a server presents to a new connection."""
    host, _, port = address.partition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as encrypted:
        found = encrypted.getpeercert(binary_form=True)
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found)
