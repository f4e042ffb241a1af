"""RequestJobs: pilots bring reports and free slots, and get jobs.

Many requests share one transaction; each has one effect, also when it is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pilotage.errors import PilotageError
from pilotage.resources.eligibility import Ban, active_bans, next_downtime
from pilotage.values.attempts import AttemptKey, ReportResult
from pilotage.values.offers import VacateOrder
from pilotage_server.core.identity import Identity, PilotCredential
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.pilots.nodes import NodeId, NodeSettings
from pilotage_server.core.pilots.pilots import PilotRecord
from pilotage_server.core.queueing.slot_offers import until
from pilotage_server.operations.attempts.pilot_calls import (
    PilotCommand,
    commands_of,
    credential_of,
    no_work_reason,
    record_contact,
)
from pilotage_server.operations.attempts.reports import record_reports
from pilotage_server.operations.idempotency import IdempotentRequest, ServedRequest, run_each_once
from pilotage_server.operations.matching.bind import BoundJobs, SlotRequest, bind_jobs, pilot_matches
from pilotage_server.operations.matching.offers import (
    NO_OFFERS,
    Offers,
    RequestingPilot,
    ResponseBudget,
    add_ad_parts,
    read_offers,
)
from pilotage_server.operations.matching.trials import AdmittedOffers, admitted_offers, settle_trial
from pilotage_server.operations.matching.vacates import vacate_orders
from pilotage_server.operations.matching.work import Match, WorkAnswer, WorkRequest
from pilotage_server.operations.queueing.counting import load_unknown_task_queues
from pilotage_server.operations.resources.pools import get_submit_pools_for_queue
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.leases import lock_jobs
from pilotage_server.storage.pilots import load_node_settings


def request_many(
    transaction: Transaction, state: ServerState, requests: Sequence[tuple[Identity, WorkRequest]]
) -> list[WorkAnswer | PilotageError]:
    """Record the reports of pilots, then bind waiting jobs to their slots, in the order of the requests.

    Only the callers' credentials are trusted: stamp, queue and VOs. A pilot gets no work and the order to drain if it
    drains, has ended or is unknown, or if its queue is gone from the tree.

    Returns
    -------
    list
        One answer per request, in order; a request with an error has had no effect.
    """
    calls = [_Call(identity, credential_of(identity), request) for identity, request in requests]
    for call in calls:
        call.fault = _fault_of_parts(state, call.request)
    sound = [call for call in calls if call.fault is None]
    load_unknown_task_queues(transaction, state)
    _record(transaction, state, sound)
    _load_pilots(transaction, state, sound)
    _offer(transaction, state, sound)
    _match(transaction, state, sound)
    return [call.fault or _answer(state, call) for call in calls]


@dataclass(slots=True)
class _Call:
    """One request and its results so far."""

    identity: Identity
    credential: PilotCredential
    request: WorkRequest
    fault: PilotageError | None = None
    results: tuple[ReportResult, ...] = ()
    pilot: PilotRecord | None = None
    commands: tuple[PilotCommand, ...] = ()
    settings: NodeSettings | None = None
    offers: Offers = NO_OFFERS
    matches: tuple[Match, ...] = ()
    vacates: tuple[VacateOrder, ...] = ()

    @property
    def node(self) -> NodeId | None:
        """The pilot's node; None where operators cannot have set anything on it."""
        if self.pilot is None or not self.pilot.node or not self.request.has_policy:
            return None
        return NodeId(self.credential.queue.site, self.pilot.node)


def _fault_of_parts(state: ServerState, request: WorkRequest) -> PilotageError | None:
    try:
        if request.ad_parts:
            add_ad_parts(state, request.ad_parts)
    except PilotageError as error:
        return error
    return None


