"""Tokens: JWTs of this server, and the issuers whose tokens it trusts.

Rules
-----
- A token is checked with a key of its own issuer, found by its key id, and by the algorithm of that key. The header of
  a token never selects an algorithm.
- The audience of a token is this grid. A token of this server has an id, by which it can be revoked.
- A verified token is cached as long as its key is one of its issuer's keys. Times are compared at each use.
- `now` is a parameter: nothing here reads a clock.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import jwt

from pilotage.errors import InvalidInputError, UnauthenticatedError, Violation
from pilotage.resources.tree import QueueId
from pilotage_server.core.containers import BoundedCache
from pilotage_server.core.identity import (
    NO_QUEUE,
    UNBOUND,
    AgentBounds,
    Identity,
    Invitation,
    PilotCredential,
    Role,
    name_fault,
)
from pilotage_server.core.revocations import Revocations
from pilotage_server.rpc.framework.key_files import KeySet
from pilotage_server.rpc.framework.scopes import Permission, permissions_of

ISSUER = "pilotage"
"""The name of a stand-alone server as an issuer."""

DEFAULT_GRID = "pilotage"
"""The audience of tokens unless the settings name the grid."""

MAX_TOKEN_CHARS = 8192
"""Longer tokens are refused before anything of them is read."""

LEEWAY = timedelta(seconds=60)
"""How far the clock of an issuer may be ahead."""

_ALGORITHM = "EdDSA"
_MAX_CACHED, _MAX_CACHED_BYTES = 50_000, 64 * 1024 * 1024
_CACHED_OBJECTS_BYTES = 2000
"""About the size of a cached token's values, beside its text."""

_PROOF_SECRET = b"pilotage: keys of pilots' tokens\0"
_LOGIN_SECRET = b"pilotage: log-ins to the web page\0"
_PILOT_ROLES = frozenset({Role.PILOT, Role.ENROLMENT})
_BOUNDS = ("queues", "vos", "turns")
_MAX_ID_CHARS = 256
_REQUIRED = ("iss", "sub", "exp", "iat", "aud")
_UNCHECKED: Any = dict.fromkeys(("verify_exp", "verify_iat", "verify_nbf"), False)  # `now` is ours to compare with


class VerificationKey(NamedTuple):
    """A public key, and the one algorithm that it may be used with."""

    key: Any
    algorithm: str


class TrustedIssuer(Protocol):
    """An issuer whose tokens are accepted; `required` are claims that its tokens have beside the usual ones."""

    @property
    def name(self) -> str:
        """The claim `iss` of its tokens."""

    @property
    def audiences(self) -> Collection[str]:
        """Its tokens are for one of these."""

    @property
    def required(self) -> Collection[str]:
        """Claims that its tokens have beside the usual ones."""

    def find_key(self, kid: str | None) -> VerificationKey:
        """Return a present key, the same object at each call; raises UnauthenticatedError or WorldError.

        It never waits.
        """

    def identity(self, claims: Mapping[str, Any]) -> Identity:
        """Return the identity of verified claims; raises UnauthenticatedError or ValueError."""

    def permissions(self, claims: Mapping[str, Any]) -> frozenset[Permission] | None:
        """Return what the token's scopes permit; None = everything that its roles may do."""


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """A valid token: identity, lifetime, issuer, and the ids of the token and of its key.

    `permissions` narrow what the roles may do; None = they do not. A token without an id is known by its digest.
    """

    identity: Identity
    expires: datetime
    issued: datetime
    not_before: datetime
    issuer: str
    kid: str
    id: str
    permissions: frozenset[Permission] | None = None

    def check_times(self, now: datetime) -> None:
        """Raise UnauthenticatedError if the token has expired or is not valid yet."""
        if self.expires <= now:
            raise UnauthenticatedError(f"the token expired at {self.expires.isoformat()}")
        if self.not_before > now + LEEWAY:
            raise UnauthenticatedError(f"the token is not valid before {self.not_before.isoformat()}")


def check_revocations(revocations: Revocations, token: VerifiedToken, now: datetime) -> None:
    """Raise UnauthenticatedError if the token, all tokens of its owner, or its pilot are revoked."""
    identity = token.identity
    if identity.pilot is not None:
        ends = revocations.end_of_pilot(identity.pilot.stamp)
        if ends is not None and ends <= now:
            why = "it was revoked, or ordered to evict its jobs"
            raise UnauthenticatedError(
                f"the credential of the pilot ended at {ends.isoformat(timespec='seconds')}: {why}"
            )
    found = revocations.of_token(token.issuer, token.id)
    found = found or revocations.of_owner(identity.vo, identity.owner, token.issued)
    if found is not None:
        raise UnauthenticatedError(f"the token is {found}")


