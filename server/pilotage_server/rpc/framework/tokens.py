"""Tokens: JWTs of this server, and the issuers whose tokens it trusts.

The verifier has a list of trusted issuers; this server is one entry of it, so external issuers are further entries.
`now` is a parameter: nothing here reads a clock.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from pilotage.errors import UnauthenticatedError, WorldError
from pilotage.resources.tree import QueueId
from pilotage_server.core.identity import Identity, PilotCredential, Role, name_fault

ISSUER = "pilotage"
"""The name of a stand-alone server as an issuer."""

_ALGORITHM = "EdDSA"
_REMEMBERED = 50_000
_CHECKS: Any = {"require": ["iss", "sub", "exp", "iat", "roles"]}
_CHECKS |= dict.fromkeys(("verify_exp", "verify_iat", "verify_nbf"), False)  # `now` is ours to compare with


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """The identity of a valid token, and when the token expires."""

    identity: Identity
    expires: datetime


class TokenIssuer:
    """Issues tokens, signed with one key."""

    def __init__(self, key: Ed25519PrivateKey, name: str = ISSUER) -> None:
        self._key = key
        self.name = name

    def issue(self, identity: Identity, lifetime: timedelta, now: datetime) -> str:
        """Return a token for `identity` that is valid until `now` + `lifetime`."""
        claims: dict[str, Any] = {
            "iss": self.name,
            "sub": identity.owner,
            "vo": identity.vo,
            "groups": list(identity.groups),
            "roles": sorted(identity.roles),
            "iat": int(now.timestamp()),
            "exp": int((now + lifetime).timestamp()),
            "jti": secrets.token_hex(8),
        }
        if identity.pilot is not None:
            claims |= _pilot_claims(identity.pilot)
        return jwt.encode(claims, self._key, algorithm=_ALGORITHM)

    def trusted(self) -> TrustedIssuer:
        """Return this issuer as an entry for a verifier."""
        return TrustedIssuer(self.name, self._key.public_key())


def _pilot_claims(credential: PilotCredential) -> dict[str, Any]:
    queue = credential.queue
    return {
        "stamp": credential.stamp,
        "site": queue.site,
        "ce": queue.ce,
        "queue": queue.queue,
        "vos": list(credential.vos),
    }


@dataclass(frozen=True, slots=True)
class TrustedIssuer:
    """A trusted issuer, and the key that checks its tokens."""

    name: str
    key: Ed25519PublicKey
    algorithm: str = _ALGORITHM


class TokenVerifier:
    """Verifies tokens; checked signatures are cached."""

    def __init__(self, issuers: Iterable[TrustedIssuer]) -> None:
        self._issuers = {issuer.name: issuer for issuer in issuers}
        self._checked = lru_cache(maxsize=_REMEMBERED)(self._check)

    def verify(self, token: str, now: datetime) -> VerifiedToken:
        """Return the verified token; raises UnauthenticatedError if it is broken, untrusted or expired at `now`."""
        verified = self._checked(token)
        if verified.expires <= now:
            raise UnauthenticatedError(f"the token expired at {verified.expires.isoformat()}")
        return verified

    def _check(self, token: str) -> VerifiedToken:
        try:
            issuer = self._issuer_of(token)
            claims = jwt.decode(token, issuer.key, algorithms=[issuer.algorithm], options=_CHECKS)
            return VerifiedToken(_identity(claims), datetime.fromtimestamp(claims["exp"], UTC))
        except jwt.PyJWTError as error:
            # The text of a plain DecodeError is about bytes and padding, which helps no reader.
            why = "it is not a JSON web token" if type(error) is jwt.DecodeError else str(error)
            raise UnauthenticatedError(f"the token is broken: {why}") from error
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UnauthenticatedError(f"the token's claims are broken: {error}") from error

    def _issuer_of(self, token: str) -> TrustedIssuer:
        name = jwt.decode(token, options={"verify_signature": False}).get("iss")
        if name not in self._issuers:
            raise UnauthenticatedError(f"the token's issuer {name!r} is not trusted here")
        return self._issuers[name]


def _identity(claims: Mapping[str, Any]) -> Identity:
    roles = frozenset(Role(role) for role in claims["roles"])
    groups = tuple(str(group) for group in claims.get("groups", ()))
    pilot = _credential(claims) if Role.PILOT in roles else None
    identity = Identity(str(claims["sub"]), str(claims.get("vo", "")), groups, roles, pilot)
    for name, fault in (
        (identity.owner, name_fault(identity.owner)),
        (identity.vo, name_fault(identity.vo)),
        *((group, name_fault(group, may_nest=True)) for group in groups),
    ):
        if fault:
            raise ValueError(f"the name {name!r} {fault}")
    return identity


def _credential(claims: Mapping[str, Any]) -> PilotCredential:
    queue = QueueId(str(claims["site"]), str(claims["ce"]), str(claims["queue"]))
    return PilotCredential(str(claims["stamp"]), queue, tuple(str(vo) for vo in claims.get("vos", ())))


def load_or_make_key(path: Path) -> Ed25519PrivateKey:
    """Return the signing key in `path`; the first call creates it, readable by its owner only.

    Raises WorldError if the file cannot be read or created, holds no Ed25519 key, or is readable by others.
    """
    try:
        if not path.exists():
            _make_key(path)
        return _load_key(path)
    except OSError as error:
        raise WorldError(f"the signing key {path} cannot be used: {error.strerror}", transient=False) from error


def _make_key(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_private(draft, pem)
    try:
        os.link(draft, path)  # unlike a rename, this never replaces the key of a process that was faster
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read, and sync it to disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _load_key(path: Path) -> Ed25519PrivateKey:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        message = f"the signing key {path} is open to others (mode {mode:o}); chmod 600, or remove it to get a new one"
        raise WorldError(message, transient=False)
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise WorldError(f"{path} holds no private key in PEM form: {error}", transient=False) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise WorldError(f"{path} holds a key of another type than Ed25519", transient=False)
    return key
