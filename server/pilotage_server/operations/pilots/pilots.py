"""Pilots: registration, reports of their glideins, drain, listings, and broken connections to the broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from pilotage.errors import InvalidInputError, NotFoundError, PermissionDeniedError, Violation
from pilotage.resources.queue_patterns import matches_any
from pilotage.resources.tree import QueueId
from pilotage.text import count_text
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_server.core.audit import AuditKind, line_difference
from pilotage_server.core.identity import (
    NO_QUEUE,
    UNBOUND,
    AgentBounds,
    Identity,
    PilotCredential,
    check_queue_set,
    check_queues,
)
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.pilots.nodes import NodeId
from pilotage_server.core.pilots.pilots import (
    ALIVE,
    ALL_PRESENT,
    OVER,
    PilotFilter,
    PilotRecord,
    ended_unexpectedly,
    has_surely_ended,
    is_disconnected,
)
from pilotage_server.core.resources.bans import TreeNode, find_node
from pilotage_server.operations.attempts.heartbeats import end_pilot
from pilotage_server.operations.attempts.transitions import LostAttempt, requeue_or_fail
from pilotage_server.operations.audit import record_change
from pilotage_server.operations.revocations import end_credentials
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import pilots as stored
from pilotage_server.storage.attempts import count_live, load_unreported
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.leases import lock_jobs
from pilotage_server.storage.pilots import change_pilots, has_run_any, load_pilots, remove_slots

MAX_AT_ONCE = 1000

LOST_SHOWN_FOR = timedelta(hours=1)
"""How long a lost pilot is listed among the live ones."""


@dataclass(frozen=True, slots=True)
class PilotInfo:
    """A pilot and the number of its jobs."""

    pilot: PilotRecord
    jobs: int


@dataclass(frozen=True, slots=True)
class NewPilots:
    """An order for pilots of a queue, for these VOs (none = all that the queue admits).

    With patterns in `queue_set` they are for one of several queues, which their batch system chooses; the queue is
    NO_QUEUE then.
    """

    queue: QueueId
    count: int
    vos: tuple[str, ...] = ()
    queue_set: tuple[str, ...] = ()

    def credential(self, stamp: str, vos: tuple[str, ...]) -> PilotCredential:
        """Return the content of the enrolment secret of one of them."""
        return PilotCredential(stamp, self.queue, vos, queue_set=self.queue_set)


def register_pilots(
    transaction: Transaction, state: ServerState, identity: Identity, wanted: NewPilots, new_stamp: Callable[[], str]
) -> tuple[PilotCredential, ...]:
    """Register new pilots of a queue or of a set of queues, and return the contents of their enrolment secrets.

    Raises
    ------
    NotFoundError
        The tree does not have the queue, or no queue of the set.
    InvalidInputError
        The count is not between 1 and 1,000.
    PermissionDeniedError
        The caller is bound to other queues or VOs.
    """
    if not 1 <= wanted.count <= MAX_AT_ONCE:
        raise InvalidInputError(Violation("count", f"is {wanted.count}; 1 to {MAX_AT_ONCE} pilots are made at once"))
    if wanted.queue_set:
        check_queue_set(identity, wanted.queue_set)
        if not any(matches_any(queue, wanted.queue_set) for queue in state.tree.queues):
            raise NotFoundError("queue", ", ".join(wanted.queue_set))
    else:
        if not state.tree.knows(wanted.queue):
            raise NotFoundError("queue", str(wanted.queue))
        check_queues(identity, [wanted.queue])
    vos = tuple(sorted(set(wanted.vos or identity.bounds.vos)))
    foreign = next((vo for vo in vos if not identity.bounds.has_vo(vo)), None)
    if foreign is not None:
        raise PermissionDeniedError(f"the token of {identity.owner} is not for pilots of the VO {foreign}")
    new = [
        stored.NewPilot(new_stamp(), wanted.queue, vos, identity.owner, wanted.queue_set) for _ in range(wanted.count)
    ]
    stored.insert_pilots(transaction.session, new, transaction.now)
    if identity.sees_everything:  # directors register pilots all the time
        place = ", ".join(wanted.queue_set) or str(wanted.queue)
        changed = line_difference([], (f"secret of pilot {pilot.stamp}" for pilot in new))
        record_change(
            transaction,
            identity,
            AuditKind.PILOT_SECRET,
            f"{count_text(len(new), 'pilot')} of {place}",
            difference=changed,
        )
    return tuple(wanted.credential(pilot.stamp, pilot.vos) for pilot in new)


def renewable_credentials(
    transaction: Transaction, stamps: Sequence[str], bounds: AgentBounds = UNBOUND
) -> tuple[PilotCredential, ...]:
    """Return the contents of new secrets for these pilots; unknown, foreign, enrolled, ended and revoked get none."""
    known = _pilots_within(transaction, stamps, bounds)
    live = [
        pilot
        for stamp, pilot in sorted(known.items())
        if pilot.state is not PilotState.ENDED and not pilot.nonce_hash and not pilot.is_revoked(transaction.now)
    ]
    return tuple(PilotCredential(each.stamp, each.queue, each.vos, queue_set=each.queue_set) for each in live)


def _pilots_within(transaction: Transaction, stamps: Sequence[str], bounds: AgentBounds) -> dict[str, PilotRecord]:
    """Return the known pilots of the queues in these bounds."""
    known = stored.load_pilots(transaction.session, stamps)
    return {stamp: pilot for stamp, pilot in known.items() if _is_within(pilot, bounds)}


def _is_within(pilot: PilotRecord, bounds: AgentBounds) -> bool:
    return bounds.has_queue_set(pilot.queue_set) if pilot.queue == NO_QUEUE else bounds.has_queue(pilot.queue)


class GlideinReportResult(NamedTuple):
    """Of the reported glideins: stamps of unknown pilots, and of ended ones whose pilots had run a job.

    `silent` are those of ended ones whose pilots have not said that they end.
    """

    unknown: tuple[str, ...]
    worked: tuple[str, ...]
    silent: tuple[str, ...] = ()


def report_glideins(
    transaction: Transaction, state: ServerState, identity: Identity, reports: Sequence[GlideinReport]
) -> GlideinReportResult:
    """Record the states of glideins in a batch system.

    An ended glidein ends the leases of its pilot at once if no process of it can be left. Otherwise its payloads may
    run on, as when a node fails that is only out of reach: the pilot is lost, and its leases run out. A glidein came
    back empty if it ran no job and was not ordered to end. Each pilot is loaded again before it is ended, because it
    may have changed.
    """
    known = _pilots_within(transaction, [report.stamp for report in reports], identity.bounds)
    present = [report for report in reports if report.state is not PilotState.ENDED and report.stamp in known]
    awaited = {report.stamp for report in present if known[report.stamp].is_awaited}
    stored.change_pilots(transaction.session, awaited, {"glidein_seen": transaction.now})
    running = {report.stamp for report in present if report.state is PilotState.RUNNING} & awaited
    new = {stamp for stamp in running if known[stamp].glidein_started is None}
    again = {stamp for stamp in awaited - running if known[stamp].glidein_started is not None}  # requeued by its system
    for stamps, started in ((new, transaction.now), (again, None)):
        stored.change_pilots(transaction.session, stamps, {"glidein_started": started})
    for report in present:
        pilot = known[report.stamp]
        _record_glidein_id(transaction, pilot, report)
        if pilot.is_awaited and pilot.state is not PilotState.SUBMITTED and not pilot.is_revoked(transaction.now):
            stored.record_submission(transaction.session, pilot, report.reason)
    gone = [report for report in reports if report.state is PilotState.ENDED and report.stamp in known]
    silent = tuple(
        report.stamp
        for report in gone
        if report.glidein_id and not report.called_back and known[report.stamp].state is not PilotState.ENDED
    )
    worked = [report.stamp for report in gone if _record_gone(transaction, state, identity, report)]
    unknown = tuple(report.stamp for report in reports if report.stamp not in known)
    return GlideinReportResult(unknown, tuple(worked), silent)


LONGEST_LOG = 16 * 1024
"""Characters of a pilot's output that are stored."""


