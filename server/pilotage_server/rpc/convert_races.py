"""Wire ↔ domain for RaceService."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import matcher_service_pb2, race_service_pb2
from pilotage.wire import text_from_wire, time_to_wire
from pilotage_server.core.accounting import Account
from pilotage_server.core.stragglers import OwnerLoad, SetLook, Straggler
from pilotage_server.operations.races import RaceFilter, RacePage, RaceView
from pilotage_server.operations.start_copies import NewRival, StartedCopy
from pilotage_server.operations.stragglers import Stragglers
from pilotage_server.rpc.convert_jobs import job_to_wire, page_size_from_wire
from pilotage_server.rpc.convert_values import Fields, each, job_id_from_wire, not_too_many, reason_from_wire, some

MOST_COPIES_IN_A_CALL = 1000


def new_rivals_from_wire(messages: Sequence[race_service_pb2.NewRaceCopy]) -> tuple[NewRival, ...]:
    """Return the copies that are to be made: at least one, of different jobs, not too many."""
    some(messages)
    if len(messages) > MOST_COPIES_IN_A_CALL:
        why = f"names {len(messages)}, and one call may name {MOST_COPIES_IN_A_CALL}"
        raise InvalidInputError(Violation("", why))
    twice = [job_id for job_id, times in Counter(message.job_id for message in messages).items() if times > 1]
    if twice:
        raise InvalidInputError(Violation("", f"names job {twice[0]} twice"))
    return each(messages, _new_rival_from_wire)


def _new_rival_from_wire(message: race_service_pb2.NewRaceCopy) -> NewRival:
    fields = Fields(message)
    copy = NewRival(fields("job_id", job_id_from_wire), fields("reason", reason_from_wire))
    fields.done()
    return copy


def started_to_wire(started: Iterable[StartedCopy]) -> race_service_pb2.StartCopiesResponse:
    """Return the message of what came of copies that were asked for."""
    return race_service_pb2.StartCopiesResponse(
        copies=[
            race_service_pb2.StartedCopy(job_id=one.job_id, copy_id=one.copy_id, refusal=one.refusal) for one in started
        ]
    )


def stragglers_to_wire(found: Stragglers, loads: Sequence[OwnerLoad] | None) -> race_service_pb2.FindStragglersResponse:
    """Return the message of sets; `loads` None = they are in another answer."""
    return race_service_pb2.FindStragglersResponse(
        sets=[_set_to_wire(look) for look in found.sets],
        next_after_set=found.next_after,
        load=None if loads is None else race_service_pb2.RaceLoad(owners=[_load_to_wire(load) for load in loads]),
    )


def _set_to_wire(look: SetLook) -> race_service_pb2.RaceSet:
    figures = look.figures
    return race_service_pb2.RaceSet(
        id=look.of.id,
        jobs=look.of.jobs,
        urgent=look.of.urgent,
        sampled=figures.sampled,
        done=figures.done,
        p95_s=figures.p95.total_seconds(),
        waiting=look.waiting,
        stragglers=[_straggler_to_wire(each) for each in look.stragglers],
        next_after_job=look.next_after_job,
    )


def _straggler_to_wire(straggler: Straggler) -> race_service_pb2.Straggler:
    job = straggler.job
    return race_service_pb2.Straggler(
        job_id=job.id,
        account=_account_to_wire(Account(job.vo, job.group, job.owner)),
        running_s=straggler.running.total_seconds(),
        cpus=straggler.cpus,
        copies_made=straggler.copies_made,
        copy_waits=straggler.copy_waits,
        sites=[race_service_pb2.OtherSite(site=each.site, free_slots=each.free_slots) for each in straggler.sites],
    )


def _load_to_wire(load: OwnerLoad) -> race_service_pb2.OwnerLoad:
    account = _account_to_wire(load.account)
    return race_service_pb2.OwnerLoad(account=account, copies=load.copies, lost_core_s=load.lost_core_s)


def _account_to_wire(account: Account) -> matcher_service_pb2.Account:
    return matcher_service_pb2.Account(vo=account.vo, group=account.group, owner=account.owner)


def race_filter_from_wire(message: race_service_pb2.ListRacesRequest) -> tuple[RaceFilter, int]:
    """Return which races are listed, and how many a page has."""
    fields = Fields(message)
    owner = fields.text("owner")
    fields("job_ids", not_too_many)
    job_ids = fields("job_ids", lambda ids: each(ids, job_id_from_wire))
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
                account=_account_to_wire(cost.account),
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
