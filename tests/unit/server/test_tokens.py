"""Tokens: trusted issuers, verification, storage of the key, renewal."""

from __future__ import annotations

import stat
import threading
from base64 import urlsafe_b64encode
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
from pilotage_server.rpc.framework.key_files import KeyFiles, KeySet, SigningKey, signing_key
from pilotage_server.rpc.framework.scopes import Permission
from pilotage_server.rpc.framework.tokens import DEFAULT_GRID, LEEWAY, TokenIssuer, TokenVerifier
from pilotage_server.token_files import BOOTSTRAP_LIFETIME, RENEW_EVERY_S, ROLES, TokenFiles, TokenOwner

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
ALICE = Identity("alice", "sky", ("first", "second"), frozenset({Role.USER, Role.OPERATOR}))


def a_key(signs_from: datetime | None = None) -> SigningKey:
    key = Ed25519PrivateKey.generate()
    return signing_key(key) if signs_from is None else signing_key(key, signs_from)


def an_issuer(name: str = "pilotage", grid: str = DEFAULT_GRID, *, key: SigningKey | None = None) -> TokenIssuer:
    return TokenIssuer(KeySet([key or a_key()]), name, grid)


def a_token(key: SigningKey, **claims: Any) -> str:
    """Return a token with these claims changed; None = left out."""
    payload = {
        "iss": "pilotage",
        "aud": DEFAULT_GRID,
        "sub": "x",
        "exp": 2**33,
        "iat": 1,
        "jti": "1",
        "roles": ["user"],
    }
    changed = {name: value for name, value in (payload | claims).items() if value is not None}
    return jwt.encode(changed, key.private, algorithm="EdDSA", headers={"kid": key.kid})


@pytest.fixture
def issuer() -> TokenIssuer:
    return an_issuer()


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


def test_rejects_token_of_another_key(issuer: TokenIssuer, verifier: TokenVerifier) -> None:
    forger = an_issuer()
    forged = jwt.decode(forger.issue(ALICE, HOUR, NOW), options={"verify_signature": False})
    known = issuer.keys.signing(NOW).kid

    with pytest.raises(UnauthenticatedError, match="unknown"):
        verifier.verify(forger.issue(ALICE, HOUR, NOW), NOW)
    with pytest.raises(UnauthenticatedError, match="broken"):
        verifier.verify(jwt.encode(forged, a_key().private, algorithm="EdDSA", headers={"kid": known}), NOW)


def test_rejects_untrusted_issuer(verifier: TokenVerifier) -> None:
    stranger = an_issuer("elsewhere")

    with pytest.raises(UnauthenticatedError, match="'elsewhere' is not trusted"):
        verifier.verify(stranger.issue(ALICE, HOUR, NOW), NOW)


def test_accepts_all_listed_issuers(issuer: TokenIssuer) -> None:
    other = an_issuer("elsewhere")
    verifier = TokenVerifier([issuer.trusted(), other.trusted()])

    assert verifier.verify(other.issue(ALICE, HOUR, NOW), NOW).identity == ALICE
    assert verifier.verify(issuer.issue(ALICE, HOUR, NOW), NOW).identity == ALICE


def test_rejects_key_of_another_listed_issuer(issuer: TokenIssuer) -> None:
    key = a_key()
    verifier = TokenVerifier([issuer.trusted(), an_issuer("elsewhere", key=key).trusted()])

    with pytest.raises(UnauthenticatedError):
        verifier.verify(an_issuer(issuer.name, key=key).issue(ALICE, HOUR, NOW), NOW)


def test_rejects_changed_claims(issuer: TokenIssuer, verifier: TokenVerifier) -> None:
    head, _, signature = issuer.issue(ALICE, HOUR, NOW).split(".")
    _, body, _ = issuer.issue(Identity("root", "sky", (), frozenset({Role.ADMIN})), HOUR, NOW).split(".")

    with pytest.raises(UnauthenticatedError):
        verifier.verify(f"{head}.{body}.{signature}", NOW)


