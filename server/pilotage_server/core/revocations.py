"""Revocations: tokens and pilots' credentials that are refused although they have not expired.

Rules
-----
- A token is revoked by its issuer and id, or with all tokens of its owner that were issued up to a time.
- The credential of a pilot ends at a time that its record has: at once when it is revoked, and some time after the
  order to evict its jobs. A renewed token does not help, because the end belongs to the stamp.
- A revocation ends when no token that it refuses can be valid any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from pilotage.text import fold


class RevocationKind(StrEnum):
    """The subject of a revocation."""

    TOKEN = "token"  # noqa: S105 - a kind, not a secret
    OWNER = "owner"
    PILOTS = "pilots"


@dataclass(frozen=True, slots=True)
class Revocation:
    """A recorded revocation.

    `subject` is the id of a token, an owner, or the named pilots. `issuer` is that of the token. `owner` and `vo` are
    those of the tokens as far as they are known; an owner without a VO means this owner in all VOs.
    """

    kind: RevocationKind
    subject: str
    reason: str
    by: str
    made: datetime
    expires: datetime
    issuer: str = ""
    owner: str = ""
    vo: str = ""

    def __str__(self) -> str:
        """Return who revoked and why, for the holder of what is revoked."""
        return f"revoked by {self.by} at {self.made:%Y-%m-%d %H:%M:%S} UTC: {self.reason}"


class Revocations:
    """The snapshot of all revocations that a server checks calls against; it never changes."""

    def __init__(
        self, records: Iterable[Revocation] = (), pilots: Mapping[str, datetime] = MappingProxyType({})
    ) -> None:
        self._records = tuple(records)
        self._pilots = dict(pilots)
        self._tokens = {(each.issuer, each.subject): each for each in self._of(RevocationKind.TOKEN)}
        self._owners: dict[tuple[str, str], Revocation] = {}
        for each in self._of(RevocationKind.OWNER):
            key = (fold(each.vo), each.subject)
            known = self._owners.setdefault(key, each)
            if known.made < each.made:
                self._owners[key] = each

    def _of(self, kind: RevocationKind) -> Iterable[Revocation]:
        return (each for each in self._records if each.kind is kind)

    def with_records(self, *records: Revocation) -> Revocations:
        """Return this snapshot with more revocations."""
        return Revocations((*self._records, *records), self._pilots)

    def with_pilots(self, stamps: Iterable[str], end: datetime) -> Revocations:
        """Return this snapshot with the end of these pilots' credentials."""
        return Revocations(self._records, self._pilots | dict.fromkeys(stamps, end))

    def of_token(self, issuer: str, token_id: str) -> Revocation | None:
        """Return the revocation of this token; None = it is not revoked."""
        return self._tokens.get((issuer, token_id))

    def of_owner(self, vo: str, owner: str, issued: datetime) -> Revocation | None:
        """Return the revocation of the tokens of this owner that covers one issued at that time.

        Letter case of the VO does not count, as elsewhere: a revocation must not miss its tokens for it.
        """
        for found in (self._owners.get((fold(vo), owner)), self._owners.get(("", owner))):
            if found is not None and issued <= found.made:
                return found
        return None

    def end_of_pilot(self, stamp: str) -> datetime | None:
        """Return when the credential of a pilot ends; None = with its token."""
        return self._pilots.get(stamp)


NO_REVOCATIONS = Revocations()