def put_pilot_logs(transaction: Transaction, identity: Identity, logs: Sequence[tuple[str, str]]) -> None:
    """Store the ends of the outputs of pilots, by stamp, of the queues that the caller may act on."""
    within = _pilots_within(transaction, [stamp for stamp, _ in logs], identity.bounds)
    for stamp, text in logs:
        if stamp in within:
            stored.put_pilot_log(transaction.session, stamp, text[-LONGEST_LOG:], transaction.now)


def get_pilot_log(transaction: Transaction, stamp: str) -> tuple[datetime, str]:
    """Return when the end of a pilot's output was sent, and what it is.

    Raises
    ------
    NotFoundError
        The pilot is not known, or no output of it is stored.
    """
    found = stored.find_pilot_log(transaction.session, stamp)
    if found is not None:
        return found
    pilot = stored.load_pilots(transaction.session, [stamp]).get(stamp)
    if pilot is None:
        raise NotFoundError("pilot", stamp)
    kept = "directors send that of pilots which end without saying why; others are in the folder of their director"
    raise NotFoundError("output of pilot", f"{stamp}, which is {pilot.state}: {pilot.reason or 'no reason'}; {kept}")


def stamps_at(transaction: Transaction, state: ServerState, place: TreeNode | NodeId) -> tuple[str, tuple[str, ...]]:
    """Return the name of a site, CE, queue or node, and the stamps of its pilots that have not ended.

    Raises
    ------
    InvalidInputError
        The tree has no such site, CE or queue, and no pilot is registered there.
    NotFoundError
        The node has no live pilot.
    """
    if isinstance(place, NodeId):
        found = tuple(pilot.stamp for pilot in stored.load_node_pilots(transaction.session, [place]))
        if not found:
            raise NotFoundError("live pilot on node", str(place))
        return str(place), found
    # Pilots may be left at a queue that the tree does not have any more.
    queues = {*state.tree.queues, *stored.queues_with_pilots(transaction.session)}
    node = find_node(queues, place)
    return str(node), stored.stamps_at(transaction.session, node.site, node.ce, node.queue)


