"""Tokens in files, for those who start on the server's own machine."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pilotage.clock import Clock
from pilotage_server.core.identity import Identity, Role
from pilotage_server.rpc.tokens import TokenIssuer, write_private

BOOTSTRAP_LIFETIME = timedelta(days=30)
"""How long the tokens hold that a server writes."""

RENEWED_EVERY_S = 3600.0
"""How often they are written anew: far more often than they must be, also where the machine sleeps most of the time."""

ROLES = {
    "user": (Role.USER,),
    "operator": (Role.USER, Role.OPERATOR),
    "admin": (Role.USER, Role.OPERATOR, Role.ADMIN),
    "agent": (Role.AGENT,),
}
"""Which tokens are written, and the roles in each."""


@dataclass(frozen=True, slots=True)
class Person:
    """Whom tokens are for."""

    owner: str
    vo: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """A folder with a token for each of the `ROLES`, in files that their owner alone may read."""

    folder: Path
    person: Person
    clock: Clock

    def write(self, issuer: TokenIssuer) -> None:
        """Write NAME.token files, each whole, in the place of those that were written before."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, token in self._tokens(issuer):
            draft = self.folder / f".{name}.{secrets.token_hex(4)}"
            try:
                write_private(draft, f"{token}\n".encode())
                draft.replace(self.folder / f"{name}.token")
            finally:
                draft.unlink(missing_ok=True)

    def _tokens(self, issuer: TokenIssuer) -> Iterator[tuple[str, str]]:
        """Yield the name of each token and the token; the agents' is in a name of its own."""
        now = self.clock()
        for name, roles in ROLES.items():
            owner = "agent:local" if Role.AGENT in roles else self.person.owner
            identity = Identity(owner, self.person.vo, self.person.groups, frozenset(roles))
            yield name, issuer.issue(identity, BOOTSTRAP_LIFETIME, now)
