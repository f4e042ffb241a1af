"""The options that select jobs, the same on all commands that list jobs or act on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, TypeVar

import click

from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage.resources.queue_id import QueueId
from pilotage.text import did_you_mean, fold, folded_set
from pilotage.values.jobs import ALL_OWNERS, JobCondition
from pilotage_client.api import Client
from pilotage_client.cli.options import past_time
from pilotage_client.cli.selection.names import NameChoice, check_place, pool_id
from pilotage_client.job_calls import runs_of
from pilotage_client.models import STATES

Returned = TypeVar("Returned")

_OPTIONS = (
    click.option("--state", "states", multiple=True, type=NameChoice(STATES), help="In this state. May be repeated."),
    click.option("--name", "job_name", default="", metavar="GLOB", help="With a name that matches, such as 'sim-*'."),
    click.option("--owner", default="", help='Of this owner; "*" = all that you may see.'),
    click.option("--group", default="", help="Of this group."),
    click.option("--vo", default="", help='Of this VO; "*" = all. Default: yours, if an owner is named.'),
    click.option("--site", default="", help="That run at this site, or ran there last."),
    click.option("--ce", default="", metavar="[SITE/]CE", help="Likewise at this CE."),
    click.option("--queue", default="", metavar="SITE/CE/QUEUE", help="Likewise in this queue."),
    click.option("--node", default="", metavar="[SITE/]NODE", help="Likewise on this node."),
    click.option("--pool", default="", help="Of the submit pool whose id begins so."),
    click.option("--since", metavar="TIME", help="In their state since then or later: 2 h (ago), 02:00, ISO 8601."),
    click.option("--until", metavar="TIME", help="In their state since before then."),
    click.option("--where", default="", metavar="EXPR", help="Whose ad makes this ClassAd expression true."),
)


@dataclass(frozen=True, slots=True)
class PlaceNames:
    """A place as options name it; "" = any."""

    site: str = ""
    ce: str = ""
    queue: str = ""
    node: str = ""

    def has(self, queue: QueueId | Any, node: str = "") -> bool:
        """Whether a queue, and a node, is at the place."""
        return all(
            not wanted or fold(wanted) == fold(had)
            for wanted, had in (
                (self.site, queue.site),
                (self.ce, queue.ce),
                (self.queue, queue.queue),
                (self.node, node),
            )
        )


def read_place(site: str, ce: str = "", queue: str = "", node: str = "") -> PlaceNames:
    """Return the place that options name; raises UsageError where they contradict one another."""
    place = QueueId.parse(queue) if queue else QueueId("", "", "")
    ce_site, _, ce_name = ce.rpartition("/")
    node_site, _, host = node.rpartition("/")
    sites = [name for name in (site, ce_site, place.site, node_site) if name]
    ces = [name for name in (ce_name, place.ce) if name]
    for option, names in (("--site", sites), ("--ce", ces)):
        if len({fold(name) for name in names}) > 1:
            raise click.UsageError(f"{option}, --queue and --node name different places: {' and '.join(names)}")
    if ces and not sites:
        raise click.UsageError("--ce needs a site: give --site SITE or --ce SITE/CE")
    return PlaceNames(next(iter(sites), ""), next(iter(ces), ""), place.queue, host)


@dataclass(frozen=True, slots=True)
class JobFilters:
    """The values of the options; all empty = none is given."""

    states: Sequence[str] = ()
    job_name: str = ""
    owner: str = ""
    group: str = ""
    vo: str = ""
    site: str = ""
    ce: str = ""
    queue: str = ""
    node: str = ""
    pool: str = ""
    since: str | None = None
    until: str | None = None
    where: str = ""

    @property
    def are_given(self) -> bool:
        """Whether any of the options is given."""
        return any(getattr(self, each.name) for each in fields(self))

    def condition(
        self, client: Client, states: Sequence[str] = (), owner: str = "", ids: Sequence[int] = ()
    ) -> JobCondition:
        """Return the condition; `states` and `owner` are those where none is given.

        `ids` = only these jobs, of any owner; empty = all jobs.
        """
        place = read_place(self.site, self.ce, self.queue, self.node)
        return JobCondition(
            frozenset(self.states or states),
            place.site,
            place.ce,
            place.queue,
            place.node,
            self.owner or (ALL_OWNERS if ids else owner),
            past_time(self.since, "--since"),
            past_time(self.until, "--until"),
            self.vo,
            self.group,
            self.job_name,
            pool_id(client, self.pool),
            self.where,
            runs=runs_as_ranges(ids),
        )


def runs_as_ranges(ids: Sequence[int]) -> tuple[range, ...]:
    """Return the runs of consecutive ids."""
    return tuple(range(run.first, run.first + run.count) for run in runs_of(ids))


def ads_of_jobs(ids: Sequence[int]) -> JobCondition:
    """Return the condition that these jobs meet, whoever owns them."""
    return JobCondition(owner=ALL_OWNERS, runs=runs_as_ranges(ids))


def job_filters(command: Callable[..., Returned]) -> Callable[..., Returned]:
    """Add the options that select jobs to a command, which gets them as the parameter `filters`."""
    names = [each.name for each in fields(JobFilters)]

    @wraps(command)
    def filtered(*args: Any, **kwargs: Any) -> Returned:
        filters = JobFilters(**{name: kwargs.pop(name) for name in names})
        return command(*args, filters=filters, **kwargs)

    decorated: Callable[..., Returned] = filtered
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def selected_jobs(client: Client, ids: Sequence[str], filters: JobFilters) -> list[int]:
    """Return the jobs that ids name and that meet the filters; without ids all of the caller that meet them.

    Raises
    ------
    NotFoundError
        There is none.
    InvalidInputError
        There is none, as a name in the filters does not exist.
    """
    if not ids and not filters.are_given:
        raise click.UsageError("give ids of jobs, or what they have in common: --state, --name, --site and so on")
    named = client.find_jobs(ids).ids if ids else []
    if not filters.are_given:
        return named
    found = client.search_jobs(filters.condition(client, ids=named)) if named or not ids else []
    if not found:
        raise_none(client, filters)
    return found


def raise_none(client: Client, filters: JobFilters) -> None:
    """Raise the error that no job meets the filters; a name that does not exist is answered with the nearest one."""
    explain_none(client, filters)
    raise NotFoundError("job that meets", "the condition")


def explain_none(client: Client, filters: JobFilters) -> None:
    """Raise InvalidInputError if a name in the filters, which found nothing, does not exist."""
    place = read_place(filters.site, filters.ce, filters.queue)
    check_place(client, place.site, place.ce, place.queue)
    if filters.owner not in ("", ALL_OWNERS):
        _check_owner(client, filters)
    if filters.where:
        _check_attributes(client, filters.where)


def _check_owner(client: Client, filters: JobFilters) -> None:
    """Raise InvalidInputError for an owner who has neither jobs nor usage, with the nearest one or the other VOs."""
    me = client.who_am_i()
    vo = filters.vo or me.vo
    accounts = {(each.vo, each.owner) for each in client.shares().accounts} | {(me.vo, me.owner)}
    if (vo, filters.owner) in accounts or (vo == ALL_OWNERS and filters.owner in {owner for _, owner in accounts}):
        return
    vos = sorted(vo for vo, owner in accounts if owner == filters.owner)
    if vos and vo not in vos:
        raise InvalidInputError(
            Violation("--owner", f"{filters.owner} has no jobs in {vo}; give --vo {' or --vo '.join(vos)}")
        )
    near = did_you_mean(filters.owner, (owner for of, owner in accounts if vo in (ALL_OWNERS, of)))
    if near:
        raise InvalidInputError(Violation("--owner", f"no jobs of {filters.owner} are known{near}"))


def _check_attributes(client: Client, where: str) -> None:
    """Raise InvalidInputError for an attribute that the newest job does not have, but one with a like name."""
    ad = next(client.list_ads(JobCondition(owner=ALL_OWNERS), newest_first=True), None)
    if ad is None:
        return
    from pilotage.classads.evaluation import Ad  # with HTCondor's library
    from pilotage.classads.references import references

    names = [*Ad.read(ad).plain()]
    refers = references(where)
    for name in sorted((refers.my | refers.free) - folded_set(names)):
        if near := did_you_mean(name, names):
            typed = re.search(rf"(?<![\w.]){re.escape(name)}\b", where, re.IGNORECASE)
            shown = typed[0] if typed else name
            raise InvalidInputError(Violation("--where", f"the ads of jobs have no attribute {shown}{near}"))