def _record_gone(transaction: Transaction, state: ServerState, identity: Identity, report: GlideinReport) -> bool:
    """End a pilot whose glidein has ended, or mark it as lost, and return whether it had run a job."""
    pilot = stored.load_pilots(transaction.session, [report.stamp]).get(report.stamp)
    if pilot is None:  # retention has removed it meanwhile
        return False
    _record_glidein_id(transaction, pilot, report)
    has_run = has_run_any(transaction.session, pilot.stamp)
    if pilot.state is not PilotState.ENDED:
        reason = report.reason or "its glidein is gone"
        queue_known = pilot.queue == NO_QUEUE or state.tree.knows(pilot.queue)
        unasked = ended_unexpectedly(pilot, report, queue_known=queue_known)
        is_empty = unasked and not has_run
        if has_surely_ended(pilot, report, transaction.now):
            _lose_all(transaction, state, pilot, reason, actor=identity.owner)
            end_pilot(transaction, state, pilot.stamp, reason, came_back_empty=is_empty)
        elif pilot.state is not PilotState.LOST:
            _mark_lost(transaction, [pilot.stamp], f"its processes may still run: {reason}", came_back_empty=is_empty)
    return has_run


def _mark_lost(transaction: Transaction, stamps: Collection[str], reason: str, **columns: object) -> None:
    """Mark pilots as lost. Their leases continue; one that calls again is alive again."""
    values = {"state": PilotState.LOST.value, "reason": reason, "ended": transaction.now, **columns}
    change_pilots(transaction.session, stamps, values)
    remove_slots(transaction.session, stamps)


def _record_glidein_id(transaction: Transaction, pilot: PilotRecord, report: GlideinReport) -> None:
    if report.glidein_id and report.glidein_id != pilot.glidein_id:
        stored.change_pilots(transaction.session, [pilot.stamp], {"glidein_id": report.glidein_id})


def _lose_all(transaction: Transaction, state: ServerState, pilot: PilotRecord, reason: str, *, actor: str) -> None:
    ids = [attempt.job_id for attempt in load_unreported(transaction.session, pilot.stamp) if attempt.ended is None]
    lock_jobs(
        transaction.session, ids, rivals=transaction.is_retry
    )  # a race copy decides whether a last lost attempt fails the job
    # Jobs may have changed before they were locked: attempts ended, or matched to other pilots.
    held = [
        job for job in load_jobs(transaction.session, ids).values() if job.is_leased and job.pilot_stamp == pilot.stamp
    ]
    why = f"the glidein of pilot {pilot.stamp} is gone: {reason}"
    requeue_or_fail(transaction, state, [LostAttempt(job, JobCause.LEASE_LOST, why) for job in held], actor=actor)


