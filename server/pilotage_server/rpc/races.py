"""RaceService: stragglers, new race copies, and the list of races."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from pilotage.errors import InvalidInputError, Violation
from pilotage.rpc.wire import text_from_wire, time_to_wire
from pilotage.v1 import race_service_pb2, race_service_pb2_grpc
from pilotage.values.accounts import Account
from pilotage.values.races import NewRaceCopy, StartedRaceCopy
from pilotage.values.wire.accounts import account_to_wire
from pilotage.values.wire.fields import Fields, all_from_wire, job_id_from_wire
from pilotage.values.wire.leadership import leadership_from_wire
from pilotage.values.wire.races import new_race_copy_from_wire, started_to_wire
from pilotage_server.core.races.stragglers import OwnerLoad, SetReport, Straggler
from pilotage_server.operations.leadership import lock_leadership_of
from pilotage_server.operations.races.races import RaceFilter, RacePage, RaceView, list_races, start_copies
from pilotage_server.operations.races.stragglers import IdleSlotCache, Stragglers, find_stragglers, race_loads
from pilotage_server.operations.server_state import ServerState
from pilotage_server.rpc.framework.calls import caller
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.rpc.framework.wire_values import check_count, check_not_empty
from pilotage_server.rpc.jobs.wire import job_to_wire, page_size_from_wire
from pilotage_server.storage.database.transaction import Transaction

MAX_COPIES_PER_CALL = 1000


def new_race_copies_from_wire(messages: Sequence[race_service_pb2.NewRaceCopy]) -> tuple[NewRaceCopy, ...]:
    """Return the wanted copies: at least one, of different jobs, at most `MAX_COPIES_PER_CALL`."""
    check_not_empty(messages)
    if len(messages) > MAX_COPIES_PER_CALL:
        why = f"names {len(messages)}, and one call may name {MAX_COPIES_PER_CALL}"
        raise InvalidInputError(Violation("", why))
    twice = [job_id for job_id, times in Counter(message.job_id for message in messages).items() if times > 1]
    if twice:
        raise InvalidInputError(Violation("", f"names job {twice[0]} twice"))
    return all_from_wire(messages, new_race_copy_from_wire)


def start_answer_to_wire(started: Iterable[StartedRaceCopy]) -> race_service_pb2.StartCopiesResponse:
    """Return the message of the results of wanted copies."""
    return race_service_pb2.StartCopiesResponse(copies=map(started_to_wire, started))


def stragglers_to_wire(found: Stragglers, loads: Sequence[OwnerLoad] | None) -> race_service_pb2.FindStragglersResponse:
    """Return the message of sets; `loads` None = an earlier page had them."""
    return race_service_pb2.FindStragglersResponse(
        sets=[_set_to_wire(report) for report in found.sets],
        next_after_set=found.next_after,
        load=None if loads is None else race_service_pb2.RaceLoad(owners=[_load_to_wire(load) for load in loads]),
    )


def _set_to_wire(report: SetReport) -> race_service_pb2.RaceSet:
    figures = report.figures
    return race_service_pb2.RaceSet(
        id=report.of.id,
        jobs=report.of.jobs,
        urgent=report.of.urgent,
        sampled=figures.sampled,
        done=figures.done,
        p95_s=figures.p95.total_seconds(),
        waiting=report.waiting,
        stragglers=[_straggler_to_wire(each) for each in report.stragglers],
        next_after_job=report.next_after_job,
    )


def _straggler_to_wire(straggler: Straggler) -> race_service_pb2.Straggler:
    job = straggler.job
    return race_service_pb2.Straggler(
        job_id=job.id,
        account=account_to_wire(Account(job.vo, job.group, job.owner)),
        running_s=straggler.running.total_seconds(),
        cpus=straggler.cpus,
        copies_made=straggler.copies_made,
        copy_waits=straggler.copy_waits,
        sites=[race_service_pb2.OtherSite(site=each.site, free_slots=each.free_slots) for each in straggler.sites],
    )


def _load_to_wire(load: OwnerLoad) -> race_service_pb2.OwnerLoad:
    account = account_to_wire(load.account)
    return race_service_pb2.OwnerLoad(account=account, copies=load.copies, lost_core_s=load.lost_core_s)


def race_filter_from_wire(message: race_service_pb2.ListRacesRequest) -> tuple[RaceFilter, int]:
    """Return the filter of a list of races, and the page size."""
    fields = Fields(message)
    owner = fields.text("owner")
    fields("job_ids", check_count)
    job_ids = fields("job_ids", lambda ids: all_from_wire(ids, job_id_from_wire))
    page_size = fields("page_size", page_size_from_wire)
    fields("page_token", text_from_wire)
    fields.done()
    return RaceFilter(owner, message.open, job_ids), page_size


def races_to_wire(page: RacePage) -> race_service_pb2.ListRacesResponse:
    """Return the message of a page of races."""
    return race_service_pb2.ListRacesResponse(
        races=[_race_to_wire(view) for view in page.races],
        next_page_token=page.next_page_token,
        costs=[
            race_service_pb2.RaceCost(
                account=account_to_wire(cost.account),
                races=cost.races,
                won_by_copies=cost.won_by_copies,
                lost_core_s=cost.lost_core_s,
            )
            for cost in page.costs
        ],
    )


def _race_to_wire(view: RaceView) -> race_service_pb2.Race:
    race = view.race
    return race_service_pb2.Race(
        original=job_to_wire(view.original),
        copies=[job_to_wire(copy) for copy in view.copies],
        reason=race.reason,
        began=time_to_wire(race.began),
        ended=time_to_wire(race.ended),
        winner=race.winner,
        outcome=race.outcome,
        lost_core_s=view.lost_core_s,
    )


class RaceServicer(race_service_pb2_grpc.RaceServiceServicer):
    """Finds stragglers, starts race copies and lists races."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._glance = IdleSlotCache()

    async def FindStragglers(
        self, request: race_service_pb2.FindStragglersRequest, context: Any
    ) -> race_service_pb2.FindStragglersResponse:
        fields = Fields(request)
        after = fields.count("after_set")
        fields("after_jobs", check_count)
        after_jobs = dict(request.after_jobs)
        bounds = caller().bounds
        glance = self._glance if request.free_slots_wanted else None
        fields.done()

        def find(transaction: Transaction, state: ServerState) -> race_service_pb2.FindStragglersResponse:
            found = find_stragglers(transaction, state, after, glance, after_jobs, bounds=bounds)
            return stragglers_to_wire(found, None if after else race_loads(transaction, bounds))

        return await self._transactions.read(find)

    async def StartCopies(
        self, request: race_service_pb2.StartCopiesRequest, context: Any
    ) -> race_service_pb2.StartCopiesResponse:
        fields = Fields(request)
        leadership = fields.if_set("turn", leadership_from_wire)
        wanted = fields("copies", new_race_copies_from_wire)
        fields.done()
        identity = caller()

        def start(transaction: Transaction, state: ServerState) -> race_service_pb2.StartCopiesResponse:
            lock_leadership_of(transaction, identity, leadership)
            return start_answer_to_wire(start_copies(transaction, state, wanted, identity.bounds))

        return await self._transactions.once(
            identity, "StartCopies", request, race_service_pb2.StartCopiesResponse, start
        )

    async def ListRaces(
        self, request: race_service_pb2.ListRacesRequest, context: Any
    ) -> race_service_pb2.ListRacesResponse:
        identity = caller()
        wanted, size = race_filter_from_wire(request)
        token = request.page_token
        return await self._transactions.read(
            lambda transaction, _: races_to_wire(list_races(transaction, identity, wanted, size, token))
        )
