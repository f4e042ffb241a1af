"""Tails: followers ask for the output of running attempts, pilots send it, and any server stores it in the database.

The server that is asked knows at once which tails are wanted; the others read that again every few seconds
(`startup.sync`). A pilot learns it from the answer to its next call at a server that knows.
"""

from __future__ import annotations

from datetime import timedelta

from pilotage.values.attempts import TailStream
from pilotage_server.core.attempts.tails import WantedTail, WantedTails
from pilotage_server.core.identity import Identity
from pilotage_server.operations.attempts.pilot_calls import credential_of
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import tails as stored
from pilotage_server.storage.database.transaction import Transaction

WANTED_FOR = timedelta(seconds=20)
RENEWED_WITHIN = timedelta(seconds=15)
"""A follower extends a tail that is wanted for less than this: every 5 seconds."""


def want_tail(transaction: Transaction, state: ServerState, stream: TailStream, stamp: str) -> None:
    """Ask the pilot with this stamp for a stream of its attempt, or extend that."""
    tail = stored.load_tail(transaction.session, stream)
    wanted = WantedTail(stream, stamp, transaction.now + WANTED_FOR)
    if tail is not None and tail.wanted.until >= transaction.now:
        stored.extend_tail(transaction.session, wanted)
        is_new = not tail.is_posted
    else:
        stored.begin_tail(transaction.session, wanted)
        is_new = True

    def apply() -> None:
        with state.lock:
            state.tails = state.tails.with_tail(wanted, transaction.now)
            if is_new:
                state.new_tails = {
                    each: streams
                    for each, streams in state.new_tails.items()
                    if state.tails.of_pilot(each, transaction.now)
                }
                state.new_tails.setdefault(stamp, set()).add(stream)
        if is_new:
            state.publish_command(stamp)

    transaction.after_commit(apply)


def post_tail(transaction: Transaction, identity: Identity, stream: TailStream, offset: int, piece: bytes) -> bool:
    """Store new output of a stream; return whether anybody still follows it.

    Raises PermissionDeniedError if the caller is not a pilot. The stream of another pilot is not wanted.
    """
    stamp = credential_of(identity).stamp
    tail = stored.load_tail(transaction.session, stream, for_update=True)
    if tail is None or tail.wanted.stamp != stamp or tail.wanted.until < transaction.now:
        return False
    if piece or not tail.is_posted:
        content = stored.load_content(transaction.session, stream)
        stored.store_content(transaction.session, stream, content.with_piece(offset, piece))
    return True


def sync_tails(transaction: Transaction, state: ServerState) -> None:
    """Read again which tails are wanted at any server."""
    before = state.tails
    found = WantedTails(stored.load_wanted(transaction.session, transaction.now))
    with state.lock:
        if state.tails is before:  # else somebody has begun to follow meanwhile: the next sync has all
            state.tails = found


def remove_old_tails(transaction: Transaction, _state: ServerState) -> int:
    """Remove the tails that nobody follows any more; return how many."""
    return stored.delete_unwanted(transaction.session, transaction.now - WANTED_FOR)
