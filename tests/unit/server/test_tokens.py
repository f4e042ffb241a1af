"""Tokens: trusted issuers, verification, storage of the key, renewal."""

from __future__ import annotations

import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pilotage.errors import UnauthenticatedError, WorldError
from pilotage.resources.tree import QueueId
from pilotage_server.core.identity import Identity, PilotCredential, Role
from pilotage_server.rpc.framework.tokens import TokenIssuer, TokenVerifier, load_or_make_key
from pilotage_server.token_files import BOOTSTRAP_LIFETIME, RENEW_EVERY_S, ROLES, TokenFiles, TokenOwner

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
ALICE = Identity("alice", "sky", ("first", "second"), frozenset({Role.USER, Role.OPERATOR}))


@pytest.fixture
def issuer() -> TokenIssuer:
    return TokenIssuer(Ed25519PrivateKey.generate())


@pytest.fixture
def verifier(issuer: TokenIssuer) -> TokenVerifier:
    return TokenVerifier([issuer.trusted()])


def test_verified_token_has_identity_and_expiry(issuer: TokenIssuer, verifier: TokenVerifier) -> None:
    verified = verifier.verify(issuer.issue(ALICE, HOUR, NOW), NOW)

    assert verified.identity == ALICE
    assert verified.expires == NOW + HOUR


def test_pilot_token_has_stamp_queue_and_vos(issuer: TokenIssuer, verifier: TokenVerifier) -> None:
    credential = PilotCredential("abc", QueueId("S", "ce", "a/b"), ("sky", "sea"))
    pilot = Identity("pilot:abc", "", (), frozenset({Role.PILOT}), credential)

    assert verifier.verify(issuer.issue(pilot, HOUR, NOW), NOW).identity == pilot


@pytest.mark.parametrize(
    "identity",
    [
        Identity("a/b", "sky", (), frozenset({Role.USER})),
        Identity("b", "sky/a", (), frozenset({Role.USER})),
        Identity("b\n", "sky", (), frozenset({Role.USER})),
        Identity("b", "sky", ("first\0",), frozenset({Role.USER})),
    ],
)
def test_names_that_could_join_to_others_are_refused(
    identity: Identity, issuer: TokenIssuer, verifier: TokenVerifier
) -> None:
    with pytest.raises(UnauthenticatedError, match="the name"):
        verifier.verify(issuer.issue(identity, HOUR, NOW), NOW)


def test_groups_may_nest(issuer: TokenIssuer, verifier: TokenVerifier) -> None:
    nested = Identity("b", "sky", ("/sky/first",), frozenset({Role.USER}))
    assert verifier.verify(issuer.issue(nested, HOUR, NOW), NOW).identity == nested


def test_token_expires_after_earlier_verification(issuer: TokenIssuer, verifier: TokenVerifier) -> None:
    token = issuer.issue(ALICE, HOUR, NOW)
    verifier.verify(token, NOW + HOUR - timedelta(seconds=1))

    with pytest.raises(UnauthenticatedError, match="expired"):
        verifier.verify(token, NOW + HOUR)


def test_rejects_token_of_another_key(verifier: TokenVerifier) -> None:
    forger = TokenIssuer(Ed25519PrivateKey.generate())

    with pytest.raises(UnauthenticatedError, match="broken"):
        verifier.verify(forger.issue(ALICE, HOUR, NOW), NOW)


def test_rejects_untrusted_issuer(verifier: TokenVerifier) -> None:
    stranger = TokenIssuer(Ed25519PrivateKey.generate(), "elsewhere")

    with pytest.raises(UnauthenticatedError, match="'elsewhere' is not trusted"):
        verifier.verify(stranger.issue(ALICE, HOUR, NOW), NOW)


def test_accepts_all_listed_issuers(issuer: TokenIssuer) -> None:
    other = TokenIssuer(Ed25519PrivateKey.generate(), "elsewhere")
    verifier = TokenVerifier([issuer.trusted(), other.trusted()])

    assert verifier.verify(other.issue(ALICE, HOUR, NOW), NOW).identity == ALICE
    assert verifier.verify(issuer.issue(ALICE, HOUR, NOW), NOW).identity == ALICE