def _record(transaction: Transaction, state: ServerState, calls: Sequence[_Call]) -> None:
    lock_jobs(
        transaction.session,
        [report.job_id for call in calls for report in call.request.reports],
        rivals=transaction.is_retry,
    )
    results = record_reports(transaction, state, [(call.identity, call.request.reports) for call in calls])
    for call, call_results in zip(calls, results, strict=True):
        call.results = call_results


def _load_pilots(transaction: Transaction, state: ServerState, calls: Sequence[_Call]) -> None:
    """Record that the pilots live, and find the server's commands for them."""
    pilots = record_contact(transaction, {call.credential.stamp: None for call in calls})
    for call in calls:
        call.pilot = pilots.get(call.credential.stamp)
    commands = commands_of(transaction, state, [(call.credential, call.pilot, frozenset()) for call in calls])
    nodes = {call.node for call in calls} - {None}
    settings = load_node_settings(transaction.session, [node for node in nodes if node]) if nodes else {}
    for call, wanted in zip(calls, commands, strict=True):
        call.commands = wanted
        known = settings.get(call.node) if call.node is not None else None
        if known is not None and known.version != call.request.node_settings_version:
            call.settings = known


def _offer(transaction: Transaction, state: ServerState, calls: Sequence[_Call]) -> None:
    """Read the policies of the slots that may get jobs: those of pilots that have all their node settings.

    A pilot that isolates too weakly for every VO it serves gets none, with the reason for each slot.
    """
    access = state.queue_access
    for call in calls:
        may_have_work = call.pilot is not None and not no_work_reason(transaction, state, call.credential, call.pilot)
        if not call.request.slots or not may_have_work or call.settings is not None:
            continue
        why = access.too_weak_for_all(call.request.isolation, call.credential.queue, call.credential.vos)
        if why:
            call.offers = Offers((), {}, faults={slot.name: why for slot in call.request.slots})
        else:
            call.offers = read_offers(state, call.credential.queue, call.request.slots)


def _match(transaction: Transaction, state: ServerState, calls: Sequence[_Call]) -> None:
    """Bind jobs to the free slots of all requests, then find the occupied slots that better jobs want."""
    bans = state.bans
    open_calls = [
        call for call in calls if call.offers.slots and not active_bans(bans, call.credential.queue, transaction.now)
    ]
    _shorten_before_downtimes(bans, open_calls, transaction.now)
    probes: list[tuple[_Call, AdmittedOffers]] = []
    if state.throttles:
        open_calls, probes = _try_throttled(transaction, state, open_calls)
    slot_requests = [
        SlotRequest(_requesting_pilot(call), call.offers, ResponseBudget.of(call.offers.slots)) for call in open_calls
    ]
    made = [
        BoundJobs(claims, call.offers.slots)
        for call, claims in zip(open_calls, bind_jobs(transaction, state, slot_requests), strict=True)
    ]
    for call in open_calls:
        call.vacates = vacate_orders(transaction, state, _requesting_pilot(call), call.offers)
    for call, matches in zip(open_calls, pilot_matches(transaction, state, made), strict=True):
        call.matches = matches
    for call, probe in probes:
        settle_trial(transaction, probe, call.matches)


def _shorten_before_downtimes(bans: Sequence[Ban], calls: Sequence[_Call], now: datetime) -> None:
    """Let slots take only jobs that end before the next downtime of their queue."""
    planned = [ban for ban in bans if ban.downtime is not None]
    for call in calls if planned else ():
        coming = next_downtime(planned, call.credential.queue, now)
        if coming is None or coming.downtime is None:
            continue
        left = coming.downtime - now
        call.offers = replace(call.offers, slots=tuple(until(slot, left) for slot in call.offers.slots))


def _try_throttled(
    transaction: Transaction, state: ServerState, calls: Sequence[_Call]
) -> tuple[list[_Call], list[tuple[_Call, AdmittedOffers]]]:
    """Return the calls that may have jobs, and those of them that may have one job as a probe."""
    open_calls: list[_Call] = []
    probes: list[tuple[_Call, AdmittedOffers]] = []
    for call in calls:
        found = admitted_offers(transaction, state, _requesting_pilot(call), call.offers)
        if found is None:
            continue
        open_calls.append(call)
        if found.trials:
            call.offers = found.offers
            probes.append((call, found))
    return open_calls, probes


