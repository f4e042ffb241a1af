"""Tails of followed output: which streams a pilot is asked for, and for how long."""

from __future__ import annotations

import pytest

from pilotage.values.attempts import TailStream
from pilotage_server.operations.attempts.tails import WANTED_FOR, post_tail, want_tail
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database


def test_pilot_is_asked_again_after_the_last_follower_has_gone(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    (job_id,) = grid.submit()
    pilot = grid.start_pilot()
    pilot.start(pilot.take())
    stream = TailStream(job_id, 1, is_error=False)

    def asked() -> tuple[TailStream, ...]:
        grid.write(lambda transaction, state: want_tail(transaction, state, stream, pilot.stamp))
        return grid.state.take_new_tails(pilot.stamp)

    def is_wanted() -> bool:
        return grid.write(lambda transaction, _: post_tail(transaction, pilot.identity, stream, 0, b"output"))

    assert not is_wanted()
    assert asked() == (stream,)
    assert is_wanted()
    assert asked() == (), "the pilot sends it already"
    grid.pass_time(seconds=WANTED_FOR.total_seconds() + 1)
    assert not is_wanted()
    assert asked() == (stream,)
    assert is_wanted()