def test_rejects_unsigned_token(issuer: TokenIssuer, verifier: TokenVerifier) -> None:
    claims = jwt.decode(issuer.issue(ALICE, HOUR, NOW), options={"verify_signature": False})
    kid = issuer.keys.signing(NOW).kid
    token = jwt.encode(claims, "", algorithm="none", headers={"kid": kid})

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
        {"jti": None},
        {"jti": "x" * 257},
        {"aud": None},
        {"aud": "another grid"},
        {"iat": None},
        {"iat": "1"},
        {"iat": NOW.timestamp() + LEEWAY.total_seconds() + 1},
        {"nbf": NOW.timestamp() + LEEWAY.total_seconds() + 1},
    ],
)
def test_rejects_invalid_claims(claims: dict[str, Any]) -> None:
    key = a_key()
    verifier = TokenVerifier([an_issuer(key=key).trusted()])
    verifier.verify(a_token(key), NOW)

    with pytest.raises(UnauthenticatedError):
        verifier.verify(a_token(key, **claims), NOW)


@pytest.mark.parametrize("claim", ["iat", "nbf"])
def test_token_of_a_slightly_fast_clock_is_valid(claim: str) -> None:
    key = a_key()
    verifier = TokenVerifier([an_issuer(key=key).trusted()])

    assert verifier.verify(a_token(key, **{claim: NOW.timestamp() + 30}), NOW).identity.owner == "x"


def test_token_becomes_valid_after_an_early_use() -> None:
    key = a_key()
    verifier = TokenVerifier([an_issuer(key=key).trusted()])
    token = a_token(key, nbf=(NOW + HOUR).timestamp())
    with pytest.raises(UnauthenticatedError, match="not valid before"):
        verifier.verify(token, NOW)

    assert verifier.verify(token, NOW + HOUR).identity.owner == "x"


def test_token_for_another_grid_is_rejected() -> None:
    key = a_key()
    token = an_issuer(grid="east", key=key).issue(ALICE, HOUR, NOW)

    assert TokenVerifier([an_issuer(grid="east", key=key).trusted()]).verify(token, NOW).identity == ALICE
    with pytest.raises(UnauthenticatedError, match="udience"):
        TokenVerifier([an_issuer(grid="west", key=key).trusted()]).verify(token, NOW)


def test_verified_token_names_its_id_and_key(issuer: TokenIssuer, verifier: TokenVerifier) -> None:
    text = issuer.issue(ALICE, HOUR, NOW)
    verified = verifier.verify(text, NOW)

    assert verified.id == jwt.decode(text, options={"verify_signature": False})["jti"]
    assert verified.kid == issuer.keys.signing(NOW).kid


@pytest.mark.parametrize(
    ("scopes", "permitted"),
    [
        ((), None),
        (("compute.read",), {Permission.READ}),
        (("compute.read", "storage.read:/"), {Permission.READ}),
        (("condor:/WRITE",), set(Permission)),
        (("storage.modify:/",), set()),
    ],
)
def test_scopes_of_a_token_become_permissions(
    issuer: TokenIssuer, verifier: TokenVerifier, scopes: tuple[str, ...], permitted: set[Permission] | None
) -> None:
    assert verifier.verify(issuer.issue(ALICE, HOUR, NOW, scopes), NOW).permissions == permitted


def test_new_key_verifies_before_it_signs() -> None:
    first, second = a_key(), a_key(NOW + HOUR)
    issuer = TokenIssuer(KeySet([first, second]))
    verifier = TokenVerifier([issuer.trusted()])

    before, after = issuer.issue(ALICE, 2 * HOUR, NOW), issuer.issue(ALICE, HOUR, NOW + HOUR)

    assert verifier.verify(before, NOW).kid == first.kid
    assert verifier.verify(after, NOW + HOUR).kid == second.kid
    assert verifier.verify(before, NOW + HOUR).kid == first.kid


def test_token_of_a_retired_key_is_rejected_despite_the_cache() -> None:
    first, second = a_key(), a_key(NOW)
    issuer = TokenIssuer(KeySet([first]))
    verifier = TokenVerifier([issuer.trusted()])
    old = issuer.issue(ALICE, HOUR, NOW)
    verified = verifier.verify(old, NOW)
    issuer.keys.replace([first, second])
    verifier.verify(old, NOW)

    issuer.keys.replace([second])

    with pytest.raises(UnauthenticatedError, match="retired"):
        verifier.verify(old, NOW)
    with pytest.raises(UnauthenticatedError, match="retired"):
        verifier.recheck(verified, NOW)