class TokenIssuer:
    """Issues tokens for a grid, signed with the key of the set that is due."""

    def __init__(
        self, keys: KeySet, name: str = ISSUER, grid: str = DEFAULT_GRID, foreign_suffixes: Collection[str] = ()
    ) -> None:
        self.keys = keys
        self.name = name
        self.grid = grid
        self._foreign_suffixes = tuple(foreign_suffixes)

    def owner_fault(self, owner: str) -> str:
        """Return why this server may not issue tokens for an owner; "" = it may."""
        found = next((suffix for suffix in self._foreign_suffixes if owner.endswith(suffix)), None)
        return "" if found is None else f"ends with {found}, as the owners of an outside issuer do"

    def issue(self, identity: Identity, lifetime: timedelta, now: datetime, scopes: Collection[str] = ()) -> str:
        """Return a token for `identity` that is valid until `now` + `lifetime`; no scopes = it may do all.

        Raises InvalidInputError for an owner of an outside issuer.
        """
        if fault := self.owner_fault(identity.owner):
            raise InvalidInputError(Violation("owner", fault))
        claims: dict[str, Any] = {
            "iss": self.name,
            "aud": self.grid,
            "sub": identity.owner,
            "vo": identity.vo,
            "groups": list(identity.groups),
            "roles": sorted(identity.roles),
            "iat": now.timestamp(),
            "nbf": now.timestamp(),
            "exp": int((now + lifetime).timestamp()),
            "jti": secrets.token_hex(8),
        }
        if scopes:
            claims["scope"] = " ".join(scopes)
        if identity.pilot is not None:
            claims |= _pilot_claims(identity.pilot)
        if identity.bounds != UNBOUND:
            claims["bounds"] = {name: list(getattr(identity.bounds, name)) for name in _BOUNDS}
        if identity.invitation is not None:
            invited = identity.invitation
            claims["join"] = {"roles": sorted(invited.roles), "lifetime_s": invited.lifetime.total_seconds()}
        key = self.keys.signing(now)
        return jwt.encode(claims, key.private, algorithm=_ALGORITHM, headers={"kid": key.kid})

    def proof_secret(self, kid: str) -> bytes:
        """Return the secret from which the keys of pilots with tokens by this signing key are derived.

        Raises UnauthenticatedError for a key that is unknown or retired.
        """
        return self._secret_of(kid, _PROOF_SECRET)

    def login_secret(self, kid: str) -> bytes:
        """Return the secret by which servers with this signing key know a log-in that one of them began.

        Raises UnauthenticatedError for a key that is unknown or retired.
        """
        return self._secret_of(kid, _LOGIN_SECRET)

    def _secret_of(self, kid: str, purpose: bytes) -> bytes:
        key = next((each for each in self.keys.all() if each.kid == kid), None)
        if key is None:
            raise UnauthenticatedError(f"the token's signing key {kid!r} is unknown or retired")
        return sha256(purpose + key.private.private_bytes_raw()).digest()

    def trusted(self) -> TrustedIssuer:
        """Return this issuer as an entry for a verifier."""
        return _OwnIssuer(self)


class _OwnIssuer:
    """The server itself as a trusted issuer."""

    required = ("jti", "roles")

    def __init__(self, issuer: TokenIssuer) -> None:
        self.name = issuer.name
        self.audiences = (issuer.grid,)
        self._issuer = issuer
        self._keys = issuer.keys
        self._public: Mapping[str | None, VerificationKey] = {}
        self._public_of: object = None

    def find_key(self, kid: str | None) -> VerificationKey:
        keys = self._keys.all()
        if keys is not self._public_of:  # a key that stays keeps its public object, so that its tokens stay cached
            known = self._public
            self._public = {
                key.kid: known.get(key.kid) or VerificationKey(key.private.public_key(), _ALGORITHM) for key in keys
            }
            self._public_of = keys
        if kid not in self._public:
            raise UnauthenticatedError(f"the token's signing key {kid!r} is unknown or retired")
        return self._public[kid]

    def identity(self, claims: Mapping[str, Any]) -> Identity:
        identity = _identity(claims)
        if fault := self._issuer.owner_fault(identity.owner):  # the token is older than this setting
            raise ValueError(f"the owner {identity.owner!r} {fault}")
        return identity

    def permissions(self, claims: Mapping[str, Any]) -> frozenset[Permission] | None:
        return permissions_of(str(claims["scope"]).split()) if "scope" in claims else None


def _pilot_claims(credential: PilotCredential) -> dict[str, Any]:
    queue = credential.queue
    place = {"site": queue.site, "ce": queue.ce, "queue": queue.queue}
    return {
        "stamp": credential.stamp,
        **({"queues": list(credential.queue_set)} if credential.queue_set else place),
        "vos": list(credential.vos),
        **({"cnf": {"nonce": credential.nonce_hash}} if credential.nonce_hash else {}),
    }


class _CheckedToken(NamedTuple):
    """A token with a valid signature, and the key that checked it."""

    token: VerifiedToken
    issuer: TrustedIssuer
    kid: str | None
    key: VerificationKey


