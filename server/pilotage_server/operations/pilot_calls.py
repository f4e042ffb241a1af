"""What every call of a pilot begins with: whose call it is, that it was heard, and what the server wants of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pilotage.errors import PermissionDeniedError
from pilotage.resource_tree import QueueId
from pilotage_server.core.identity import Identity, PilotCredential
from pilotage_server.core.leases import AttemptRecord, gone_reason, is_adoptable
from pilotage_server.core.pilots import PilotRecord, state_when_heard, why_no_work
from pilotage_server.core.reports import HeldLease
from pilotage_server.operations.world import World
from pilotage_server.storage.attempts import load_taken
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.pilots import change_pilots, load_pilots, note_heard
from pilotage_server.storage.trees import version_in_force

_HEARD_LATELY = timedelta(seconds=5)
"""A pilot that was heard so lately is not noted as heard again, so that busy pilots cost no extra writes."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Stop one attempt; the pilot reports it as killed."""

    job_id: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class DrainPilot:
    """Take no new jobs and end; `evict` = do not even let what runs come to its end."""

    reason: str
    evict: bool


Command = Kill | DrainPilot


def credential_of(identity: Identity) -> PilotCredential:
    """Return what the caller's token says of its pilot; raises PermissionDeniedError where it is no pilot's."""
    if identity.pilot is None:
        raise PermissionDeniedError("only a pilot, with a credential for its queue, may do this")
    return identity.pilot


def heard_of(unit: Unit, pilots: Mapping[str, bool | None]) -> dict[str, PilotRecord]:
    """Take note that pilots live, and return them as they were before, by stamp, without those that nobody registered.

    Beside a stamp stands whether the pilot says that it takes no new jobs; None = it says nothing of that.
    """
    found = load_pilots(unit.session, pilots)
    silent: list[str] = []
    for stamp, pilot in found.items():
        state = state_when_heard(pilot, draining=pilots[stamp])
        if state is not pilot.state:
            note_heard(unit.session, stamp, state, unit.now)
        elif pilot.last_seen is None or unit.now - pilot.last_seen >= _HEARD_LATELY:
            silent.append(stamp)
    if silent:
        change_pilots(unit.session, silent, {"last_seen": unit.now})
    return found


def no_work_reason(unit: Unit, world: World, credential: PilotCredential, pilot: PilotRecord | None) -> str:
    """Return why the pilot gets no work and must drain; empty = it may have some."""
    return why_no_work(pilot, queue_known=_may_be_known(unit, world, credential.queue))


def _may_be_known(unit: Unit, world: World, queue: QueueId) -> bool:
    """Whether the tree in force has the queue, or may have it: one that another server put in is not seen here yet."""
    tree = world.tree
    return tree.knows(queue) or version_in_force(unit.session) != tree.version


def commands_of(
    unit: Unit, world: World, callers: Sequence[tuple[PilotCredential, PilotRecord | None, frozenset[HeldLease]]]
) -> list[tuple[Command, ...]]:
    """Return what each pilot is to do; of the attempts in its set it hears otherwise."""
    owing = {pilot.stamp for _, pilot, _ in callers if pilot is not None and pilot.owes_answers}
    taken = taken_away(unit, world, owing) if owing else {}
    found: list[tuple[Command, ...]] = []
    for credential, pilot, held in callers:
        kills = [
            Kill(attempt.job_id, attempt.attempt, gone_reason(attempt))
            for attempt in taken.get(credential.stamp, ())
            if HeldLease(attempt.job_id, attempt.attempt) not in held
        ]
        reason = no_work_reason(unit, world, credential, pilot)
        drain = [DrainPilot(reason, pilot.drain_evicts if pilot is not None else False)] if reason else []
        found.append((*kills, *drain))
    return found


def taken_away(unit: Unit, world: World, stamps: Iterable[str]) -> dict[str, list[AttemptRecord]]:
    """Return the attempts that were taken from pilots lately, for good, and that they have not answered for."""
    since = unit.now - world.rules.pilot_silence
    ended = load_taken(unit.session, stamps, since)
    jobs = load_jobs(unit.session, [attempt.job_id for attempt in ended])
    taken: dict[str, list[AttemptRecord]] = {}
    for attempt in ended:
        if attempt.job_id not in jobs or not is_adoptable(jobs[attempt.job_id], attempt):
            taken.setdefault(attempt.pilot_stamp, []).append(attempt)
    return taken