def list_pilots(transaction: Transaction, wanted: PilotFilter = ALL_PRESENT) -> tuple[PilotInfo, ...]:
    """Return the pilots that a filter selects, newest first.

    Pilots that were lost recently are listed with those that are present: they may still exist, with their jobs.
    """
    found = stored.list_pilots(transaction.session, wanted, lost_since=transaction.now - LOST_SHOWN_FOR)
    jobs = count_live(transaction.session)
    return tuple(PilotInfo(pilot, jobs.get(pilot.stamp, 0)) for pilot in found)


class DrainedPilots(NamedTuple):
    """The stamps of pilots that drain or have been ended, and the given ones that are unknown or had ended."""

    stamps: tuple[str, ...]
    unknown: tuple[str, ...]


def drain_pilots(
    transaction: Transaction,
    state: ServerState,
    identity: Identity | None,
    pilots: Sequence[str] | TreeNode | NodeId,
    reason: str,
    *,
    evict: bool,
) -> DrainedPilots:
    """Drain pilots, given by stamps or all at a place: they end after their jobs or at once.

    A pilot that is only registered ends now. One that changes at the same moment is handled in its new state. After an
    order to evict, a pilot may call for the time `rules.eviction`, in which it reports the ends of its jobs.
    `identity` None = the server itself drains them.

    Raises
    ------
    InvalidInputError
        There is no reason.
    """
    if not reason.strip():
        raise InvalidInputError(Violation("reason", "is empty: give the reason"))
    place = ""
    if isinstance(pilots, TreeNode | NodeId):
        place, pilots = stamps_at(transaction, state, pilots)
    live = _live_pilots(transaction, pilots)
    stored.change_pilots(transaction.session, live, {"drain_reason": reason, "drain_evicts": evict})
    live = _live_pilots(transaction, live)  # the update has locked their rows
    for stamp in [each for each, pilot in live.items() if pilot.state is PilotState.REGISTERED]:
        end_pilot(transaction, state, stamp, f"it was drained before it came: {reason}")
    contacted = [stamp for stamp, pilot in live.items() if pilot.state in ALIVE]
    stored.change_pilots(transaction.session, contacted, {"state": PilotState.DRAINING.value})
    if evict:
        open_ended = [stamp for stamp, pilot in live.items() if pilot.credential_ends is None]
        end_credentials(transaction, state, open_ended, transaction.now + state.rules.eviction)
    for stamp in contacted:
        transaction.after_commit(partial(state.publish_command, stamp))
    if live and identity is not None:
        how = "draining, its jobs are evicted" if evict else "draining"
        changed = line_difference([], (f"{stamp}: {how}" for stamp in live))
        subject = count_text(len(live), "pilot") + (f" at {place}" if place else "")
        record_change(transaction, identity, AuditKind.DRAIN, subject, difference=changed, reason=reason)
    return DrainedPilots(tuple(live), tuple(stamp for stamp in dict.fromkeys(pilots) if stamp not in live))


def _live_pilots(transaction: Transaction, stamps: Collection[str]) -> dict[str, PilotRecord]:
    """Return the present records of those pilots that have neither ended nor been lost, in order."""
    known = stored.load_pilots(transaction.session, stamps)
    return {each: known[each] for each in dict.fromkeys(stamps) if each in known and known[each].state not in OVER}


def mark_disconnected(transaction: Transaction, state: ServerState, stamps: Iterable[str]) -> tuple[str, ...]:
    """Mark pilots as lost that have left the broker (last will) and do not call either; return their stamps.

    Their leases continue: the jobs may still run. A pilot that calls again is alive again.
    """
    known = load_pilots(transaction.session, stamps)
    lost = [stamp for stamp, pilot in known.items() if is_disconnected(pilot, state.rules, transaction.now)]
    _mark_lost(transaction, lost, "it left the broker (its last will) and has not called since")
    return tuple(lost)


def living_queues(transaction: Transaction, _state: ServerState, stamps: Iterable[str]) -> dict[str, QueueId]:
    """Return the queues of those of these pilots that are known and neither ended nor lost."""
    pilots = load_pilots(transaction.session, stamps)
    return {stamp: pilot.queue for stamp, pilot in pilots.items() if pilot.state not in OVER}


def ended_stamps(transaction: Transaction, _state: ServerState, stamps: Iterable[str]) -> tuple[str, ...]:
    """Return the stamps whose pilots have ended, are lost or are unknown."""
    requested = sorted(set(stamps))
    pilots = load_pilots(transaction.session, requested)
    return tuple(stamp for stamp in requested if stamp not in pilots or pilots[stamp].state in OVER)
