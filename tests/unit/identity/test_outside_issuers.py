"""Tokens of outside issuers: claims, scopes, names, and forgeries; the keys come from a real HTTP server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.utils import base64url_encode

from pilotage import clock
from pilotage.errors import InvalidInputError, UnauthenticatedError
from pilotage_server.core.identity import Identity, Role
from pilotage_server.rpc.framework.issuer_keys import IssuerKeys
from pilotage_server.rpc.framework.key_files import KeySet, signing_key
from pilotage_server.rpc.framework.outside_issuers import ANY_AUDIENCE, OutsideIssuer, owner_suffix
from pilotage_server.rpc.framework.scopes import Permission
from pilotage_server.rpc.framework.tokens import LEEWAY, TokenIssuer, TokenVerifier, VerifiedToken
from support.issuer import FORGERIES, RunningIssuer, forged, running_issuer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def issuer() -> Iterator[RunningIssuer]:
    with running_issuer() as found:
        yield found


class Verifier:
    """A server that trusts itself and one outside issuer with these settings."""

    def __init__(self, issuer: RunningIssuer, folder: Path, **fields: Any) -> None:
        self.issuer = issuer
        setting = issuer.setting(**fields)
        keys = IssuerKeys(setting, folder / "keys.json", clock.now, clock.boot_time_s)
        keys.refresh_if_due()
        private = KeySet([signing_key(Ed25519PrivateKey.generate())])
        self.own = TokenIssuer(private, foreign_suffixes=[owner_suffix(setting)])
        self.unaware = TokenIssuer(private)
        self.verifier = TokenVerifier([self.own.trusted(), OutsideIssuer(setting, keys)])

    def verify(self, token: str = "", now: datetime = NOW, **claims: Any) -> VerifiedToken:
        """Verify a token, by default one of the outside issuer with these claims."""
        return self.verifier.verify(token or self.issuer.token(NOW, **claims), now)


@pytest.fixture
def verifier(issuer: RunningIssuer, tmp_path: Path) -> Verifier:
    return Verifier(issuer, tmp_path)


def test_token_gives_owner_vo_groups_and_default_role(verifier: Verifier) -> None:
    groups = ["/cms/production", "/cms"]
    token = verifier.verify(groups=groups, jti="id7")
    assert token.identity == Identity("alice@iam", "cms", ("cms/production", "cms"), frozenset({Role.USER}))
    assert (token.issuer, token.id, token.kid) == (verifier.issuer.url, "id7", "first")
    assert token.expires == NOW + 20 * MINUTE


def test_token_without_an_id_is_known_by_its_digest(verifier: Verifier) -> None:
    one, other = verifier.verify(jti=None), verifier.verify(jti=None, sub="bob")
    assert len(one.id) == len(other.id) == 64
    assert one.id != other.id


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "https://elsewhere.example.org"}, "udience"),
        ({"aud": ANY_AUDIENCE}, "udience"),
        ({"aud": None}, "aud"),
        ({"exp": None}, "exp"),
        ({"iat": None}, "iat"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": "x" * 256}, "sub"),
        ({"sub": 7}, "[Ss]ub"),
        ({"exp": NOW.timestamp()}, "expired"),
        ({"exp": NOW.timestamp() + 6 * 3600 + 1}, "lives for"),
        ({"nbf": NOW.timestamp() + LEEWAY.total_seconds() + 1}, "not valid before"),
        ({"iat": NOW.timestamp() + LEEWAY.total_seconds() + 1}, "not valid before"),
        ({"iat": "yesterday"}, "time"),
        ({"scope": ["compute.read"]}, "scope"),
        ({"groups": "/cms"}, "wlcg.groups"),
        ({"groups": [7]}, "wlcg.groups"),
        ({"groups": ["/cms\n"]}, "the group"),
        ({"jti": "x" * 257}, "jti"),
        ({"iss": "https://elsewhere.example.org/"}, "is not trusted here; trusted are pilotage, http://127"),
    ],
)
def test_wrong_claims_are_refused(verifier: Verifier, claims: dict[str, Any], why: str) -> None:
    verifier.verify()
    with pytest.raises(UnauthenticatedError, match=why):
        verifier.verify(**claims)


def test_audience_for_all_of_wlcg_needs_a_setting(issuer: RunningIssuer, tmp_path: Path) -> None:
    verifier = Verifier(issuer, tmp_path, any_audience=True)
    assert verifier.verify(aud=[ANY_AUDIENCE]).identity.owner == "alice@iam"


def test_longest_life_is_a_setting(issuer: RunningIssuer, tmp_path: Path) -> None:
    verifier = Verifier(issuer, tmp_path, longest_token_s=1200)
    verifier.verify()
    with pytest.raises(UnauthenticatedError, match="lives for 1201 s"):
        verifier.verify(exp=NOW.timestamp() + 1201)


@pytest.mark.parametrize(
    ("scope", "needs_scopes", "permitted"),
    [
        ("compute.read", True, {Permission.READ}),
        ("compute.read compute.cancel storage.read:/", True, {Permission.READ, Permission.CANCEL}),
        ("condor:/READ condor:/WRITE", True, set(Permission)),
        ("condor:/READ", False, {Permission.READ}),
        ("openid profile", True, set()),
        ("openid profile wlcg.groups wlcg.groups:/cms/operators", False, None),
        ("", False, None),
        (None, False, None),
        (None, True, set()),
        ("storage.read:/", False, set()),
        ("read:/store", False, set()),
        ("compute.everything", False, set()),
    ],
)
def test_scopes_become_permissions(
    issuer: RunningIssuer, tmp_path: Path, scope: str | None, needs_scopes: bool, permitted: set[Permission] | None
) -> None:
    verifier = Verifier(issuer, tmp_path, needs_scopes=needs_scopes)
    assert verifier.verify(scope=scope).permissions == permitted


@pytest.mark.parametrize(
    ("groups", "scope", "vo", "roles"),
    [
        (["/dune"], "", "dune", {"user"}),
        (["/dune/production/mc"], "", "dune", {"user"}),
        (["/duneX"], "", "fermilab", {"user"}),
        (["/dune/operators"], "", "dune", {"user", "operator"}),
        (["/dune/operators/old"], "", "dune", {"user"}),
        ([], "nova.member", "nova", {"user"}),
        ([], "pilotage.admin", "fermilab", {"user", "operator", "admin"}),
        (["pilotage.admin"], "", "fermilab", {"user", "operator", "admin"}),
    ],
)
def test_vo_and_roles_come_from_the_tables(
    issuer: RunningIssuer, tmp_path: Path, groups: list[str], scope: str, vo: str, roles: set[str]
) -> None:
    verifier = Verifier(
        issuer,
        tmp_path,
        vo="fermilab",
        vos={"/dune": "dune", "nova.member": "nova"},
        roles={"/dune/operators": ["operator"], "pilotage.admin": ["operator", "admin"]},
    )
    identity = verifier.verify(groups=groups, scope=scope).identity
    assert (identity.vo, set(identity.roles)) == (vo, roles)


def test_token_without_a_vo_is_refused(issuer: RunningIssuer, tmp_path: Path) -> None:
    verifier = Verifier(issuer, tmp_path, vo=None, vos={"/dune": "dune", "nova.member": "nova"})
    with pytest.raises(UnauthenticatedError, match=r"none of the groups and scopes /dune, nova\.member"):
        verifier.verify(groups=["/atlas"])


@pytest.mark.parametrize(
    ("subject", "owner"),
    [
        ("a/b", "a%2Fb@iam"),
        ("a%2Fb", "a%252Fb@iam"),
        ("a b\n", "a%20b%0A@iam"),
        ("alice@cern.ch", "alice@cern.ch@iam"),
        ("zoë", "zo%C3%AB@iam"),
        ("pilot:x", "pilot:x@iam"),
        ("admin", "admin@iam"),
    ],
)
def test_subjects_become_distinct_valid_owners(verifier: Verifier, subject: str, owner: str) -> None:
    assert verifier.verify(sub=subject).identity.owner == owner


def test_two_issuers_have_no_owner_in_common(issuer: RunningIssuer, tmp_path: Path) -> None:
    one, other = (
        Verifier(issuer, tmp_path / "1", name="a"),
        Verifier(issuer, tmp_path / "2", name="b"),
    )
    owners = {verifier.verify(sub=sub).identity.owner for verifier in (one, other) for sub in ("x", "x@a", "x@b")}
    assert len(owners) == 6


def test_own_tokens_have_no_owner_of_an_outside_issuer(verifier: Verifier) -> None:
    forged = Identity("alice@iam", "cms", (), frozenset({Role.USER}))
    with pytest.raises(InvalidInputError, match="as the owners of an outside issuer do"):
        verifier.own.issue(forged, MINUTE, NOW)
    older = verifier.unaware.issue(forged, MINUTE, NOW)  # before the issuer was added to the settings
    with pytest.raises(UnauthenticatedError, match="as the owners of an outside issuer do"):
        verifier.verify(older)


def test_pilot_claims_of_an_outside_token_have_no_meaning(verifier: Verifier) -> None:
    place: dict[str, Any] = {"stamp": "x", "site": "S", "ce": "C", "queue": "Q", "vo": "atlas"}
    identity = verifier.verify(roles=["pilot", "admin"], bounds={"queues": ["*"]}, **place).identity
    assert identity == Identity("alice@iam", "cms", (), frozenset({Role.USER}))


@pytest.mark.parametrize("kind", FORGERIES)
def test_forged_token_is_refused(verifier: Verifier, kind: str) -> None:
    with pytest.raises(UnauthenticatedError, match="the token is broken"):
        verifier.verify(forged(verifier.issuer.token(NOW), kind))


def _json(claims: object) -> bytes:
    return json.dumps(claims).encode()


@pytest.mark.parametrize("kid", [7, ["first"], {"a": 1}])
def test_key_id_that_is_no_text_is_refused(verifier: Verifier, kid: Any) -> None:
    claims = jwt.decode(verifier.issuer.token(NOW), options={"verify_signature": False})
    head, body = (base64url_encode(_json(part)).decode() for part in ({"alg": "RS256", "kid": kid}, claims))
    with pytest.raises(UnauthenticatedError):
        verifier.verify(f"{head}.{body}.AAAA")


def test_outside_key_signs_no_own_token(verifier: Verifier) -> None:
    with pytest.raises(UnauthenticatedError):
        verifier.verify(verifier.issuer.token(NOW, iss="pilotage", aud="pilotage", roles=["admin"]))


def test_verified_token_expires_and_is_cached_until_then(verifier: Verifier) -> None:
    token = verifier.issuer.token(NOW)
    assert verifier.verify(token) is verifier.verify(token, NOW + 19 * MINUTE)
    with pytest.raises(UnauthenticatedError, match="expired"):
        verifier.verify(token, NOW + 20 * MINUTE)
