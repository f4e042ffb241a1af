"""Revocations of tokens: who may revoke what, what is refused afterwards, and how other servers learn of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.errors import InvalidInputError, PermissionDeniedError
from pilotage_server.core.identity import Identity
from pilotage_server.core.revocations import Revocation, RevocationKind
from pilotage_server.core.rules import Rules
from pilotage_server.operations.jobs.retention import remove_expired_revocations
from pilotage_server.operations.revocations import (
    TokensToRevoke,
    list_revocations,
    load_snapshot,
    revoke_tokens,
    sync_revocations,
)
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.grid import Grid
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

HOUR = timedelta(hours=1)


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


def revoke(grid: Grid, wanted: TokensToRevoke, by: Identity | None = None, reason: str = "stolen") -> Revocation:
    identity = by or an_operator()
    return grid.write(lambda transaction, state: revoke_tokens(transaction, state, identity, wanted, reason))


def listed(grid: Grid, identity: Identity) -> list[str]:
    return [each.subject for each in grid.read(lambda transaction, _: list_revocations(transaction, identity))]


def test_revoked_token_is_known_here_elsewhere_and_after_a_restart(grid: Grid) -> None:
    other = grid.restarted()
    made = revoke(grid, TokensToRevoke("alice", "lhcb", "here", "t1", grid.clock() + HOUR))
    assert made.expires == grid.clock() + HOUR
    assert grid.state.revocations.of_token("here", "t1") == made
    assert other.state.revocations.of_token("here", "t1") is None
    other.read(sync_revocations)
    for found in (other.state.revocations, grid.restarted().state.revocations):
        assert found.of_token("here", "t1") == made
        assert found.of_token("elsewhere", "t1") is found.of_token("here", "t2") is None


@pytest.mark.parametrize("vo", ["lhcb", "LHCb"])
def test_revocation_of_an_owner_covers_tokens_issued_until_then(grid: Grid, vo: str) -> None:
    now = grid.clock()
    revoke(grid, TokensToRevoke("alice", vo))
    found = grid.state.revocations
    assert found.of_owner("lhcb", "alice", now - HOUR)
    assert found.of_owner("lhcb", "alice", now)
    assert found.of_owner("lhcb", "alice", now + timedelta(microseconds=1)) is None
    assert found.of_owner("cms", "alice", now - HOUR) is found.of_owner("lhcb", "bob", now - HOUR) is None


def test_revocation_of_an_owner_in_all_vos(grid: Grid) -> None:
    revoke(grid, TokensToRevoke("alice"))
    assert all(grid.state.revocations.of_owner(vo, "alice", grid.clock()) for vo in ("lhcb", "cms"))


def test_later_revocation_of_an_owner_counts(grid: Grid) -> None:
    revoke(grid, TokensToRevoke("alice", "lhcb"))
    grid.clock.advance(HOUR)
    revoke(grid, TokensToRevoke("alice", "lhcb"))
    for found in (grid.state.revocations, grid.read(lambda transaction, _: load_snapshot(transaction))):
        assert found.of_owner("lhcb", "alice", grid.clock())


def test_revocation_in_between_survives_a_sync(grid: Grid) -> None:
    def sync_beside_a_revocation(transaction: Transaction, state: ServerState) -> None:
        before = load_snapshot(transaction)  # the reading transaction has its view now
        revoke(grid, TokensToRevoke("alice", "lhcb", "here", "t1"))
        assert before.of_token("here", "t1") is None
        sync_revocations(transaction, state)

    grid.read(sync_beside_a_revocation)
    grid.read(sync_revocations)
    assert grid.state.revocations.of_token("here", "t1")


@pytest.mark.parametrize(
    "wanted",
    [
        TokensToRevoke("bob", "lhcb", "here", "t1"),
        TokensToRevoke("alice", "cms", "here", "t1"),
        TokensToRevoke(issuer="here", token_id="t1"),
        TokensToRevoke("bob", "lhcb"),
        TokensToRevoke("alice"),
    ],
)
def test_users_revoke_only_tokens_of_their_own(grid: Grid, wanted: TokensToRevoke) -> None:
    with pytest.raises(PermissionDeniedError, match="your own tokens only"):
        revoke(grid, wanted, a_user("alice", "lhcb"))
    assert not listed(grid, an_operator())


def test_users_see_only_revocations_of_their_own(grid: Grid) -> None:
    alice = a_user("alice", "lhcb")
    revoke(grid, TokensToRevoke("alice", "lhcb", "here", "t1"), alice)
    revoke(grid, TokensToRevoke("alice", "lhcb"), alice)
    revoke(grid, TokensToRevoke("alice", "cms", "here", "t2"))
    revoke(grid, TokensToRevoke(issuer="here", token_id="t3"))
    assert listed(grid, alice) == ["alice", "t1"]
    assert listed(grid, an_operator()) == ["t3", "t2", "alice", "t1"]


def test_revocation_ends_with_the_token(grid: Grid) -> None:
    revoke(grid, TokensToRevoke("alice", "lhcb", "here", "t1", grid.clock() + HOUR))
    revoke(grid, TokensToRevoke(issuer="here", token_id="t2"))
    grid.clock.advance(HOUR)
    assert listed(grid, an_operator()) == ["t2"]
    assert grid.write(remove_expired_revocations) == 1
    grid.clock.advance(Rules().longest_token)
    assert grid.write(remove_expired_revocations) == 1


@pytest.mark.parametrize("reason", ["", " \n"])
def test_revocation_needs_a_reason(grid: Grid, reason: str) -> None:
    with pytest.raises(InvalidInputError, match="reason"):
        revoke(grid, TokensToRevoke("alice", "lhcb"), reason=reason)


def test_revocation_names_who_and_why(grid: Grid) -> None:
    made = revoke(grid, TokensToRevoke("alice", "lhcb"))
    assert made.kind is RevocationKind.OWNER
    assert str(made) == f"revoked by olga at {grid.clock():%Y-%m-%d %H:%M:%S} UTC: stolen"