def _requesting_pilot(call: _Call) -> RequestingPilot:
    return RequestingPilot(call.credential, call.pilot.node if call.pilot is not None else "", call.request.isolation)


def _answer(state: ServerState, call: _Call) -> WorkAnswer:
    return WorkAnswer(
        matches=call.matches,
        results=call.results,
        pools_changed=_pools_changed(state, call),
        commands=call.commands,
        vacates=call.vacates,
        ad_parts_wanted=call.offers.parts_wanted,
        unreferred=call.offers.unreferred,
        faults=call.offers.faults,
        node_settings=call.settings,
        tails=state.take_new_tails(call.credential.stamp),
    )


def _pools_changed(state: ServerState, call: _Call) -> bool:
    """Whether the pilot's list of pools differs from the server's; a pilot without a list claims nothing."""
    if not call.request.pool_ids:
        return False
    (present,) = get_submit_pools_for_queue(state, call.identity, [call.credential.queue])
    return frozenset(call.request.pool_ids) != frozenset(present.pool_ids)


def leases_left(
    transaction: Transaction, identity: Identity, matches: Sequence[AttemptKey]
) -> dict[AttemptKey, timedelta]:
    """Return how long the leases of earlier matches still run, for a repeated answer; 0 = it has ended."""
    stamp = credential_of(identity).stamp
    jobs = load_jobs(transaction.session, [match.job_id for match in matches])
    return {match: _left(jobs.get(match.job_id), match, stamp, transaction.now) for match in matches}


def _left(job: JobRecord | None, match: AttemptKey, stamp: str, now: datetime) -> timedelta:
    is_held = job is not None and job.is_leased and (job.attempt, job.pilot_stamp) == (match.attempt, stamp)
    if job is None or job.lease_until is None or not is_held:
        return timedelta(0)
    return max(timedelta(0), job.lease_until - now)


MAX_REQUESTS = 64
"""The most requests in one transaction, so that none waits for long."""


@dataclass(frozen=True, slots=True)
class WorkCall:
    """A request for jobs, made `waited` ago."""

    asked: IdempotentRequest
    request: WorkRequest
    waited: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The result of a request: the response as it is to be sent, and its content.

    `answer` None = the request was answered before, and `response` is the stored one.
    """

    response: bytes
    answer: WorkAnswer | None


class WorkBatch:
    """Serves requests for jobs; `write` encodes the answer to a request that was made so long ago."""

    most = MAX_REQUESTS

    def __init__(self, state: ServerState, write: Callable[[WorkAnswer, timedelta], bytes]) -> None:
        self._state = state
        self._write = write

    def run(self, transaction: Transaction, items: Sequence[WorkCall]) -> list[WorkDone | PilotageError]:
        """Serve the requests in order; a repeated one is served once."""
        return run_each_once(
            transaction,
            [item.asked for item in items],
            lambda fresh: self._serve(transaction, [items[index] for index in fresh]),
            lambda _, kept: WorkDone(kept, None),
        )

    def _serve(
        self, transaction: Transaction, items: Sequence[WorkCall]
    ) -> list[ServedRequest[WorkDone] | PilotageError]:
        """Serve new requests; only a response with jobs is stored, for the others may be repeated."""
        answers = request_many(transaction, self._state, [(item.asked.identity, item.request) for item in items])
        return [
            answer if isinstance(answer, PilotageError) else self._served(answer, item.waited)
            for item, answer in zip(items, answers, strict=True)
        ]

    def _served(self, answer: WorkAnswer, waited: timedelta) -> ServedRequest[WorkDone]:
        response = self._write(answer, waited)
        return ServedRequest(WorkDone(response, answer), response if answer.matches else None)
