"""The jobs that a command names, as HTCondor's tools name them: clusters, processes, owners, constraints, user logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from pilotage.classads.evaluation import Ad, compile_bounded
from pilotage.classads.text import ad_text
from pilotage.errors import InvalidInputError, Violation
from pilotage.text import fold, folded_set
from pilotage.values.jobs import ALL_OWNERS, JobCondition
from pilotage.values.selections import JobSelection
from pilotage_client.api import Client
from pilotage_client.condor.returns import AwaitedOutput
from pilotage_client.models import FINAL_STATES, LIVE_STATES
from pilotage_client.user_log.file import jobs_of_log

ENDED_STATES = tuple(sorted(FINAL_STATES))

_ID = re.compile(r"(?P<cluster>\d{1,18})(?:\.(?P<process>\d{1,9}))?", re.ASCII)
_IN_QUEUE = "(JobStatus != 3 && JobStatus != 4 || LeaveJobInQueue =?= true)"
"""HTCondor keeps a job with leave_in_queue in the queue; here it can be named there after its end."""


@dataclass(frozen=True, slots=True)
class WantedJobs:
    """The jobs that a command line names: by id, or all of some owners; `constraint` "" = any of them.

    No ids and no owners = the caller's own jobs.
    """

    ids: tuple[JobSelection, ...] = ()
    owners: tuple[str, ...] = ()
    constraint: str = ""

    @property
    def is_restricted(self) -> bool:
        """Whether it names anything."""
        return bool(self.ids or self.owners or self.constraint)


def read_job_id(text: str) -> JobSelection | None:
    """Return the cluster "12" or the job "12.3"; None = the text is no id."""
    found = _ID.fullmatch(text)
    if found is None:
        return None
    cluster, process = int(found["cluster"]), found["process"]
    return JobSelection(cluster, None if process is None else (int(process), int(process)))


def read_wanted(words: Sequence[str], constraints: Sequence[str], log: str = "") -> WantedJobs:
    """Return the jobs that ids, owners' names and constraints select; `log` = those of a user log.

    Raises
    ------
    InvalidInputError
        A word is malformed, a constraint is no expression, or the log cannot be read.
    """
    ids: list[JobSelection] = []
    owners: list[str] = []
    for word in words:
        found = read_job_id(word)
        if found is not None:
            ids.append(found)
        elif word[:1].isdigit():
            raise InvalidInputError(Violation(word, "is neither a cluster nor a job, such as 12 or 12.3"))
        else:
            owners.append(word.partition("@")[0])
    if log:
        ids += (JobSelection(cluster, (process, process)) for cluster, process in sorted(jobs_of_log(Path(log))))
    for text in constraints:
        try:
            compile_bounded(text)
        except InvalidInputError as error:
            raise InvalidInputError(
                *(Violation(f"-constraint {text}", each.why) for each in error.violations)
            ) from error
    return WantedJobs(tuple(ids), tuple(owners), " && ".join(f"({text})" for text in constraints))


def queued_ads(
    client: Client, wanted: WantedJobs, attributes: Sequence[str] = (), *, all_users: bool = False
) -> Iterator[str]:
    """Yield the ads of wanted jobs that have not ended, or whose output is not back yet, oldest first.

    Named jobs are there also if they stay in the queue.
    """
    awaited = AwaitedOutput()
    needed = _needed(attributes, awaited)
    if wanted.ids:
        # With awaited output, `_in_queue` selects; a constraint that names its clusters could become too long.
        constraint = wanted.constraint if awaited else _both(_IN_QUEUE, wanted.constraint)
        named = replace(wanted, owners=(), constraint=constraint)
        yield from _in_queue(wanted_ads(client, named, (), needed), awaited, attributes, set())
    if wanted.owners or not wanted.ids:
        owners = wanted.owners or ("*",) * all_users
        live = wanted_ads(client, replace(wanted, ids=(), owners=owners), LIVE_STATES, needed)
        seen: set[tuple[object, object]] = set()
        yield from _in_queue(live, awaited, attributes, seen)
        # In this order: a job that ends in between is among the others.
        late = () if wanted.owners else tuple(awaited.others(seen))
        if late:
            ended = wanted_ads(client, replace(wanted, ids=late, owners=()), ENDED_STATES, needed)
            yield from _in_queue(ended, awaited, attributes, seen)


def ended_ads(
    client: Client, wanted: WantedJobs, attributes: Sequence[str] = (), *, all_users: bool = False
) -> Iterator[str]:
    """Yield the ads of wanted jobs that have ended and whose output is back, newest first."""
    awaited = AwaitedOutput()
    needed = _needed(attributes, awaited)
    ads: Iterator[str] = iter(())
    if wanted.ids:
        ads = reversed([*wanted_ads(client, replace(wanted, owners=()), ENDED_STATES, needed)])
    if wanted.owners or not wanted.ids:
        owners = wanted.owners or ("*",) * all_users
        others = wanted_ads(client, replace(wanted, ids=(), owners=owners), ENDED_STATES, needed, newest_first=True)
        ads = chain(ads, others)
    if not awaited:
        return ads
    return (_projected(ad, attributes) for ad in ads if not _is_awaited(Ad.read(ad), awaited))


_PLACE = ("ClusterId", "ProcId", "JobStatus", "LeaveJobInQueue")
_COMPLETED = 4
_TRANSFERRING = {"JobStatus": 2, "TransferringOutput": True}


def _needed(attributes: Sequence[str], awaited: AwaitedOutput) -> Sequence[str]:
    """Return the attributes to fetch, with those that tell whether the output of a job is awaited."""
    return (*attributes, *_PLACE) if attributes and awaited else attributes


def _in_queue(
    ads: Iterable[str], awaited: AwaitedOutput, attributes: Sequence[str], seen: set[tuple[object, object]]
) -> Iterator[str]:
    """Yield the ads of jobs in the queue that are not in `seen`, and add them.

    A job that has ended and whose output is awaited transfers it.
    """
    if not awaited:
        yield from ads
        return
    for text in ads:
        ad = Ad.read(text)
        cluster, process = ad.value("ClusterId"), ad.value("ProcId")
        if (cluster, process) in seen:
            continue
        seen.add((cluster, process))
        if _is_awaited(ad, awaited):
            text = ad_text({**ad.plain(), **_TRANSFERRING})
        elif ad.value("JobStatus") in (3, _COMPLETED) and ad.value("LeaveJobInQueue") is not True:
            continue
        yield _projected(text, attributes)


def _is_awaited(ad: Ad, awaited: AwaitedOutput) -> bool:
    cluster, process = ad.value("ClusterId"), ad.value("ProcId")
    is_known = isinstance(cluster, int) and isinstance(process, int) and awaited.is_awaited(cluster, process)
    return is_known and ad.value("JobStatus") == _COMPLETED


def _projected(text: str, attributes: Sequence[str]) -> str:
    if not attributes:
        return text
    wanted = folded_set(attributes)
    return ad_text({name: value for name, value in Ad.read(text).plain().items() if fold(name) in wanted})


def wanted_ads(
    client: Client,
    wanted: WantedJobs,
    states: Sequence[str],
    attributes: Sequence[str] = (),
    *,
    newest_first: bool = False,
) -> Iterator[str]:
    """Yield the ads of wanted jobs in these states (none = in any); of named ones in the order of ids."""
    if wanted.ids:
        yield from _named(client, wanted, states, attributes)
    for owner in wanted.owners or (() if wanted.ids else ("",)):
        condition = JobCondition(frozenset(states), owner=owner, vo=ALL_OWNERS, where=wanted.constraint)
        yield from client.list_ads(condition, attributes=attributes, newest_first=newest_first)


def _named(client: Client, wanted: WantedJobs, states: Sequence[str], attributes: Sequence[str]) -> Iterator[str]:
    # A number is a cluster here, never the id of one job of another cluster.
    clusters = [each.id for each in wanted.ids if each.processes is None]
    for start in range(0, len(clusters), _CLUSTERS_OF_A_CALL):
        some = clusters[start : start + _CLUSTERS_OF_A_CALL]
        condition = JobCondition(
            frozenset(states),
            owner=ALL_OWNERS,
            where=_both(_among(some), wanted.constraint),
            selections=tuple(map(JobSelection, some)),
        )
        yield from client.list_ads(condition, attributes=attributes)
    processes = [each for each in wanted.ids if each.processes is not None]
    if processes:
        condition = JobCondition(
            frozenset(states), owner=ALL_OWNERS, where=wanted.constraint, selections=tuple(processes)
        )
        yield from client.list_ads(condition, attributes=attributes)


_CLUSTERS_OF_A_CALL = 100


def _among(clusters: Sequence[int]) -> str:
    return f"member(ClusterId, {{{', '.join(map(str, clusters))}}})"


def _both(one: str, other: str) -> str:
    return f"{one} && ({other})" if other else one