def test_long_or_nested_token_is_rejected(issuer: TokenIssuer, verifier: TokenVerifier) -> None:
    nested = urlsafe_b64encode(b"[" * 5000).decode().rstrip("=")
    head, _, signature = issuer.issue(ALICE, HOUR, NOW).split(".")
    longer = issuer.issue(Identity("x" * 8192, "sky", (), frozenset({Role.USER})), HOUR, NOW)

    with pytest.raises(UnauthenticatedError):
        verifier.verify(f"{head}.{nested}.{signature}", NOW)
    with pytest.raises(UnauthenticatedError):
        verifier.verify(f"{nested}.{head}.{signature}", NOW)
    with pytest.raises(UnauthenticatedError, match="longer than"):
        verifier.verify(longer, NOW)


@pytest.mark.parametrize("token", ["", "x", "a.b.c", "ü", "." * 100])
def test_rejects_text_that_is_no_token(verifier: TokenVerifier, token: str) -> None:
    with pytest.raises(UnauthenticatedError):
        verifier.verify(token, NOW)


def test_key_is_made_once_and_readable_by_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "tokens.pem"
    first, second = KeyFiles(path).load_or_make(), KeyFiles(path).load_or_make()

    assert [key.kid for key in first] == [key.kid for key in second]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["tokens.pem"]


def test_concurrent_starts_share_one_key(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "tokens.pem"
    keys: list[str] = []
    threads = [
        threading.Thread(target=lambda: keys.extend(key.kid for key in KeyFiles(path).load_or_make())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(keys) == 8
    assert len(set(keys)) == 1


def test_rejects_key_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "tokens.pem"
    KeyFiles(path).load_or_make()
    path.chmod(0o640)

    with pytest.raises(WorldError, match="open to others"):
        KeyFiles(path).load_or_make()


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_rejects_file_without_key(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens.pem"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(WorldError, match="no private key"):
        KeyFiles(path).load_or_make()


def test_rejects_key_that_is_not_ed25519(tmp_path: Path) -> None:
    path = tmp_path / "tokens.pem"
    key = generate_private_key(65537, 2048)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)

    with pytest.raises(WorldError, match="Ed25519"):
        KeyFiles(path).load_or_make()


def test_unusable_key_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(WorldError, match="cannot be used"):
        KeyFiles(tmp_path / "file" / "keys" / "tokens.pem").load_or_make()


def test_key_files_carry_the_time_from_which_they_sign(tmp_path: Path) -> None:
    files = KeyFiles(tmp_path / "tokens.pem")
    (first,) = files.load_or_make()
    second = files.add(NOW + HOUR)
    keys = KeySet(files.load())

    assert second.path == tmp_path / "tokens.20260101T010000Z.pem"
    assert stat.S_IMODE(second.path.stat().st_mode) == 0o600
    assert [keys.signing(NOW).kid, keys.signing(NOW + HOUR).kid] == [first.kid, second.kid]

    files.remove(first.kid)

    assert [key.kid for key in files.load()] == [second.kid]


def test_other_files_beside_the_keys_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tokens.old.pem").write_text("no key")
    (tmp_path / "server.20260101T010000Z.pem").write_text("no key")

    assert len(KeyFiles(tmp_path / "tokens.pem").load_or_make()) == 1


def test_token_files_are_renewed_long_before_expiry(
    issuer: TokenIssuer, verifier: TokenVerifier, tmp_path: Path
) -> None:
    now = NOW
    files = TokenFiles(tmp_path / "tokens", TokenOwner("alice", "sky"), lambda: now)
    files.write(issuer)
    now = NOW + timedelta(seconds=RENEW_EVERY_S)
    files.renew(issuer)

    for name, roles in ROLES.items():
        path = files.folder / f"{name}.token"
        verified = verifier.verify(path.read_text().strip(), now)
        assert verified.identity.roles == frozenset(roles)
        assert verified.expires == now + BOOTSTRAP_LIFETIME
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert timedelta(seconds=RENEW_EVERY_S) < BOOTSTRAP_LIFETIME / 10
    assert len(list(files.folder.iterdir())) == len(ROLES)


def test_token_files_are_renewed_when_another_key_signs(tmp_path: Path) -> None:
    first, second = a_key(), a_key(NOW)
    issuer = TokenIssuer(KeySet([first]))
    files = TokenFiles(tmp_path / "tokens", TokenOwner("alice", "sky"), lambda: NOW)
    files.write(issuer)
    issuer.keys.replace([first, second])

    files.renew(issuer)

    token = (files.folder / "user.token").read_text().strip()
    assert jwt.get_unverified_header(token)["kid"] == second.kid