class TokenVerifier:
    """Verifies tokens; checked signatures are cached."""

    def __init__(self, issuers: Iterable[TrustedIssuer]) -> None:
        self._issuers = {issuer.name: issuer for issuer in issuers}
        self._checked = BoundedCache[str, _CheckedToken](_MAX_CACHED, _MAX_CACHED_BYTES)

    @property
    def issuer_names(self) -> Collection[str]:
        """The names of all trusted issuers."""
        return self._issuers.keys()

    def verify(self, token: str, now: datetime) -> VerifiedToken:
        """Return the verified token; raises UnauthenticatedError if it is broken, untrusted or not valid at `now`.

        Raises WorldError while the keys of its issuer are being read.
        """
        checked = self._checked.known.get(token)
        if checked is None or checked.issuer.find_key(checked.kid) is not checked.key:
            checked = self._check(token)
            self._checked.put(token, checked, len(token) + _CACHED_OBJECTS_BYTES)
        checked.token.check_times(now)
        return checked.token

    def recheck(self, token: VerifiedToken, now: datetime) -> None:
        """Raise UnauthenticatedError if the token of an open call is valid no more."""
        token.check_times(now)
        self._issuers[token.issuer].find_key(token.kid or None)

    def _check(self, token: str) -> _CheckedToken:
        if len(token) > MAX_TOKEN_CHARS:
            raise UnauthenticatedError(f"the token is longer than {MAX_TOKEN_CHARS} characters")
        try:
            return self._checked_token(token)
        except jwt.PyJWTError as error:
            # The text of a plain DecodeError is about bytes and padding, which helps no reader.
            why = "it is not a JSON web token" if type(error) is jwt.DecodeError else str(error)
            raise UnauthenticatedError(f"the token is broken: {why}") from error
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UnauthenticatedError(f"the token's claims are broken: {error}") from error

    def _checked_token(self, token: str) -> _CheckedToken:
        issuer = self._issuer_of(token)
        kid = jwt.get_unverified_header(token).get("kid")
        key = issuer.find_key(kid)
        options: Any = {**_UNCHECKED, "require": [*_REQUIRED, *issuer.required]}
        claims = jwt.decode(
            token,
            key.key,
            algorithms=[key.algorithm],
            audience=tuple(issuer.audiences),
            options=options,
        )
        return _CheckedToken(_verified(token, claims, issuer, kid or ""), issuer, kid, key)

    def _issuer_of(self, token: str) -> TrustedIssuer:
        name = jwt.decode(token, options={"verify_signature": False}).get("iss")
        if name not in self._issuers:
            trusted = ", ".join(self._issuers)
            raise UnauthenticatedError(f"the token's issuer {name!r} is not trusted here; trusted are {trusted}")
        return self._issuers[name]


def _verified(token: str, claims: Mapping[str, Any], issuer: TrustedIssuer, kid: str) -> VerifiedToken:
    token_id = str(claims.get("jti") or sha256(token.encode()).hexdigest())
    if len(token_id) > _MAX_ID_CHARS or not token_id.isprintable():
        raise ValueError("jti is not a text of at most 256 printable characters")
    issued, expires = _time(claims["iat"]), _time(claims["exp"])
    not_before = max(issued, _time(claims["nbf"])) if "nbf" in claims else issued
    return VerifiedToken(
        issuer.identity(claims), expires, issued, not_before, issuer.name, kid, token_id, issuer.permissions(claims)
    )


def _time(number: object) -> datetime:
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(f"{number!r} is no time")
    return datetime.fromtimestamp(number, UTC)


def _identity(claims: Mapping[str, Any]) -> Identity:
    roles = frozenset(Role(role) for role in claims["roles"])
    groups = tuple(str(group) for group in claims.get("groups", ()))
    pilot = _credential(claims) if roles & _PILOT_ROLES else None
    bounds = claims.get("bounds", {})
    bound = AgentBounds(*(tuple(str(each) for each in bounds.get(name, ())) for name in _BOUNDS))
    invited = _invitation(claims) if Role.JOIN in roles else None
    identity = Identity(str(claims["sub"]), str(claims.get("vo", "")), groups, roles, pilot, bound, invited)
    for name, fault in (
        (identity.owner, name_fault(identity.owner)),
        (identity.vo, name_fault(identity.vo)),
        *((group, name_fault(group, may_nest=True)) for group in groups),
    ):
        if fault:
            raise ValueError(f"the name {name!r} {fault}")
    return identity


def _invitation(claims: Mapping[str, Any]) -> Invitation:
    join = claims["join"]
    return Invitation(frozenset(Role(role) for role in join["roles"]), timedelta(seconds=float(join["lifetime_s"])))


def _credential(claims: Mapping[str, Any]) -> PilotCredential:
    queue_set = tuple(str(pattern) for pattern in claims.get("queues", ()))
    queue = NO_QUEUE if queue_set else QueueId(str(claims["site"]), str(claims["ce"]), str(claims["queue"]))
    vos, nonce_hash = tuple(str(vo) for vo in claims.get("vos", ())), str(claims.get("cnf", {}).get("nonce", ""))
    return PilotCredential(str(claims["stamp"]), queue, vos, nonce_hash, queue_set)
