"""Token files for programs on the server's own machine."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from pilotage.clock import Clock
from pilotage_server.core.identity import AGENT_NAMES, Identity, Role
from pilotage_server.rpc.framework.key_files import write_private
from pilotage_server.rpc.framework.tokens import TokenIssuer

BOOTSTRAP_LIFETIME = timedelta(days=1)
"""Lifetime of the tokens in the files."""

RENEW_EVERY_S = 3600.0
"""Interval of renewal; short, so that it also happens on a machine that sleeps most of the time."""

ROLES = {
    "user": (Role.USER,),
    "operator": (Role.USER, Role.OPERATOR),
    "admin": (Role.USER, Role.OPERATOR, Role.ADMIN),
} | {role.value: (role,) for role in AGENT_NAMES}
"""Name of each token file → roles of its token."""


@dataclass(frozen=True, slots=True)
class TokenOwner:
    """The owner, VO and groups of the tokens."""

    owner: str
    vo: str
    groups: tuple[str, ...] = ()


@dataclass(slots=True)
class TokenFiles:
    """A folder with a token for each of the `ROLES`, in files that only their owner may read."""

    folder: Path
    owner: TokenOwner
    clock: Clock
    _written: tuple[str, datetime] | None = field(init=False, default=None)

    def renew(self, issuer: TokenIssuer) -> None:
        """Write the files if they are due, or if another key signs now."""
        now = self.clock()
        if self._written is None or self._written[0] != issuer.keys.signing(now).kid or self._written[1] <= now:
            self.write(issuer)

    def write(self, issuer: TokenIssuer) -> None:
        """Write the NAME.token files, replacing each one atomically."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, token in self._tokens(issuer):
            draft = self.folder / f".{name}.{secrets.token_hex(4)}"
            try:
                write_private(draft, f"{token}\n".encode())
                draft.replace(self.folder / f"{name}.token")
            finally:
                draft.unlink(missing_ok=True)
        now = self.clock()
        self._written = (issuer.keys.signing(now).kid, now + timedelta(seconds=RENEW_EVERY_S))

    def _tokens(self, issuer: TokenIssuer) -> Iterator[tuple[str, str]]:
        """Yield the name of each file and its token; the token of an agent has its own owner."""
        now = self.clock()
        for name, roles in ROLES.items():
            owner = self.owner.owner if Role.USER in roles else f"{name}:local"
            identity = Identity(owner, self.owner.vo, self.owner.groups, frozenset(roles))
            yield name, issuer.issue(identity, BOOTSTRAP_LIFETIME, now)