def test_rejects_key_of_another_listed_issuer(issuer: TokenIssuer) -> None:
    key = Ed25519PrivateKey.generate()
    verifier = TokenVerifier([issuer.trusted(), TokenIssuer(key, "elsewhere").trusted()])

    with pytest.raises(UnauthenticatedError):
        verifier.verify(TokenIssuer(key, issuer.name).issue(ALICE, HOUR, NOW), NOW)


def test_rejects_changed_claims(issuer: TokenIssuer, verifier: TokenVerifier) -> None:
    head, _, signature = issuer.issue(ALICE, HOUR, NOW).split(".")
    _, body, _ = issuer.issue(Identity("root", "sky", (), frozenset({Role.ADMIN})), HOUR, NOW).split(".")

    with pytest.raises(UnauthenticatedError):
        verifier.verify(f"{head}.{body}.{signature}", NOW)


def test_rejects_unsigned_token(verifier: TokenVerifier) -> None:
    claims = {"iss": "pilotage", "sub": "x", "exp": 2**33, "iat": 1, "roles": ["admin"]}
    token = jwt.encode(claims, "", algorithm="none")

    with pytest.raises(UnauthenticatedError):
        verifier.verify(token, NOW)


@pytest.mark.parametrize(
    "claims",
    [
        {"roles": ["emperor"]},
        {"roles": None},
        {"sub": None},
        {"exp": "soon"},
        {"exp": 10**30},
        {"roles": ["pilot"]},
        {"groups": 5},
    ],
)
def test_rejects_invalid_claims(claims: dict[str, Any]) -> None:
    key = Ed25519PrivateKey.generate()
    payload = {"iss": "pilotage", "sub": "x", "exp": 2**33, "iat": 1, "roles": ["user"]} | claims
    token = jwt.encode({name: value for name, value in payload.items() if value is not None}, key, algorithm="EdDSA")

    with pytest.raises(UnauthenticatedError):
        TokenVerifier([TokenIssuer(key).trusted()]).verify(token, NOW)


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "ü", "." * 100])
def test_rejects_text_that_is_no_token(verifier: TokenVerifier, token: str) -> None:
    with pytest.raises(UnauthenticatedError):
        verifier.verify(token, NOW)


def test_key_is_made_once_and_readable_by_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "tokens.pem"
    first, second = load_or_make_key(path), load_or_make_key(path)

    assert first.private_bytes_raw() == second.private_bytes_raw()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["tokens.pem"]


def test_concurrent_starts_share_one_key(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "tokens.pem"
    keys: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: keys.append(load_or_make_key(path).private_bytes_raw())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(keys) == 8
    assert len(set(keys)) == 1


def test_rejects_key_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "tokens.pem"
    load_or_make_key(path)
    path.chmod(0o640)

    with pytest.raises(WorldError, match="open to others"):
        load_or_make_key(path)


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_rejects_file_without_key(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens.pem"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(WorldError, match="no private key"):
        load_or_make_key(path)


def test_rejects_key_that_is_not_ed25519(tmp_path: Path) -> None:
    path = tmp_path / "tokens.pem"
    key = generate_private_key(65537, 2048)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)

    with pytest.raises(WorldError, match="Ed25519"):
        load_or_make_key(path)


def test_unusable_key_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(WorldError, match="cannot be used"):
        load_or_make_key(tmp_path / "file" / "keys" / "tokens.pem")


def test_token_files_are_renewed_long_before_expiry(
    issuer: TokenIssuer, verifier: TokenVerifier, tmp_path: Path
) -> None:
    times = iter([NOW, NOW + timedelta(seconds=RENEW_EVERY_S)])
    files = TokenFiles(tmp_path / "tokens", TokenOwner("alice", "sky"), lambda: next(times))
    files.write(issuer)
    files.write(issuer)

    for name, roles in ROLES.items():
        path = files.folder / f"{name}.token"
        verified = verifier.verify(path.read_text().strip(), NOW)
        assert verified.identity.roles == frozenset(roles)
        assert verified.expires == NOW + timedelta(seconds=RENEW_EVERY_S) + BOOTSTRAP_LIFETIME
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert timedelta(seconds=RENEW_EVERY_S) < BOOTSTRAP_LIFETIME / 100
    assert len(list(files.folder.iterdir())) == len(ROLES)
