"""RequestJobs: pilots bring reports and free slots, and take jobs away; many of them in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pilotage.bans import active_bans
from pilotage.errors import PilotageError
from pilotage_server.core.identity import Identity, PilotCredential
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.node_settings import NodeId, NodeSettings
from pilotage_server.core.pilots import PilotRecord
from pilotage_server.core.preemption import Vacate
from pilotage_server.core.reports import HeldLease
from pilotage_server.core.slots import SlotOffer
from pilotage_server.operations.answer_room import AnswerRoom
from pilotage_server.operations.bind_jobs import Wish, bind_jobs
from pilotage_server.operations.load_world import learn_heads, learn_task_queues
from pilotage_server.operations.made_matches import Made, made_matches
from pilotage_server.operations.match_slots import Asking, Matched, match_slots
from pilotage_server.operations.pilot_calls import Command, commands_of, credential_of, heard_of, no_work_reason
from pilotage_server.operations.pool_views import get_submit_pools_for_queue
from pilotage_server.operations.reports import ReportResult, record_reports
from pilotage_server.operations.slot_offers import NO_OFFERS, Offers, read_offers, take_in_parts
from pilotage_server.operations.trials import Admitted, admitted, settle_trial
from pilotage_server.operations.work import Match, WorkAnswer, WorkRequest
from pilotage_server.operations.world import World
from pilotage_server.storage.claims import lock_jobs
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.node_settings import load_node_settings


def request_many(
    unit: Unit, world: World, requests: Sequence[tuple[Identity, WorkRequest]]
) -> list[WorkAnswer | PilotageError]:
    """Record the reports of pilots, then bind waiting jobs to their slots, those who asked first first.

    Of the callers only their credentials are believed: stamp, queue and VOs. A pilot that drains, has ended, is not
    known, or whose queue is gone from the tree gets no work, and is told to drain.

    Returns
    -------
    list
        One answer per request, in order; of a request that has an error instead nothing has happened.
    """
    calls = [_Call(identity, credential_of(identity), request) for identity, request in requests]
    for call in calls:
        call.fault = _fault_of_parts(world, call.request)
    sound = [call for call in calls if call.fault is None]
    learn_task_queues(unit, world)
    _record(unit, world, sound)
    _look_at_pilots(unit, world, sound)
    _offer(unit, world, sound)
    _match(unit, world, sound)
    return [call.fault or _answer(world, call) for call in calls]


@dataclass(slots=True)
class _Call:
    """One request on its way through the transaction."""

    identity: Identity
    credential: PilotCredential
    request: WorkRequest
    fault: PilotageError | None = None
    results: tuple[ReportResult, ...] = ()
    pilot: PilotRecord | None = None
    commands: tuple[Command, ...] = ()
    settings: NodeSettings | None = None
    offers: Offers = NO_OFFERS
    matches: tuple[Match, ...] = ()
    vacates: tuple[Vacate, ...] = ()

    @property
    def node(self) -> NodeId | None:
        """The pilot's node, None where operators cannot have set anything on it."""
        if self.pilot is None or not self.pilot.node or not self.request.has_policy:
            return None
        return NodeId(self.credential.queue.site, self.pilot.node)


def _fault_of_parts(world: World, request: WorkRequest) -> PilotageError | None:
    try:
        if request.ad_parts:
            take_in_parts(world, request.ad_parts)
    except PilotageError as error:
        return error
    return None


def _record(unit: Unit, world: World, calls: Sequence[_Call]) -> None:
    lock_jobs(unit.session, [report.job_id for call in calls for report in call.request.reports], rivals=unit.again)
    results = record_reports(unit, world, [(call.identity, call.request.reports) for call in calls])
    for call, told in zip(calls, results, strict=True):
        call.results = told


def _look_at_pilots(unit: Unit, world: World, calls: Sequence[_Call]) -> None:
    """Take note that the pilots live, and find out what the server wants of them."""
    pilots = heard_of(unit, {call.credential.stamp: None for call in calls})
    for call in calls:
        call.pilot = pilots.get(call.credential.stamp)
    commands = commands_of(unit, world, [(call.credential, call.pilot, frozenset()) for call in calls])
    nodes = {call.node for call in calls} - {None}
    settings = load_node_settings(unit.session, [node for node in nodes if node]) if nodes else {}
    for call, wanted in zip(calls, commands, strict=True):
        call.commands = wanted
        known = settings.get(call.node) if call.node is not None else None
        if known is not None and known.version != call.request.node_settings_version:
            call.settings = known


