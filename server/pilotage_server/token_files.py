"""Tokens in files, for those who start on the server's own machine."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from pilotage_server.core.identity import Identity, Role
from pilotage_server.rpc.tokens import TokenIssuer, write_private

BOOTSTRAP_LIFETIME = timedelta(days=30)
"""How long the tokens hold that a server writes at its start."""

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


def bootstrap_tokens(issuer: TokenIssuer, person: Person, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield the name of each token and the token; the agents' is in a name of its own."""
    for name, roles in ROLES.items():
        owner = "agent:local" if Role.AGENT in roles else person.owner
        identity = Identity(owner, person.vo, person.groups, frozenset(roles))
        yield name, issuer.issue(identity, BOOTSTRAP_LIFETIME, now)


def write_tokens(folder: Path, issuer: TokenIssuer, person: Person, now: datetime) -> None:
    """Write NAME.token files that their owner alone may read, in the place of those of an earlier start."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, token in bootstrap_tokens(issuer, person, now):
        draft = folder / f".{name}.{secrets.token_hex(4)}"
        write_private(draft, f"{token}\n".encode())
        os.replace(draft, folder / f"{name}.token")
