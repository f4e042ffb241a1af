"""Outside issuers: identities and permissions from tokens of WLCG's profile and SciTokens.

Rules
-----
- The owner is SUBJECT@NAME, with the name of the issuer in the settings. "/" and "%" in the subject are escaped, so
  that two subjects are never one owner. Owners of this server cannot end with the name of an outside issuer.
- The VO and the roles come from the tables of the settings alone, so an issuer can speak for its own VOs only.
- Groups are those of the claim `wlcg.groups` without their first slash; the first one is the default.
- A token with scopes for jobs may do what they permit. One that has only other capabilities, such as those for
  storage, may do nothing.

Sources: "WLCG Common JWT Profiles" 1.2; SciTokens, "Claims and scopes language"; RFC 9068.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pilotage.errors import UnauthenticatedError
from pilotage_server.core.identity import Identity, Role, name_fault
from pilotage_server.rpc.framework.issuer_keys import IssuerKeys
from pilotage_server.rpc.framework.scopes import SCOPES, Permission, permissions_of
from pilotage_server.rpc.framework.tokens import VerificationKey
from pilotage_server.settings import IssuerSetting

ANY_AUDIENCE = "https://wlcg.cern.ch/jwt/v1/any"
"""The audience of tokens for every relying party of WLCG."""

_GROUPS = "wlcg.groups"
_MAX_SUBJECT_CHARS = 255
_PLAIN = "!\"#$&'()*+,:;<=>?@[\\]^`{|}"
"""Characters of a subject that an owner has unchanged, beside letters, digits and "_.-~"; all others are escaped."""


@dataclass(frozen=True, slots=True)
class OutsideIssuer:
    """An outside issuer as a trusted one."""

    setting: IssuerSetting
    keys: IssuerKeys

    @property
    def name(self) -> str:
        """The claim `iss` of its tokens."""
        return self.setting.url

    @property
    def audiences(self) -> Collection[str]:
        """Its tokens are for one of these."""
        return (*self.setting.audiences, *((ANY_AUDIENCE,) if self.setting.any_audience else ()))

    @property
    def required(self) -> Collection[str]:
        """Its tokens need no claim beside the usual ones."""
        return ()

    def find_key(self, kid: str | None) -> VerificationKey:
        """Return a present key; raises UnauthenticatedError, or WorldError while the keys are being read."""
        return self.keys.find(kid)

    def identity(self, claims: Mapping[str, Any]) -> Identity:
        """Return the identity of verified claims; raises UnauthenticatedError or ValueError."""
        self._check_lifetime(claims)
        groups, scopes = _groups_of(claims), _scopes_of(claims)
        roles = {role for key, granted in self.setting.roles.items() if key in {*groups, *scopes} for role in granted}
        return Identity(
            _escaped(claims["sub"]) + owner_suffix(self.setting),
            self._vo_of(groups, scopes),
            tuple(group.removeprefix("/") for group in groups),
            frozenset({Role.USER, *map(Role, roles)}),
        )

    def permissions(self, claims: Mapping[str, Any]) -> frozenset[Permission] | None:
        """Return what the token's scopes permit; None = everything that its roles may do."""
        scopes = _scopes_of(claims)
        if self.setting.needs_scopes or any(map(_is_capability, scopes)):
            return permissions_of(scopes)
        return None

    def _check_lifetime(self, claims: Mapping[str, Any]) -> None:
        lifetime_s, longest_s = claims["exp"] - claims["iat"], self.setting.longest_token_s
        if lifetime_s > longest_s:
            raise UnauthenticatedError(
                f"the token lives for {lifetime_s:.0f} s; those of {self.name} may live for {longest_s:.0f} s"
            )

    def _vo_of(self, groups: Sequence[str], scopes: Collection[str]) -> str:
        for key, vo in self.setting.vos.items():
            if key in scopes or any(group == key or group.startswith(f"{key}/") for group in groups):
                return vo
        if self.setting.vo is None:
            wanted = ", ".join(self.setting.vos)
            raise UnauthenticatedError(f"the token has no VO here: it has none of the groups and scopes {wanted}")
        return self.setting.vo


def owner_suffix(setting: IssuerSetting) -> str:
    """Return the end of the names of all owners of an issuer, and of no other owner."""
    return f"@{setting.name}"


def _escaped(subject: object) -> str:
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT_CHARS:
        raise ValueError(f"sub is not a text of 1 to {_MAX_SUBJECT_CHARS} characters")
    return quote(subject, safe=_PLAIN)


def _groups_of(claims: Mapping[str, Any]) -> tuple[str, ...]:
    groups = claims.get(_GROUPS, [])
    if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
        raise ValueError(f"{_GROUPS} is not a list of texts")
    faulty = next((group for group in groups if name_fault(group, may_nest=True)), None)
    if faulty is not None:
        raise ValueError(f"the group {faulty!r} {name_fault(faulty, may_nest=True)}")
    return tuple(groups)


def _scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    scopes = claims.get("scope", "")
    if not isinstance(scopes, str):
        raise ValueError("scope is not a text")
    return frozenset(scopes.split())


def _is_capability(scope: str) -> bool:
    """Whether a scope permits something; those of OpenID Connect and the requests for groups only ask for claims."""
    return (
        scope in SCOPES
        or scope.startswith(("storage.", "compute."))
        or (":" in scope and not scope.startswith(f"{_GROUPS}:"))
    )
