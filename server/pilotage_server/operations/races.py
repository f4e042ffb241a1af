"""Questions about races: which there are and were, who took part, what they have cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pilotage.errors import InvalidInputError, Violation
from pilotage_server.core.identity import Identity
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.page_tokens import position_of, token_of
from pilotage_server.core.races import ANEW, Race, cost_so_far, is_of_present_life
from pilotage_server.operations.query_jobs import ALL, DEFAULT_PAGE, LARGEST_PAGE
from pilotage_server.storage import races as stored
from pilotage_server.storage.attempts import load_attempts_of
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.events import last_attempts_at
from pilotage_server.storage.job_rows import load_jobs
from pilotage_server.storage.races import RaceCost, RaceQuery


@dataclass(frozen=True, slots=True)
class RaceFilter:
    """Which races: `owner` "" = the caller's own, `open_only` = those that go on, no `job_ids` = of any original."""

    owner: str = ""
    open_only: bool = False
    job_ids: tuple[int, ...] = ()


class RaceView(NamedTuple):
    """A race as people see it: its original, its copies, and what it has cost so far, in core seconds."""

    race: Race
    original: JobRecord
    copies: tuple[JobRecord, ...]
    lost_core_s: float


@dataclass(frozen=True, slots=True)
class RacePage:
    """Some races, that of the newest original first; `next_page_token` "" = there are no more.

    `costs` are what the races have cost that have ended, by account; they are in the first page only.
    """

    races: tuple[RaceView, ...]
    next_page_token: str = ""
    costs: tuple[RaceCost, ...] = ()


def present_races(unit: Unit, job_ids: Iterable[int]) -> dict[int, Race]:
    """Return the races of these jobs whose copies count for the lives that the jobs are at, by the jobs' ids."""
    last = stored.load_last(unit.session, job_ids)
    anew = last_attempts_at(unit.session, last, ANEW)
    return {id_: race for id_, race in last.items() if is_of_present_life(race, anew.get(id_, 0))}


def list_races(
    unit: Unit, identity: Identity, wanted: RaceFilter, page_size: int = 0, page_token: str = ""
) -> RacePage:
    """Return the next page; `page_size` 0 = 1,000.

    Raises
    ------
    InvalidInputError
        The page size is out of bounds, or the token is not one of this question's.
    """
    if not 0 <= page_size <= LARGEST_PAGE:
        raise InvalidInputError(Violation("page_size", f"{page_size} is not between 0 and {LARGEST_PAGE}"))
    query = _query(identity, wanted)
    if query is None:
        return RacePage(())
    asked = (repr(query),)
    before = position_of(page_token, asked) if page_token else 0
    size = page_size or DEFAULT_PAGE
    races = stored.find_races(unit.session, query, before, size + 1)
    more = token_of(races[size - 1].job_id, asked) if len(races) > size else ""
    costs = () if before else stored.sum_costs(unit.session, query)
    return RacePage(_views(unit, races[:size]), more, costs)


def _query(identity: Identity, wanted: RaceFilter) -> RaceQuery | None:
    """Return what is asked of the database; None = nothing, for to others an owner's races are not there."""
    owner = wanted.owner or identity.owner
    if identity.sees_everything:
        own_vo = None if wanted.owner else identity.vo
        return RaceQuery(None if owner == ALL else owner, own_vo, wanted.job_ids, wanted.open_only)
    if owner not in {ALL, identity.owner}:
        return None
    return RaceQuery(identity.owner, identity.vo, wanted.job_ids, wanted.open_only)


def _views(unit: Unit, races: Sequence[Race]) -> tuple[RaceView, ...]:
    copies = stored.load_rivals(unit.session, races)
    originals = load_jobs(unit.session, [race.job_id for race in races])
    views: list[RaceView] = []
    for race in races:
        theirs = tuple(copies.get(race.job_id, ()))
        cost = race.lost_core_s
        if race.ended is None:
            cost += cost_so_far(race, load_attempts_of(unit.session, [copy.id for copy in theirs]), unit.now)
        views.append(RaceView(race, originals[race.job_id], theirs, cost))
    return tuple(views)
