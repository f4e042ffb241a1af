"""Leases that nobody renews: swept, unless it was the servers that were not there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pilotage_server.core.jobs import JobCause
from pilotage_server.core.pilots import PilotState, is_silent
from pilotage_server.operations.lingering import leases_over
from pilotage_server.operations.lost_attempts import Loss, lose
from pilotage_server.operations.world import World
from pilotage_server.storage import leases
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.pilots import change_pilots, load_silent
from pilotage_server.storage.slots import remove_slots

_BATCH = 500
"""One sweep takes so many jobs, so that no transaction keeps the others waiting for long."""


@dataclass(frozen=True, slots=True)
class Expired:
    """What a sweep gave up: ids of jobs, stamps of pilots; `more` = there are more jobs to sweep.

    `gap` = the time without any server, by which all leases have been extended before it.
    """

    jobs: tuple[int, ...]
    pilots: tuple[str, ...]
    more: bool
    gap: timedelta = timedelta(0)


def expire_leases(unit: Unit, world: World) -> Expired:
    """Give back the jobs whose leases have run out, and give up the pilots that have long been silent.

    A server that was stopped for a while, with its machine or by a signal, has not been there for its pilots
    either, so each sweep asks first since when that is.
    """
    gap = note_alive(unit, world)
    expired = leases.lock_expired(unit.session, unit.now, _BATCH)
    losses = [Loss(job, JobCause.LEASE_LOST, f"nothing was heard of pilot {job.pilot_stamp}") for job in expired]
    moved = lose(unit, world, losses, actor="server")
    jobs = tuple(job.id for job in moved if job is not None)
    lingering = leases_over(unit, world, _BATCH)
    return Expired(jobs, _give_up_pilots(unit, world), more=_BATCH in {len(expired), lingering}, gap=gap)


def _give_up_pilots(unit: Unit, world: World) -> tuple[str, ...]:
    rules = world.rules
    shortest_arrival = min(rules.pilot_submission, rules.pilot_arrival)
    suspects = load_silent(unit.session, unit.now - rules.pilot_silence, unit.now - shortest_arrival)
    stamps = tuple(pilot.stamp for pilot in suspects if is_silent(pilot, rules, unit.now))
    values = {"state": PilotState.LOST.value, "reason": "nothing was heard of it for too long", "ended": unit.now}
    change_pilots(unit.session, stamps, values)
    remove_slots(unit.session, stamps)
    return stamps


def note_alive(unit: Unit, world: World) -> timedelta:
    """Note that a server lives; return the time in which none did, by which all leases have been extended.

    To be called at the start, and then several times within `rules.life_gap`.
    """
    gap = unit.now - leases.swap_last_alive(unit.session, unit.now)
    if gap <= world.rules.life_gap:
        return timedelta(0)
    leases.extend_all(unit.session, gap)
    return gap