def _offer(unit: Unit, world: World, calls: Sequence[_Call]) -> None:
    """Read the policies of the slots that may get something: those of pilots that have heard all that is to hear."""
    for call in calls:
        may_have_work = call.pilot is not None and not no_work_reason(unit, world, call.credential, call.pilot)
        if call.request.slots and may_have_work and call.settings is None:
            call.offers = read_offers(world, call.credential.queue, call.request.slots)


def _match(unit: Unit, world: World, calls: Sequence[_Call]) -> None:
    """Bind jobs, first in the quick way for all, then in the plain way for what is left."""
    bans = world.bans
    asking = [call for call in calls if call.offers.slots and not active_bans(bans, call.credential.queue, unit.now)]
    trials: list[tuple[_Call, Admitted]] = []
    if world.throttles:
        asking, trials = _try_throttled(unit, world, asking)
    made: list[Made] = []
    wishes = [Wish(_asking(call), call.offers, AnswerRoom.of(call.offers.slots)) for call in asking]
    given = bind_jobs(unit, world, wishes)
    for call, wish, (bound, plain) in zip(asking, wishes, given, strict=True):
        left = tuple(slot for slot in call.offers.slots if slot.occupied is not None or slot in plain)
        matched = _matched_plainly(unit, world, wish, left) if left else Matched()
        made.append(Made((*bound, *matched.claimed), call.offers.slots))
        call.vacates = matched.vacates
    for call, matches in zip(asking, made_matches(unit, world, made), strict=True):
        call.matches = matches
    for call, trial in trials:
        settle_trial(unit, trial, call.matches)


def _try_throttled(
    unit: Unit, world: World, calls: Sequence[_Call]
) -> tuple[list[_Call], list[tuple[_Call, Admitted]]]:
    """Return those of the calls that may have jobs, and which of them may have no more than one, as a trial."""
    asking: list[_Call] = []
    trials: list[tuple[_Call, Admitted]] = []
    for call in calls:
        found = admitted(unit, world, _asking(call), call.offers)
        if found is None:
            continue
        asking.append(call)
        if found.trials:
            call.offers = found.offers
            trials.append((call, found))
    return asking, trials


def _matched_plainly(unit: Unit, world: World, wish: Wish, slots: tuple[SlotOffer, ...]) -> Matched:
    learn_heads(unit, world)
    return match_slots(unit, world, wish.pilot, replace(wish.offers, slots=slots), wish.room)


def _asking(call: _Call) -> Asking:
    return Asking(call.credential, call.pilot.node if call.pilot is not None else "")


def _answer(world: World, call: _Call) -> WorkAnswer:
    return WorkAnswer(
        matches=call.matches,
        results=call.results,
        pools_changed=_pools_changed(world, call),
        commands=call.commands,
        vacates=call.vacates,
        ad_parts_wanted=call.offers.parts_wanted,
        unreferred=call.offers.unreferred,
        faults=call.offers.faults,
        node_settings=call.settings,
    )


def _pools_changed(world: World, call: _Call) -> bool:
    """Whether the pilot's list of pools is not the server's; one without a list claims nothing."""
    if not call.request.pool_ids:
        return False
    (mine,) = get_submit_pools_for_queue(world, call.identity, [call.credential.queue])
    return frozenset(call.request.pool_ids) != frozenset(mine.pool_ids)


def leases_left(unit: Unit, identity: Identity, matches: Sequence[HeldLease]) -> dict[HeldLease, timedelta]:
    """Return how long the leases of earlier matches still run, for an answer that is given again; 0 = it has ended."""
    stamp = credential_of(identity).stamp
    jobs = load_jobs(unit.session, [match.job_id for match in matches])
    return {match: _left(jobs.get(match.job_id), match, stamp, unit.now) for match in matches}


def _left(job: JobRecord | None, match: HeldLease, stamp: str, now: datetime) -> timedelta:
    mine = job is not None and job.is_leased and (job.attempt, job.pilot_stamp) == (match.attempt, stamp)
    if job is None or job.lease_until is None or not mine:
        return timedelta(0)
    return max(timedelta(0), job.lease_until - now)
